"""The folder that `prepare` writes and `data.source=prepared` reads.

It has `tokenizer/`; the shards of each corpus in `tokens/`; the plan of the batches of its config
in `plans/`; `links/`, where tokens are aligned; and `prepared.json`, which is written last, with
the corpora, what the filters have dropped, and the settings that the tokens depend on.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etils import epath

from transformer_jax import paths
from transformer_jax.config import DataConfig
from transformer_jax.data import cache_manifest
from transformer_jax.data.plans.plan_files import LENGTHS, ROWS
from transformer_jax.data.shards import shard_mirror, shard_store
from transformer_jax.data.shards.shard_files import TokenShard
from transformer_jax.data.shards.shard_mirror import MirroredShard
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError

NAME = "prepared.json"
TOKENIZER = "tokenizer"
PLANS = "plans"
FORMAT = 1
# The settings that tokens depend on; a run cannot have others.
SETTINGS = ("target_language_tags", "source_prefix", "context_sentences", "lowercase")
FILTER_SETTINGS = ("filters", "filter_function")
LIMITS = ("max_len", "max_ratio")  # of context and filters


@dataclasses.dataclass(frozen=True)
class PreparedCorpus:
    """A corpus in the folder.

    Attributes:
      name: for messages.
      source_lang, target_lang: the direction.
      folder: of its shards.
      num_pairs: in it, after the filters.
      fingerprint: of its text and of the filters.
      shards: pairs and fingerprint of each.
    """

    name: str
    source_lang: str
    target_lang: str
    folder: Path
    num_pairs: int
    fingerprint: str
    shards: Sequence[tuple[int, str]]


@dataclasses.dataclass(frozen=True)
class PreparedFolder:
    """What `prepared.json` says.

    Attributes:
      path: the folder; of one in an object store, where its local copies are.
      corpora: in it.
      settings: that tokens depend on.
      remote: address of one in an object store.
    """

    path: Path
    corpora: Sequence[PreparedCorpus]
    settings: dict[str, Any]
    remote: str = ""

    @classmethod
    def open(cls, folder: str) -> "PreparedFolder":
        """Reads `prepared.json`. Of a folder in an object store it copies the small files.

        Raises:
          UserError: there is none, or it is of a later version.
        """
        path = local_path(folder)
        try:
            if paths.is_remote(folder):
                _copy_small_files(epath.Path(folder), path)
            content = json.loads((path / NAME).read_text(encoding="utf-8"))
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
        remote = folder if paths.is_remote(folder) else ""
        return cls(path, corpora, content["settings"], remote)

    def shards(self, corpus: PreparedCorpus, max_bytes: int) -> Sequence[TokenShard]:
        """The shards of a corpus.

        Args:
          corpus: of this folder.
          max_bytes: of local copies, of a folder in an object store.

        Raises:
          UserError: one is missing or damaged; in an object store this shows when it is used.
        """
        if not self.remote:
            return open_shards(corpus.folder)
        place = f"{self.remote.rstrip('/')}/{corpus.folder.relative_to(self.path)}"
        mirrored = []
        for number, (num_pairs, fingerprint) in enumerate(corpus.shards):
            name = shard_store.shard_name(number)
            mirrored.append(
                MirroredShard(
                    corpus.folder / name, num_pairs, fingerprint, f"{place}/{name}", max_bytes
                )
            )
        return mirrored

    def links(self, fingerprint: str) -> Path:
        """The folder with the links of the tokens; it is missing if they are not aligned."""
        folder = self.path / "links" / fingerprint
        remote = epath.Path(self.remote) / "links" / fingerprint if self.remote else None
        if remote is not None and not folder.exists() and remote.exists():
            with paths.store_errors(), paths.new_path(folder, is_cache=True) as temporary:
                temporary.mkdir()
                shard_mirror.copy_folder(remote, temporary)
        return folder

    def fetch_plan(self, file: Path) -> None:
        """Copies the plan of a shard, of a folder in an object store, unless there is a copy."""
        if self.remote and not file.exists():
            remote = epath.Path(self.remote) / str(file.relative_to(self.path))
            with paths.store_errors(), paths.new_path(file, is_cache=True) as temporary:
                shard_mirror.copy_file(remote, temporary)

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
        if config.tokens_differ_by_epoch:
            raise UserError(
                f"{config.why_tokens_differ} tokenises the text again in each epoch, and a "
                "prepared folder has no text; use config.data.source=files."
            )
        for name in FILTER_SETTINGS:
            given = getattr(config, name)
            if given and given != type(given)(self.settings[name]):
                raise UserError(
                    f"config.data.{name}={given}, but {self.path} was prepared with "
                    f"{self.settings[name] or 'none'}; leave it empty, or prepare another folder."
                )
        limits = [name for name in LIMITS if name in self.settings]
        for name in (*SETTINGS, *limits):
            # A folder of an older version has no newer settings.
            prepared = self.settings.get(name, getattr(DataConfig(), name))
            if getattr(config, name) != prepared:
                raise UserError(
                    f"config.data.{name}={getattr(config, name)}, but {self.path} was prepared "
                    f"with {prepared}; set it to that, or prepare the folder again."
                )


def local_path(folder: str) -> Path:
    """The folder, or where the local copies of one in an object store are."""
    if not paths.is_remote(folder):
        return Path(folder)
    name = hashlib.blake2b(folder.rstrip("/").encode(), digest_size=16).hexdigest()
    return paths.cache_folder() / "prepared" / name


def _copy_small_files(remote: epath.Path, folder: Path) -> None:
    """Copies all that a start needs: no shards, and no plans of shards.

    Raises:
      FileNotFoundError: there is no such folder.
    """
    with paths.store_errors():
        content = (remote / NAME).read_text(encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        # Other processes may read the copies, or make them too.
        is_same = (folder / NAME).exists() and (folder / NAME).read_text(
            encoding="utf-8"
        ) == content
        if not is_same:
            paths.remove_at_once(folder / TOKENIZER)  # of what the bucket had before
            with paths.new_path(folder / TOKENIZER, is_cache=True) as temporary:
                temporary.mkdir()
                shard_mirror.copy_folder(remote / TOKENIZER, temporary)
        plans = remote / PLANS
        for plan in plans.iterdir() if plans.exists() else ():
            (folder / PLANS / plan.name).mkdir(parents=True, exist_ok=True)
            for name in (ROWS, LENGTHS):
                local = folder / PLANS / plan.name / name
                if (plan / name).exists() and not (is_same and local.exists()):
                    with paths.new_path(local, is_cache=True) as temporary:
                        shard_mirror.copy_file(plan / name, temporary)
        paths.write_atomically(folder / NAME, content)


def settings_of(config: DataConfig) -> dict[str, Any]:
    """The settings that tokens depend on."""
    limits = LIMITS if config.context_sentences or config.filters else ()
    return {name: getattr(config, name) for name in (*SETTINGS, *FILTER_SETTINGS, *limits)}


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
