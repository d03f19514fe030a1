"""The command `data`: fetches a public data set, verifies it, and makes text files of it."""

import shlex
from pathlib import Path

from absl import flags

from transformer_jax import paths
from transformer_jax.data.datasets import DATASETS
from transformer_jax.errors import UserError

FLAGS = flags.FLAGS
LESS_MEMORY = "close other programs"


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv` with the data set's name as a flag."""
    flags.DEFINE_enum("dataset", None, list(DATASETS), "The data set; --dataset= may be omitted.")
    flags.DEFINE_string("output", None, "Folder for the texts; `downloads/` in it keeps the files.")
    if len(argv) > 1 and not argv[1].startswith("-"):
        return [argv[0], f"--dataset={argv[1]}", *argv[2:]]
    return argv


def run() -> None:
    """Fetches the data set and prints the next command."""
    if FLAGS.dataset is None:
        known = "; ".join(f"{name}: {dataset.about}" for name, dataset in DATASETS.items())
        raise UserError(f"Name the data set, as in `data multi30k --output=DIR` ({known}).")
    if not FLAGS.output:
        raise UserError("--output=DIR is missing: the folder for the texts.")
    if paths.is_remote(FLAGS.output):
        raise UserError(f"--output={FLAGS.output}: data sets are made in a local folder.")
    from transformer_jax.data.unpacking import make_texts

    dataset, folder = DATASETS[FLAGS.dataset], Path(FLAGS.output)
    print(f"{FLAGS.dataset}: {dataset.about} ({dataset.page})")
    print(f"licence: {dataset.licence}\nchecksums: {dataset.checksums}", flush=True)
    make_texts(FLAGS.dataset, dataset, folder, lambda line: print(line, flush=True))
    names = [name for split in dataset.splits for name in (split.name, split.held_out) if name]
    prefixes = {name: shlex.quote(str(folder / name)) for name in names}
    print(f"next: {dataset.command.format(**prefixes)}")
