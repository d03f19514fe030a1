"""`Translator`: a trained model as a Python object."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
from etils import epath

from transformer_jax import checkpoint as checkpoint_lib
from transformer_jax import workdir as workdir_lib
from transformer_jax.config import Config, validate
from transformer_jax.data.tokenizer import TokenizerPair
from transformer_jax.decoding.engine import Engine, Translation
from transformer_jax.errors import UserError
from transformer_jax.model import init_params


class Translator:
    """Translates and scores text.

    Example:
      >>> t = Translator.load("runs/quickstart", checkpoint="best")
      >>> t.translate(["thirty-four"])[0].text
      'vierunddreißig'
    """

    def __init__(self, config: Config, tokenizers: TokenizerPair, params: Any, step: int = 0):
        self.config = config
        self.params = params
        self.checkpoint_step = step
        self.engine = Engine(config, tokenizers)

    @classmethod
    def load(
        cls, path: epath.PathLike, checkpoint: str = "best", config: Config | None = None
    ) -> "Translator":
        """Reads a work directory.

        Args:
          path: of the work directory.
          checkpoint: `best`, `latest`, a step, or `average:N`.
          config: instead of the work directory's own, for other data or search settings.

        Raises:
          UserError: where the directory, the checkpoint or the tokenizer is missing or damaged.
        """
        config = validate(config or workdir_lib.read_config(path))
        tokenizers = workdir_lib.read_tokenizers(path)
        target = jax.eval_shape(lambda: init_params(config.model, jax.random.key(0)))
        params, step = checkpoint_lib.load_params(path, str(checkpoint), config.checkpoint, target)
        return cls(config, tokenizers, params, step)

    def translate(self, texts: Iterable[str], **settings: Any) -> list[Translation]:
        """The best translation of each text, in order; `settings` as in `translate_n_best`."""
        return [best[0] for best in self.translate_n_best(texts, 1, **settings)]

    def translate_n_best(
        self, texts: Iterable[str], num_hypotheses: int, target_lang: str = "", **settings: Any
    ) -> Iterator[list[Translation]]:
        """The `num_hypotheses` best translations of each text, lazily.

        Args:
          texts: any iterable.
          num_hypotheses: at most the beam size.
          target_lang: of a multilingual model; "": the config's.
          **settings: fields of `DecodeConfig` that replace the config's, such as beam_size.

        Raises:
          UserError: an unknown or impossible setting.
        """
        if isinstance(texts, str):
            raise UserError("translate takes a list of texts, not one string.")
        try:
            decode = dataclasses.replace(self.config.decode, **settings)
        except TypeError as error:
            names = ", ".join(field.name for field in dataclasses.fields(self.config.decode))
            raise UserError(
                f"Unknown search setting among {', '.join(settings)}; there are {names}."
            ) from error
        validate(dataclasses.replace(self.config, decode=decode))
        if not 1 <= num_hypotheses <= decode.beam_size:
            raise UserError(
                f"{num_hypotheses} hypotheses need a beam of at least that size, "
                f"not {decode.beam_size}."
            )
        return self.engine.translate(self.params, texts, decode, num_hypotheses, target_lang)

    def score(
        self, sources: Sequence[str], targets: Sequence[str], target_lang: str = ""
    ) -> list[float]:
        """Natural-log probability of each target's pieces and its end, without length penalty."""
        if len(sources) != len(targets):
            raise UserError(f"{len(sources)} sources cannot be scored with {len(targets)} targets.")
        scored = self.engine.score(self.params, sources, targets, target_lang)
        return [pair.log_prob for pair in scored]
