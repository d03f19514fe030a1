"""The embedded corpus: English number words and the same numbers in another language.

German says units before tens ("vierunddreißig"), so a model must learn to reorder. The corpus is
real language, can be scored exactly, and needs no download.
"""

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import num2words
import tensorflow_datasets as tfds

LANGUAGES = ("de", "fr", "es", "cs")
SMALL = 1000  # all numbers below are in the training split
# Those below are in it 30 times: they are what people try first, and a short training reads hardly
# one epoch.
SMALLEST, COPIES = 100, 30
LARGEST = 999_999
SIZES = {"train": 20_000, "validation": 500, "test": 1000}
SEED = 2017


def split_numbers() -> dict[str, list[int]]:
    """The numbers of each split: disjoint, and the same on every machine."""
    rng = random.Random(SEED)
    small = [*range(SMALL), *[*range(SMALLEST)] * (COPIES - 1)]
    drawn = rng.sample(range(SMALL, LARGEST + 1), sum(SIZES.values()) - SMALL)
    held_out = SIZES["validation"] + SIZES["test"]
    return {
        "validation": drawn[: SIZES["validation"]],
        "test": drawn[SIZES["validation"] : held_out],
        "train": (small + drawn[held_out:])[: SIZES["train"]],
    }


def writer(language: str) -> Callable[[int], str]:
    """A function that returns the words of a number up to `LARGEST`, as `num2words` does.

    num2words compares a number with the names of all large numbers at every step, which takes most
    of its time. This function keeps only the names of numbers up to `LARGEST`.
    """
    converter = copy.copy(num2words.CONVERTER_CLASSES[language])
    if getattr(converter, "cards", None):
        names = converter.cards.items()
        converter.cards = {value: name for value, name in names if value <= LARGEST}
    return converter.to_cardinal


def write_texts(folder: Path) -> Iterator[tuple[Path, int]]:
    """Writes `SPLIT.LANGUAGE` in every language; yields each prefix and its number of lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, numbers in split_numbers().items():
        for language in ("en", *LANGUAGES):
            lines = (text + "\n" for text in map(writer(language), numbers))
            (folder / f"{split}.{language}").write_text("".join(lines), encoding="utf-8")
        yield folder / split, len(numbers)


class NumberWords(tfds.core.GeneratorBasedBuilder):
    """TFDS builder with one config per target language; features as in the WMT data sets."""

    VERSION = tfds.core.Version("1.1.0")
    BUILDER_CONFIGS: ClassVar = [
        tfds.core.BuilderConfig(name=language, description=f"English to {language}.")
        for language in LANGUAGES
    ]
    pkg_dir_path = None

    @property
    def language(self) -> str:
        return self.builder_config.name

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="English number words and their translations by num2words.",
            features=tfds.features.Translation(languages=("en", self.language)),
            supervised_keys=("en", self.language),
        )

    def _split_generators(
        self, dl_manager: tfds.download.DownloadManager
    ) -> dict[str, Iterator[tuple[int, dict[str, str]]]]:
        del dl_manager
        return {name: self._generate_examples(v) for name, v in split_numbers().items()}

    def _generate_examples(self, numbers: list[int]) -> Iterator[tuple[int, dict[str, str]]]:
        languages = ("en", self.language)
        write = {language: writer(language) for language in languages}
        for key, number in enumerate(numbers):
            yield key, {language: write[language](number) for language in languages}
