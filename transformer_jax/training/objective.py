"""The loss of a batch: cross-entropy, and the terms that settings of `train` add to it.

Letters of shapes: B batch, S source length, T target length, M d_model, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from transformer_jax.config import Config
from transformer_jax.config.loss_terms import num_passes
from transformer_jax.model.transformer import Params, Transformer, alignment_head
from transformer_jax.ops import losses
from transformer_jax.ops.masks import make_segment_mask


class Pass(NamedTuple):
    """One pass of a batch through the model, with dropout."""

    hidden: jax.Array  # [B * T, M] output of the decoder
    intermediates: Params  # what layers have sown; empty if no term reads it


class Objective:
    """The loss of one run.

    Args:
      config: of the run.
      model: of the run.
    """

    def __init__(self, config: Config, model: Transformer):
        self.config, self.model = config, model
        self._terms = {name: term for name, term in TERMS.items() if getattr(config.train, name)}

    def loss_sums(
        self, params: Params, batch: dict[str, jax.Array], rng: jax.Array
    ) -> losses.LossSums:
        """Sums over the target tokens of a batch, without an array of all logits `[B, T, V]`.

        With `train.r_drop`, the loss is the mean loss of two passes with different dropout masks,
        plus the divergence between them.

        Args:
          params: of the model.
          batch: arrays `[B, S]` and `[B, T]`, as `data.loader.make_batch` returns them.
          rng: key of the dropout.
        """
        train = self.config.train
        count = num_passes(train)
        rngs = jax.random.split(rng, count) if count > 1 else [rng]
        passes = [self._pass(params, batch, one) for one in rngs]
        apply: Callable[..., Any] = self.model.apply
        # [V, M], and [V] or None
        table, bias = apply({"params": params}, method="output_projection")
        sums = losses.projected_cross_entropy(
            passes[0].hidden,
            table,
            batch["targets"].reshape(-1),  # --> [B * T]
            batch["loss_mask"].reshape(-1),  # --> [B * T]
            train.label_smoothing,
            bias=bias,
            softcap=self.config.model.logit_softcap,
            second=passes[1].hidden if train.r_drop else None,
            r_drop=train.r_drop,
        )
        loss = sums.loss
        for name, term in self._terms.items():
            values = [term(self.config, one, batch) for one in passes]
            loss += getattr(train, name) * (sum(values[1:], values[0]) / count)
        return sums._replace(loss=loss)

    def _pass(self, params: Params, batch: dict[str, jax.Array], rng: jax.Array) -> Pass:
        # Flax annotates `apply` to return (output, variables). It returns the output alone where
        # nothing is mutable.
        apply: Callable[..., Any] = self.model.apply
        output = apply(
            {"params": params},
            batch,
            deterministic=False,
            rngs={"dropout": rng},
            method="hidden",
            mutable=["intermediates"] if self._terms else False,
        )
        hidden, collected = output if self._terms else (output, {"intermediates": {}})
        return Pass(hidden.reshape(-1, hidden.shape[-1]), collected["intermediates"])


def _alignment_loss(config: Config, one: Pass, batch: dict[str, jax.Array]) -> jax.Array:
    """Sum over target tokens of the loss that guides the alignment head (Garg et al., 2019).

    The head should attend to the source of the token that the decoder reads. Garg et al. guide it
    at the step that writes the token, where it is not known yet, and read it in a further pass over
    the entire target.
    """
    model = config.model.for_decoder()
    layer, head = alignment_head(model.num_decoder_layers)
    key_head = head * model.resolved_kv_heads // model.num_heads
    attention = one.intermediates[f"decoder_layers_{layer}"]["cross_attention"]
    (queries,), (keys,) = attention["queries"], attention["keys"]
    return losses.alignment_loss(
        queries[:, :, head],
        keys[:, :, key_head],
        batch["alignment"],
        make_segment_mask(batch["targets_segment_ids"], batch["inputs_segment_ids"])[:, 0],
        model.resolved_attention_scale,
        model.attention_softcap,
    )


Term = Callable[[Config, Pass, dict[str, jax.Array]], jax.Array]
# Setting of `train` -> the sum over target tokens of a term, of one pass. `r_drop` is none of them:
# the cross-entropy computes it chunk by chunk.
TERMS: dict[str, Term] = {"alignment_weight": _alignment_loss}
