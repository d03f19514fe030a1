"""The data of pictures, from a model or a work directory."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from transformer_jax.config import Config, ModelConfig
from transformer_jax.data import sources
from transformer_jax.data.plans import batch_plan
from transformer_jax.data.plans.pair_selection import select_pairs
from transformer_jax.data.token_cache import tokenize_corpora
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import Transformer
from transformer_jax.translator import batching
from transformer_jax.translator.translator import Translator
from transformer_jax.workdir import folder as workdir_lib
from transformer_jax.workdir import history


@dataclasses.dataclass(frozen=True)
class SentenceAttention:
    """Attention weights of a sentence pair under a model, all layers and heads.

    A row of `decoder` and `cross` is the position that writes a token of `target`.
    """

    source: tuple[str, ...]  # S tokens, the end symbol included
    target: tuple[str, ...]  # T tokens, the end symbol included
    read: tuple[str, ...]  # T tokens that the decoder reads: the start symbol, then `target`
    encoder: np.ndarray  # [L, H, S, S]
    decoder: np.ndarray  # [L, H, T, T]
    cross: np.ndarray  # [L, H, T, S]

    def of(self, which: str) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
        """Weights `[L, H, T, S]`, and the labels of rows and columns."""
        rows, columns = {
            "encoder": (self.source, self.source),
            "decoder": (self.target, self.read),
            "cross": (self.target, self.source),
        }[which]
        return getattr(self, which), rows, columns


def sentence_attention(
    translator: Translator,
    source: str,
    target: str | None = None,
    target_lang: str = "",
    source_lang: str = "",
) -> SentenceAttention:
    """Attention of a model on a sentence and its translation.

    Args:
      translator: its model; of an ensemble, the first one.
      source: text.
      target: text; None: the model's translation.
      target_lang: for a multilingual model; empty: the config's.
      source_lang: for a model that reads it; empty: the config's.

    Raises:
      UserError: the source is empty, or a side is longer than the model reads.
    """
    engine, ids, tokenizers = translator.engine, translator.engine.ids, translator.tokenizers
    (source_ids,) = engine.encoder(target_lang, source_lang).source_ids([source])
    if not source_ids:
        raise UserError("The source is empty: there is no text to show attention for.")
    source_ids = [*source_ids, ids.source_eos]
    _check_length(source, source_ids, engine.max_len)
    if target is None:
        (best,) = translator.translate([source], target_lang=target_lang, source_lang=source_lang)
        text_ids = list(best.ids)
    else:
        text_ids = tokenizers.target.encode(target)
    # The decoder reads its language tag too.
    target_ids = [*engine.language_tags(target_lang, source_lang)[1], *text_ids, ids.target_eos]
    _check_length(target or source, target_ids, engine.max_len)
    params = translator.params
    inputs = [ids.decoder_start, *target_ids[:-1]]
    encoder, decoder, cross = _weights(translator.config.model)(
        params[0] if isinstance(params, tuple) else params,
        *_padded(source_ids, ids.source_pad, engine.max_len),
        *_padded(inputs, ids.target_pad, engine.max_len),
    )
    s, t = len(source_ids), len(target_ids)
    return SentenceAttention(
        tuple(tokenizers.source.tokens(source_ids)),
        tuple(tokenizers.target.tokens(target_ids)),
        tuple(tokenizers.target.tokens(inputs)),
        np.asarray(encoder, np.float64)[..., :s, :s],
        np.asarray(decoder, np.float64)[..., :t, :t],
        np.asarray(cross, np.float64)[..., :t, :s],
    )


def _check_length(text: str, ids: list[int], limit: int) -> None:
    if len(ids) > limit:
        raise UserError(
            f"{text[:40]!r}… has {len(ids)} tokens and the model reads at most {limit}: give a "
            "shorter sentence."
        )


def _padded(tokens: list[int], pad: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and segment ids `[1, length]`. Lengths are multiples of 32, so programs are few."""
    size = min(-(-len(tokens) // 32) * 32, longest)
    padded = batching.pad_rows([tokens], 1, size, pad)
    return np.asarray(padded.ids), np.asarray(padded.mask(), np.int32)


@functools.lru_cache(maxsize=4)
def _weights(model: ModelConfig) -> Callable[..., tuple[jax.Array, ...]]:
    """A compiled function that returns a model's attention weights.

    Its arguments are the parameters, then ids and segment ids `[1, S]` of the source and `[1, T]`
    of the decoder's inputs. It returns weights of encoder `[L, H, S, S]`, decoder `[L, H, T, T]`
    and cross-attention `[L, H, T, S]`.
    """
    apply = Transformer(model).apply

    @jax.jit
    def weights(params, inputs, source_segments, decoder_inputs, target_segments):
        def run(module):
            encoded = module.encode(inputs, segment_ids=source_segments)
            return module.decode(
                encoded,
                decoder_inputs,
                segment_ids=target_segments,
                source_segment_ids=source_segments,
            )

        _, state = apply({"params": params}, method=run, mutable=["intermediates"])

        def stack_layers(side: str, depth: int, part: str) -> jax.Array:
            layers = [state["intermediates"][f"{side}_layers_{n}"][part] for n in range(depth)]
            return jnp.stack([layer["weights"][0][0] for layer in layers])

        return (
            stack_layers("encoder", model.num_encoder_layers, "self_attention"),
            stack_layers("decoder", model.num_decoder_layers, "self_attention"),
            stack_layers("decoder", model.num_decoder_layers, "cross_attention"),
        )

    return weights


def corpus_lengths(
    config: Config, workdir: epath.PathLike, split: str = "train"
) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """Lengths of a corpus in tokens, and the share of padding in its batches.

    Args:
      config: of the run.
      workdir: of the run, for its tokenizer and its metrics.
      split: train, validation or test.

    Returns:
      Lengths `[pairs]` of source and target, and for each kind of batches its share of padding.
      That of "this run" was measured by the training; the others are computed.
    """
    tokenizers = workdir_lib.read_tokenizers(workdir)
    corpora = sources.open_corpora(config.data, split)
    corpus = tokenize_corpora(corpora, tokenizers, config.data)
    selection = select_pairs(
        corpus.source.lengths,
        corpus.target.lengths,
        config.data.max_len,
        max_ratio=config.data.max_ratio,
    )
    kinds: dict[str, dict[str, Any]] = {
        "packed": {"batching": "pack", "batch_sentences": 0},
        "in buckets": {"batching": "bucket", "batch_sentences": 0},
    }
    # At least one packed row: a run with `batch_sentences` may name fewer tokens.
    row = max(config.data.pack_len, config.data.max_len)
    tokens = max(config.data.batch_tokens, row)
    padding = {}
    if split == "train" and (epath.Path(workdir) / "metrics.jsonl").exists():
        measured = [line["padding"] for line in history.read_metrics(workdir) if "padding" in line]
        padding["this run"] = float(np.mean(measured))
    for name, changes in kinds.items():
        data = dataclasses.replace(config.data, batch_tokens=tokens, **changes)
        plan = batch_plan.make_plan(selection, dataclasses.replace(config, data=data))
        padding[name] = batch_plan.padding_share(plan, selection)
    source, target = selection.source_lengths, selection.target_lengths
    longest = len(source) * (source.max() + target.max())
    padding["all as the longest"] = 1.0 - float((source.sum() + target.sum()) / longest)
    return source, target, padding
