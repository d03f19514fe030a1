"""The folder that `prepare` writes and `data.source=prepared` reads.

It has `tokenizer/`; the shards of each corpus in `tokens/`; the plan of the batches of its config
in `plans/`; `links/`, where tokens are aligned; and `prepared.json`, which is written last, with
the corpora, what the filters have dropped, and the settings that the tokens depend on.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etils import epath

from transformer_jax import paths
from transformer_jax.config import DataConfig
from transformer_jax.data import cache_manifest
from transformer_jax.data.shards import shard_store
from transformer_jax.data.shards.shard_files import TokenShard
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError

NAME = "prepared.json"
TOKENIZER = "tokenizer"
FORMAT = 1
# The settings that tokens depend on; a run cannot have others.
SETTINGS = ("target_language_tags", "context_sentences", "lowercase")


@dataclasses.dataclass(frozen=True)
class PreparedCorpus:
    """A corpus in the folder.

    Attributes:
      name: for messages.
      source_lang, target_lang: the direction.
      folder: of its shards.
      num_pairs: in it, after the filters.
      fingerprint: of its text and of the filters.
    """

    name: str
    source_lang: str
    target_lang: str
    folder: Path
    num_pairs: int
    fingerprint: str


@dataclasses.dataclass(frozen=True)
class PreparedFolder:
    """What `prepared.json` says."""

    path: Path
    corpora: Sequence[PreparedCorpus]
    settings: dict[str, Any]

    @classmethod
    def open(cls, folder: str) -> "PreparedFolder":
        """Reads `prepared.json`.

        Raises:
          UserError: there is none, or it is of a later version.
        """
        path = Path(folder)
        try:
            content = json.loads((path / NAME).read_text())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UserError(
                f"{folder} is no prepared folder: it has no {NAME}. Name the output of "
                "`transformer-jax prepare`, which has to have ended."
            ) from error
        except ValueError as error:
            raise UserError(
                f"{path / NAME} is damaged ({error}); prepare the folder again."
            ) from error
        if content.get("format") != FORMAT:
            raise UserError(
                f"{path / NAME} has format {content.get('format')}, this version reads {FORMAT}."
            )
        corpora = [
            PreparedCorpus(**{**corpus, "folder": path / corpus["folder"]})
            for corpus in content["corpora"]
        ]
        return cls(path, corpora, content["settings"])

    def write(self, extra: dict[str, Any]) -> None:
        """Writes `prepared.json`, with more about the folder."""
        corpora = [
            {**dataclasses.asdict(c), "folder": str(c.folder.relative_to(self.path))}
            for c in self.corpora
        ]
        content = {"format": FORMAT, "settings": self.settings, "corpora": corpora, **extra}
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        paths.write_atomically(self.path / NAME, text)

    def tokenizers(self) -> TokenizerPair:
        """Those that the corpora were tokenised with."""
        return TokenizerPair.load(epath.Path(self.path / TOKENIZER))

    def check_settings(self, config: DataConfig) -> None:
        """Raises a `UserError` where a run needs other tokens."""
        if config.subword_sampling:
            raise UserError(
                "config.data.subword_sampling segments text again in each epoch, and a prepared "
                "folder has no text; use config.data.source=files."
            )
        for name in SETTINGS:
            if getattr(config, name) != self.settings[name]:
                raise UserError(
                    f"config.data.{name}={getattr(config, name)}, but {self.path} was prepared "
                    f"with {self.settings[name]}; set it to that, or prepare the folder again."
                )


def settings_of(config: DataConfig) -> dict[str, Any]:
    """The settings that tokens depend on."""
    return {name: getattr(config, name) for name in SETTINGS}


def open_shards(folder: Path) -> list[TokenShard]:
    """The shards of a corpus.

    Raises:
      UserError: one is missing or damaged.
    """
    damaged: dict[str, str] = {}
    try:
        return shard_store.read_shards(folder, damaged)
    except (FileNotFoundError, cache_manifest.DamageError) as error:
        name, damage = next(iter(damaged.items()), ("a shard", "missing"))
        raise UserError(
            f"{folder / name} is damaged ({damage}). Give the command `transformer-jax prepare` "
            "again: it makes what is missing or damaged, and nothing else."
        ) from error
