"""Our search settings as arguments of CTranslate2's `translate_batch`, or refused by name."""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

from transformer_jax.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.translator.translation_settings import TranslationSettings

# A length penalty of 0 would let CTranslate2 stop early, by another rule than `first_k`.
NO_PENALTY = 1e-6


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a CTranslate2 model does with a field of `DecodeConfig`.

    Attributes:
      meaning: for the documents; `same` is as with a model of ours.
      is_possible: whether it can do what a config says; a value without effect is possible.
      instead: the end of the sentence that refuses it.
    """

    meaning: str = "same"
    is_possible: Callable[[DecodeConfig], bool] = lambda decode: True
    instead: str = ""


def _forbids_tokens(decode: DecodeConfig) -> bool:
    return bool(decode.no_repeat_ngram_size or decode.suppressed_ids or decode.min_decode_len > 1)


SAME = Setting()
# In the order of `DecodeConfig`. A test checks that no field is missing.
SETTINGS: dict[str, Setting] = {
    "method": SAME,
    "beam_size": SAME,
    "length_penalty": SAME,
    "length_penalty_kind": Setting(
        "same; `gnmt` ranks the `beam_size` hypotheses that CTranslate2 finds"
    ),
    "stopping": Setting(
        "`first_k`, its default here",
        lambda d: d.method != "beam" or d.beam_size == 1 or d.stopping == "first_k",
        "its beam search ends by `stopping=first_k`",
    ),
    "max_decode_len": SAME,
    "max_decode_ratio": SAME,
    "min_decode_len": SAME,
    "min_decode_ratio": Setting(
        "not", lambda d: d.min_decode_ratio == 0, "`min_decode_len` is a limit for all texts"
    ),
    "at_limit": Setting(
        "`cut`, its default here", lambda d: d.at_limit == "cut", "outputs are cut there"
    ),
    "suppressed_ids": SAME,
    "shortlist": Setting(
        "with its file `vmap.txt`; probabilities sum to 1 over the tokens of all texts of a call, "
        "so outputs depend on the others; those of a prefix are among all tokens"
    ),
    "renormalize": Setting(
        "`True`, its default here",
        lambda d: d.renormalize or not _forbids_tokens(d),
        "its probabilities always sum to 1 over the tokens that are allowed",
    ),
    "coverage_penalty": Setting(
        "not", lambda d: d.coverage_penalty == 0, "its own penalty has another formula"
    ),
    "no_repeat_ngram_size": SAME,
    "repetition_penalty": SAME,
    "beam_groups": Setting("not", lambda d: d.beam_groups == 1, "it has one group of beams"),
    "diversity_penalty": Setting("not, like `beam_groups`"),
    "temperature": SAME,
    "top_k": SAME,
    "top_p": SAME,
    "min_p": Setting("not", lambda d: d.min_p == 0, "`top_k` and `top_p` are possible"),
    "seed": Setting("not: each call draws other samples"),
    "mbr_samples": SAME,
    "mbr_metric": SAME,
    "batch_tokens": SAME,
}
SEED_GIVEN = (
    "A CTranslate2 model draws other samples in each call: it has no `seed`; remove the setting."
)
NO_PHRASES = "a CTranslate2 model cannot place phrases; remove them, or use the work directory."


def check(
    settings: TranslationSettings,
    given: Collection[str],
    layer: int,
    depth: int,
    num_averaged: int,
    num_heads: int,
) -> None:
    """Refuses what CTranslate2 cannot do.

    Args:
      settings: of a call.
      given: names of the settings that the caller gave.
      layer: whose attention comes with translations, from 0.
      depth: number of decoder layers.
      num_averaged: heads of it, the first ones, that are averaged.
      num_heads: of the layer.

    Raises:
      UserError: naming the setting.
    """
    decode = settings.decode
    for name, setting in SETTINGS.items():
        if not setting.is_possible(decode):
            raise UserError(
                f"A CTranslate2 model has no `{name}={getattr(decode, name)}`: {setting.instead}."
            )
    if "seed" in given:
        raise UserError(SEED_GIVEN)
    if settings.attention:
        # In a decoder of one layer, -2 is that layer.
        chosen = settings.attention
        wanted = max(chosen.layer + depth, 0) if chosen.layer < 0 else chosen.layer
        averages_all = num_averaged == num_heads
        has_heads = averages_all if chosen.head is None else (chosen.head, num_averaged) == (0, 1)
        if wanted != layer or not has_heads:
            heads = "all heads" if averages_all else f"the first {num_averaged} heads"
            raise UserError(
                f"This CTranslate2 model has the attention of {heads} of decoder layer {layer} "
                f"only, not of layer {chosen.layer} with head {chosen.head}."
            )


def length_divisor(decode: DecodeConfig) -> float:
    """The exponent of a hypothesis's length by which CTranslate2 divides its log-probability."""
    by_power = decode.method == "beam" and decode.length_penalty_kind == "power"
    return decode.length_penalty if by_power and decode.length_penalty else NO_PENALTY


def arguments(
    decode: DecodeConfig, num_hypotheses: int, target_tokens: list[str]
) -> dict[str, Any]:
    """Arguments of `translate_batch`, without the limit of the length.

    Args:
      decode: settings of the search that `check` has accepted.
      num_hypotheses: hypotheses or samples that are wanted.
      target_tokens: CTranslate2's name of each id.
    """
    options: dict[str, Any] = {
        "beam_size": 1,
        "num_hypotheses": num_hypotheses,
        "length_penalty": length_divisor(decode),
        # CTranslate2 counts without the end symbol.
        "min_decoding_length": max(0, decode.min_decode_len - 1),
        "repetition_penalty": decode.repetition_penalty,
        "no_repeat_ngram_size": decode.no_repeat_ngram_size,
        "max_input_length": 0,  # the encoder has cut what is too long
        "return_scores": True,
        "return_end_token": True,
    }
    if decode.shortlist:
        options["use_vmap"] = True
    if decode.suppressed_ids:
        options["suppress_sequences"] = [[target_tokens[i]] for i in decode.suppressed_ids]
    if decode.method == "beam":
        # All beams, because they are ranked again by our penalty.
        options |= {"beam_size": decode.beam_size, "num_hypotheses": decode.beam_size}
    else:
        options |= {
            "sampling_topk": min(decode.top_k, len(target_tokens)),
            "sampling_topp": decode.top_p,
            "sampling_temperature": decode.temperature,
        }
    return options
