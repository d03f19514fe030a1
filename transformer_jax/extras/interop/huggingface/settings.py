"""Hugging Face's config.json, and generation_config.json as our search settings.

Each setting is supported or refused by name.
"""

import json
from typing import Any

from etils import epath

from transformer_jax.config import DecodeConfig
from transformer_jax.config.decode_fields import AtLimit
from transformer_jax.config.fields import TieEmbeddings
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import families
from transformer_jax.extras.interop.huggingface.families import Family

OWN_KEY = "transformer_jax"  # key of config.json for what our export stores for our import

# Generation settings -> values without effect, besides None. Other values are refused.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "do_sample": (False,),
    "min_new_tokens": (0,),
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0.0,),
    "num_return_sequences": (1,),
    "guidance_scale": (1.0,),
    "remove_invalid_values": (False,),
    "token_healing": (False,),
    "use_mtp": (False,),
    **dict.fromkeys(
        ("exponential_decay_length_penalty", "begin_suppress_tokens", "sequence_bias",
         "watermarking_config", "constraints", "force_words_ids", "stop_strings", "max_time",
         "penalty_alpha", "dola_layers", "prompt_lookup_num_tokens", "forced_decoder_ids"),
        (),
    ),
}  # fmt: skip


def read_json(path: epath.Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
      UserError: the file is missing or holds something else.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} has no {path.name}.") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}.") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} must hold a JSON object.")
    return tree


def write_json(path: epath.Path, tree: dict[str, Any]) -> None:
    """Writes an object as Hugging Face does, indented."""
    path.write_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


class Settings:
    """Settings of a directory by name; a missing one has the default of the model class."""

    def __init__(self, folder: epath.Path):
        self.folder = folder
        self.raw = read_json(folder / "config.json")
        model_type = self.raw.get("model_type")
        if model_type not in families.FAMILIES:
            raise UserError(
                f"{folder}/config.json: model_type={model_type!r} is not supported; "
                f"{', '.join(families.FAMILIES)} are."
            )
        self.family: Family = families.FAMILIES[model_type]
        path = folder / "generation_config.json"
        # As in Hugging Face, config.json has the generation settings only if this file is missing.
        self.generation = read_json(path) if path.exists() else self.raw
        self.forced_eos_by_class = not path.exists()

    def get(self, name: str, default: Any = None) -> Any:
        """A setting of config.json, by the name that BART's config has for it."""
        name = self.family.keys.get(name, name)
        value = self.raw.get(name)
        return self.family.defaults.get(name, default) if value is None else value

    def need(self, name: str) -> int:
        """An integer setting of config.json.

        Raises:
          UserError: it is missing or of another type.
        """
        value = self.get(name)
        name = self.family.keys.get(name, name)
        if type(value) is not int:
            raise UserError(f"{self.folder}/config.json: {name}={value!r} must be an integer.")
        return value

    def token_id(self, name: str) -> int:
        """A special id; generation_config.json may override all but the padding id."""
        value = None if name == "pad_token_id" else self.generation.get(name)
        value = self.get(name) if value is None else value
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if type(value) is not int:
            raise UserError(f"{self.folder}: {name}={value!r} must be one id.")
        return value

    @property
    def decoder_vocab_size(self) -> int:
        """Tokens of the target vocabulary."""
        if self.shared:
            return self.need("vocab_size")
        return self.get("decoder_vocab_size") or self.need("vocab_size")

    @property
    def shared(self) -> bool:
        """Whether source and target have one vocabulary."""
        return self.family.one_vocabulary or bool(self.get("share_encoder_decoder_embeddings"))

    @property
    def tied_output(self) -> bool:
        """Whether the projection to the vocabulary is the target embedding."""
        return bool(self.get("tie_word_embeddings", True))

    def tying(self, tied_output: bool) -> TieEmbeddings:
        """Which tables are one, given whether the output's is the target's."""
        if tied_output:
            return "all" if self.shared else "decoder"
        return "inputs" if self.family.is_t5 else "none"


def decode_config(settings: Settings) -> DecodeConfig:
    """The search that `generate` would run.

    Raises:
      UserError: naming a setting that is not supported.
    """
    generation, where = settings.generation, settings.folder
    for name, neutral in NEUTRAL.items():
        value = generation.get(name)
        if value is not None and value not in neutral:
            raise UserError(f"{where}: generation setting {name}={value!r} is not supported.")
    early = generation.get("early_stopping")
    if early not in families.EARLY_STOPPING:
        raise UserError(f'{where}: early_stopping={early!r} must be true, false or "never".')
    length_penalty = generation.get("length_penalty")
    max_len = settings.need("max_position_embeddings")
    longest = generation.get("max_new_tokens") or (generation.get("max_length") or max_len + 1) - 1
    return DecodeConfig(
        beam_size=generation.get("num_beams") or 1,
        length_penalty=1.0 if length_penalty is None else float(length_penalty),
        length_penalty_kind="power",
        stopping=families.EARLY_STOPPING[early],
        # Hugging Face's length counts the decoder's start symbol.
        max_decode_len=max(1, min(longest, max_len)),
        max_decode_ratio=float(max_len),
        at_limit=_at_limit(settings),
        suppressed_ids=_suppressed(settings),
        renormalize=bool(generation.get("renormalize_logits")),
        # Hugging Face's length counts the start symbol, ours the end symbol: they are equal.
        min_decode_len=generation.get("min_length") or 0,
        no_repeat_ngram_size=generation.get("no_repeat_ngram_size") or 0,
    )


def _at_limit(settings: Settings) -> AtLimit:
    forced = settings.generation.get("forced_eos_token_id")
    if forced is None and settings.forced_eos_by_class:
        forced = settings.family.defaults["forced_eos_token_id"]
    if forced is None:
        return "cut"
    eos = settings.token_id("eos_token_id")
    if forced not in (eos, [eos]):
        raise UserError(
            f"{settings.folder}: forced_eos_token_id={forced!r} is not the end symbol, {eos}."
        )
    return "free_end"


def _suppressed(settings: Settings) -> tuple[int, ...]:
    eos, size = settings.token_id("eos_token_id"), settings.decoder_vocab_size
    ids = set(settings.generation.get("suppress_tokens") or ())
    for sequence in settings.generation.get("bad_words_ids") or ():
        if len(sequence) != 1:
            raise UserError(
                f"{settings.folder}: bad_words_ids has {sequence}; only single tokens can be "
                "suppressed."
            )
        ids.update(i for i in sequence if i != eos)
    if not all(type(i) is int and 0 <= i < size for i in ids):
        raise UserError(
            f"{settings.folder}: bad_words_ids or suppress_tokens holds {sorted(ids)}, "
            f"but the vocabulary has {size} tokens."
        )
    return tuple(sorted(ids))
