"""The evaluation of a model while it is trained."""

import dataclasses
import logging

import jax

from transformer_jax import distributed
from transformer_jax.config import Config, DecodeConfig
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.evaluation import chosen_metrics
from transformer_jax.training.runners import Runner
from transformer_jax.training.step import PyTree, TrainState
from transformer_jax.translator import model_metrics
from transformer_jax.translator.engine import Engine
from transformer_jax.translator.jax_batch_runner import JaxBatchRunner

NUM_SAMPLES = 5


class Evaluator:
    """Scores and translates pairs of source and reference, greedily or by beam search.

    A model that is sharded stays so. The devices then search together.

    Args:
      config: of the run.
      tokenizers: of the run.
      runner: has the state on its devices.
    """

    def __init__(self, config: Config, tokenizers: TokenizerPair, runner: Runner):
        self._config, self._runner = config, runner
        self._shardings = runner.model_shardings if runner.shards_model else None
        self._batch_runner = JaxBatchRunner(config, tokenizers, shardings=self._shardings)
        self._engine = Engine(config, tokenizers, self._batch_runner)
        # Without adapters, `jit` would only copy.
        self._model_params = (
            jax.jit(runner.train_step.model_params, out_shardings=self._shardings)
            if config.train.lora_rank
            else dict  # which the batch runner will empty
        )

    def __call__(
        self, state: TrainState, pairs: list[tuple[str, str]]
    ) -> tuple[dict[str, float | str], list[dict[str, str]]]:
        """Evaluates the average of the parameters, where one is kept.

        Args:
          state: in the runner's layout.
          pairs: the validation set.

        Returns:
          Metrics by name, which begins with `eval_`: numbers, and the signatures of BLEU, of
          chrF and of the metric that chooses the best checkpoint.
          The first few translations, each with `source`, `reference` and `hypothesis`.
        """
        config, decode = self._config, evaluation_search(self._config)
        scores, outputs = model_metrics.evaluate(
            self._engine, self._batch_runner.take(self._params(state)), pairs, decode
        )
        metrics = {f"eval_{name}": value for name, value in dataclasses.asdict(scores).items()}
        texts = [output.text for output in outputs]
        metrics |= distributed.run_on_primary(lambda: _chosen_score(config, texts, pairs), "metric")
        samples = [
            {"source": source, "reference": reference, "hypothesis": text}
            for (source, reference), text in zip(pairs, texts, strict=True)
        ]
        return metrics, samples[:NUM_SAMPLES]

    def _params(self, state: TrainState) -> PyTree:
        """A new tree of the model's: sharded, or all of them on this process's first device."""
        params = state.params if state.ema is None else state.ema
        # Without the optimizer's state, which another layout would copy.
        alone = dataclasses.replace(state, params=params, opt_state=(), ema=None)
        params = self._runner.to_checkpoint_layout(alone).params
        if self._shardings is None:
            params = jax.tree.map(lambda x: x.addressable_data(0), params)
        return self._model_params(params)


def evaluation_search(config: Config) -> DecodeConfig:
    """The search of evaluations; `train.eval_beam_size` replaces the beam size of `decode`."""
    return dataclasses.replace(
        config.decode,
        method="beam",
        beam_size=config.train.eval_beam_size,
        beam_groups=1,
        shortlist=False,  # it is made when the model is trained
    )


def _chosen_score(
    config: Config, texts: list[str], pairs: list[tuple[str, str]]
) -> dict[str, float | str]:
    """The score that chooses the best checkpoint and its signature, if it is not there anyway."""
    name = config.checkpoint.best_metric.removeprefix("eval_")
    if name not in chosen_metrics.NAMES:
        return {}
    command = config.checkpoint.comet_command
    try:
        (statistics,) = chosen_metrics.statistics(
            [name], texts, pairs, command, config.data.target_lang
        )
    except UserError as error:
        logging.warning("%s This evaluation has no %s, so it is not the best.", error, name)
        return {}
    return {f"eval_{name}": statistics.total, f"eval_{name}_signature": statistics.signature}
