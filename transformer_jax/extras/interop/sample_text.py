"""Sentences that an export is checked on, with their references where there are any."""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from etils import epath

from transformer_jax.config import Config
from transformer_jax.data import sources, text_lines
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import hub
from transformer_jax.workdir import directory_kinds, history

MAX_SENTENCES = 500
Pair = tuple[str, str]  # source and reference


class SampleText(NamedTuple):
    """Sentences and their translations.

    Attributes:
      sentences: source text.
      references: their translations; empty: there are none.
      name: what the sentences are, such as "the validation set".
    """

    sentences: tuple[str, ...]
    references: tuple[str, ...] = ()
    name: str = "the sentences"

    def select(self, kept: Iterable[bool]) -> "SampleText":
        """The sentences for which `kept` is true."""
        kept = list(kept)
        return self._replace(
            sentences=tuple(itertools.compress(self.sentences, kept)),
            references=tuple(itertools.compress(self.references, kept)),
        )

    def head(self, count: int) -> "SampleText":
        """The first `count` sentences."""
        return self.select([True] * count)


def find(
    path: epath.PathLike, config: Config, sentences: str = "", references: str = ""
) -> SampleText:
    """At most MAX_SENTENCES sentences to check an export on.

    Args:
      path: of the model.
      config: of the model.
      sentences: a file with one sentence a line; "": the validation set if it can be read, else the
        test set, else the samples of the run.
      references: a file with the translation of each line of `sentences`; "": there is none.

    Raises:
      UserError: there is no text, or it does not fit its references.
    """
    if sentences:
        return _read_files(sentences, references)
    if references:
        raise UserError(
            f"`references={references}` translates the lines of a file; name it by `sentences`."
        )
    if not directory_kinds.is_hugging_face(hub.locate(path)):
        for name, pairs in _of_run(path, config):
            pairs = [pair for pair in pairs if pair[0]][:MAX_SENTENCES]
            if pairs:
                texts, translations = zip(*pairs, strict=True)
                return SampleText(texts, translations, name)
    raise UserError(
        f"{path} has no sentences to compare the exported model on. Set `sentences` to a file of "
        "source text, and `references` to a file of its translations if you have them."
    )


def _read_files(sentences: str, references: str) -> SampleText:
    lines = _read_lines(sentences, "sentences")
    translations = _read_lines(references, "references") if references else [""] * len(lines)
    if len(lines) != len(translations):
        raise UserError(
            f"{sentences} has {len(lines)} lines, but {references} (`references`) "
            f"{len(translations)}; it needs one for each."
        )
    text = SampleText(tuple(lines), tuple(translations), sentences)
    text = text.select(map(bool, lines)).head(MAX_SENTENCES)
    if not text.sentences:
        raise UserError(f"{sentences} (`sentences`) has no text.")
    return text if references else text._replace(references=())


def _read_lines(path: str, name: str) -> list[str]:
    if not epath.Path(path).exists():
        raise UserError(f"There is no file {path} (`{name}`).")
    return list(text_lines.read_lines(epath.Path(path)))


def _of_run(path: epath.PathLike, config: Config) -> Iterator[tuple[str, list[Pair]]]:
    """Yields each text of a run that can be read here, by name."""
    for split in ("validation", "test"):
        try:
            corpora = sources.open_corpora(config.data, split)
            pairs = itertools.chain.from_iterable(corpus.read() for corpus in corpora)
            yield f"the {split} set", list(itertools.islice(pairs, 2 * MAX_SENTENCES))
        except UserError:  # the model was moved to a machine without its data
            continue
    yield "the run's samples", _samples(path)


def of_samples(path: epath.PathLike) -> SampleText | None:
    """The samples that training wrote into a run; None: there are none."""
    pairs = _samples(path)
    if not pairs:
        return None
    texts, translations = zip(*pairs, strict=True)
    return SampleText(texts, translations, "the run's samples")


def _samples(path: epath.PathLike) -> list[Pair]:
    samples = epath.Path(path) / "samples.jsonl"
    written = history.read_lines(samples) if samples.exists() else []
    return list({sample["source"]: sample["reference"] for sample in written}.items())
