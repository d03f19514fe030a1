"""`Translator`: a trained model as a Python object."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from etils import epath

from transformer_jax.config import Config
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.decoding.engine import Engine, Translation
from transformer_jax.errors import UserError
from transformer_jax.interop import pretrained
from transformer_jax.validation import validate


class Translator:
    """Translates and scores text.

    Example:
      >>> t = Translator.load("runs/quickstart", checkpoint="best")
      >>> t.translate(["thirty-four"])[0].text
      'vierunddreißig'
    """

    def __init__(self, config: Config, tokenizers: TokenizerPair, params: Any, step: int = 0):
        self.config = config
        self.tokenizers = tokenizers
        self.params = params
        self.checkpoint_step = step
        self.engine = Engine(config, tokenizers)

    @classmethod
    def load(
        cls,
        path: epath.PathLike,
        checkpoint: str = "best",
        config: Config | None = None,
        allow_pickle: bool = False,
    ) -> "Translator":
        """Reads a work directory, or a Hugging Face Marian, M2M-100 or NLLB directory.

        Args:
          path: of the directory.
          checkpoint: of a work directory: `best`, `latest`, a step, or `average:N`.
          config: instead of the directory's own, for other data or search settings.
          allow_pickle: also read a Hugging Face `pytorch_model.bin`, which needs torch.

        Raises:
          UserError: where something is missing, damaged or not supported.
        """
        model = pretrained.load(path, str(checkpoint), config, allow_pickle)
        return cls(model.config, model.tokenizers, model.params, model.step)

    def translate(self, texts: Iterable[str], **settings: Any) -> list[Translation]:
        """The best translation of each text, in order; `settings` as in `translate_n_best`."""
        return [best[0] for best in self.translate_n_best(texts, 1, **settings)]

    def translate_n_best(
        self,
        texts: Iterable[str],
        num_hypotheses: int,
        target_lang: str = "",
        source_lang: str = "",
        **settings: Any,
    ) -> Iterator[list[Translation]]:
        """The `num_hypotheses` best translations of each text, lazily.

        Args:
          texts: any iterable.
          num_hypotheses: at most the beam size.
          target_lang: of a multilingual model; "": the config's.
          source_lang: of a model that is told this too (M2M-100, NLLB); "": the config's.
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
        return self.engine.translate(
            self.params, texts, decode, num_hypotheses, target_lang, source_lang
        )

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        target_lang: str = "",
        source_lang: str = "",
    ) -> list[float]:
        """Natural-log probability of each target's pieces and its end, without length penalty."""
        if len(sources) != len(targets):
            raise UserError(f"{len(sources)} sources cannot be scored with {len(targets)} targets.")
        scored = self.engine.score(
            self.params, sources, targets, target_lang, source_lang=source_lang
        )
        return [pair.log_prob for pair in scored]
