"""Corpora of TensorFlow Datasets, which are downloaded and prepared where they are missing."""

import contextlib
import hashlib
import importlib
import io
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from etils import epath

from transformer_jax import paths
from transformer_jax.config import DataConfig
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.text_corpora import has_text
from transformer_jax.errors import UserError

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

EMBEDDED = "number_words"
READ_TOGETHER = 1024  # records of a data set


def data_dir(config: DataConfig) -> str:
    """Folder of prepared TFDS data sets: the config's, `$TFDS_DATA_DIR`, or one in the cache."""
    return (
        config.data_dir
        or os.path.expanduser(os.environ.get("TFDS_DATA_DIR", ""))
        or str(paths.cache_folder() / "tfds")
    )


def open_tfds(config: DataConfig, split: str) -> Corpus:
    """A TFDS translation data set; downloads and prepares it first if needed."""
    name, folder = config.tfds_name, data_dir(config)
    if paths.is_remote(folder):
        raise UserError(
            f"config.data.data_dir={folder}: TFDS data sets are read in random order, from a "
            "local folder only. Copy it to each machine."
        )
    builder = prepared_builder(name, folder)
    languages = list(getattr(builder.info.features, "keys", lambda: ())())
    for language in (config.source_lang, config.target_lang):
        if language not in languages:
            raise UserError(
                f"The data set {name} has the languages {', '.join(languages) or '(none)'}, "
                f"not {language!r}; set config.data.source_lang and config.data.target_lang."
            )
    try:
        size = builder.info.splits[split].num_examples
        source: Any = builder.as_data_source(split=split) if size else ()
    except Exception as error:
        if epath.Path(split).is_file() or has_text(f"{split}.{config.source_lang}"):
            hint = "to read text files, set config.data.source=files"
            raise UserError(f"{split} is no split of the data set {name}; {hint}.") from error
        raise UserError(
            f"The data set {name} in {folder} cannot be read as split {split!r} "
            f"({_first_line(error)}); its splits are {', '.join(builder.info.splits)}, and it "
            "must have been prepared with `tfds build --file_format=array_record`."
        ) from error
    if not size:
        raise UserError(f"Split {split!r} of the data set {name} is empty; name a larger part.")

    def read() -> Iterator[tuple[str, str]]:
        # Records that are read together take a third of the time.
        for first in range(0, size, READ_TOGETHER):
            for example in source.__getitems__(range(first, min(first + READ_TOGETHER, size))):
                source_text, target_text = example[config.source_lang], example[config.target_lang]
                yield source_text.decode("utf-8"), target_text.decode("utf-8")

    info = builder.info.splits[split.split("[")[0]]
    shard_lengths = tuple(info.shard_lengths or ())
    identity = (builder.info.full_name, split, info.num_examples, shard_lengths, info.num_bytes)
    fingerprint = hashlib.blake2b(repr(identity).encode(), digest_size=16).hexdigest()
    title = f"{builder.info.full_name} [{split}]"
    return Corpus(title, config.source_lang, config.target_lang, read, fingerprint, num_pairs=size)


def prepared_builder(name: str, folder: str) -> "tfds.core.DatasetBuilder":
    """The TFDS builder `name` under `folder`; downloads and prepares the data set if needed.

    Raises:
      UserError: an unknown name, or a data set that cannot be prepared on this machine.
    """
    import tensorflow_datasets as tfds

    builder = _find_builder(name, folder)
    if builder.data_path.exists():
        return builder
    print(f"preparing {name} in {folder}", file=sys.stderr, flush=True)
    base = name.partition("/")[0]
    if base == EMBEDDED or not sys.stderr.isatty():
        tfds.disable_progress_bar()
    # Prepared in a temporary folder, then renamed: two processes cannot mix their files.
    temporary = epath.Path(folder) / f"incomplete.{uuid.uuid4().hex}"
    try:
        temporary_builder = _find_builder(name, str(temporary))
        # TFDS reports on standard output, where a command may be writing its result.
        with contextlib.redirect_stdout(io.StringIO() if base == EMBEDDED else sys.stderr):
            temporary_builder.download_and_prepare(file_format="array_record")
        builder.data_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary_builder.data_path.rename(builder.data_path)
        except OSError:
            if not builder.data_path.exists():
                raise
    except (Exception, SystemExit) as error:
        raise UserError(
            f"The data set {name} is not prepared in {folder} and could not be prepared here "
            f"({_first_line(error)}); on a machine with internet access run "
            f"`tfds build {name} --file_format=array_record --data_dir=DIR` "
            f"and copy DIR to {folder} on this one."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return _find_builder(name, folder)


def _find_builder(name: str, folder: str) -> "tfds.core.DatasetBuilder":
    import tensorflow_datasets as tfds

    base, _, config_name = name.partition("/")
    if base == EMBEDDED:
        from transformer_jax.data import number_words

        if config_name not in number_words.LANGUAGES:
            raise UserError(
                f"config.data.tfds_name={name!r}: {EMBEDDED} has the target languages "
                f"{', '.join(number_words.LANGUAGES)}, for example {EMBEDDED}/de."
            )
        return number_words.NumberWords(config=config_name, data_dir=folder)
    # Without TensorFlow, TFDS knows a translation data set only after its module is imported.
    for module in (base.split(":")[0], base.split("_")[0]):
        try:
            importlib.import_module(f"tensorflow_datasets.translate.{module}")
        except ImportError:
            continue
    try:
        return tfds.builder(name, data_dir=folder, file_format="array_record")
    except Exception as error:
        try:
            return tfds.builder(name, data_dir=folder)
        except Exception:
            raise UserError(
                f"config.data.tfds_name={name!r}: neither TFDS nor {folder} has such a data set "
                f"({_first_line(error)})."
            ) from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.') if lines else 'no message'}"
