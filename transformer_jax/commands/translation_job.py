"""What a process needs to translate many lines: a model, its settings, and what to write."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

from etils import epath

from transformer_jax.data import shortlist
from transformer_jax.extras.documents.training_pairs import PairRules
from transformer_jax.extras.interop.huggingface import hub
from transformer_jax.translator import pretrained
from transformer_jax.translator.translator import Translator
from transformer_jax.workdir import compilation_cache, digests, directory_kinds, params
from transformer_jax.workdir import folder as workdir_lib

Chunk = list[str]


@dataclasses.dataclass(frozen=True)
class Job:
    """What a process needs to translate; calling it loads the model.

    Attributes:
      model, checkpoint: as of `Translator.load`.
      settings: of `Translator.translate`.
      ensemble: further (path, checkpoint).
      source_prefix: text before every source; "": that of the model.
      pairs: the output is pairs for training; None: translations.
      steps: of the checkpoints of each run, of the model and of the ensemble.
      contents: digests of the models that are no runs.
      shortlist: digest of the model's, where the search has one.
      text_languages: `source_lang` and `target_lang` of the text, where `settings` have none.
    """

    model: str
    checkpoint: str
    settings: dict[str, Any]
    ensemble: tuple[tuple[str, str], ...] = ()
    source_prefix: str = ""
    pairs: PairRules | None = None
    steps: tuple[tuple[int, ...], ...] = ()
    contents: tuple[str, ...] = ()
    shortlist: str = ""
    text_languages: dict[str, str] | None = None

    @classmethod
    def of_models(
        cls, models: Sequence[tuple[str, str]], settings: dict[str, Any], **fields: Any
    ) -> "Job":
        """The job of one model or an ensemble; it stays the same while these are trained.

        Args:
          models: (path, checkpoint) of each.
          settings: of `Translator.translate`.
          **fields: other attributes.

        Raises:
          UserError: there is no such model or checkpoint.
        """
        fixed, steps, contents = [], [], []
        for path, checkpoint in models:
            if directory_kinds.is_run(path):
                config = workdir_lib.read_config(path).checkpoint
                chosen = tuple(params.choose_steps(path, checkpoint, config))
                steps.append(chosen)
                if checkpoint in ("best", "latest"):
                    checkpoint = str(chosen[0])
            else:
                contents.append(digests.of_model(epath.Path(hub.locate(path)), shortlist.NAME))
            fixed.append((_absolute(path), checkpoint))
        (model, checkpoint), *others = fixed
        has_shortlist = settings.get("shortlist")
        if has_shortlist is None:
            has_shortlist = pretrained.read_config(model).decode.shortlist
        learned = shortlist.file_in(model) if has_shortlist else None
        fields["shortlist"] = digests.of_file(learned) if learned else ""
        fields |= {"steps": tuple(steps), "contents": tuple(contents)}
        return cls(model, checkpoint, settings, tuple(others), **fields)

    def description(self) -> dict[str, Any]:
        """All that determines the output, without what has its default."""
        fields = dataclasses.fields(self)
        values = dataclasses.asdict(self)
        values["settings"].pop("batch_tokens", None)  # changes memory and speed only
        return {field.name: v for field in fields if (v := values[field.name]) != field.default}

    def __call__(self) -> Callable[[Chunk], list[str]]:
        compilation_cache.keep_programs()
        config = None
        if self.source_prefix:
            config = pretrained.read_config(self.model)
            data = dataclasses.replace(config.data, source_prefix=self.source_prefix)
            config = dataclasses.replace(config, data=data)
        translator = Translator.load(self.model, self.checkpoint, config, ensemble=self.ensemble)
        settings = {name: value for name, value in self.settings.items() if value is not None}
        data = translator.config.data
        if self.text_languages and _names_languages(translator):
            settings = self.text_languages | settings
        source_lang = settings.get("source_lang") or data.source_lang
        target_lang = settings.get("target_lang") or data.target_lang

        def translate(chunk: Chunk) -> list[str]:
            outputs = translator.translate(chunk, **settings)
            return [" ".join(out.text.split("\n")) for out in outputs]  # each is a line

        def make_pairs(chunk: Chunk) -> list[str]:
            n_best = translator.translate(chunk, n_best=rules.n_best, **settings)
            pairs = zip(chunk, n_best, strict=True)
            return ["\n".join(rules.lines(*pair, source_lang, target_lang)) for pair in pairs]

        rules = self.pairs or PairRules()
        return make_pairs if self.pairs else translate


def _absolute(path: str) -> str:
    """The path of a model on this machine in one form; a bucket's, or a name on the Hub, as is."""
    return os.path.abspath(path) if os.path.exists(path) else path


def _names_languages(translator: Translator) -> bool:
    """Whether a model says which languages it has; those of T5 do not."""
    data = translator.config.data
    return translator.tokenizers.has_language_tags or (
        (data.source_lang, data.target_lang) != ("source", "target")
    )
