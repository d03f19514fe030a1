"""The command `data`: fetches a public data set, verifies it, and makes text files of it."""

import shlex
from pathlib import Path

from absl import flags

from transformer_jax import paths
from transformer_jax.commands import arguments
from transformer_jax.commands.command_help import CommandHelp
from transformer_jax.data.datasets import DATASETS
from transformer_jax.errors import UserError

FLAGS = flags.FLAGS
LESS_MEMORY = "close other programs"
HELP = CommandHelp(
    usage="NAME --output=DIR",
    about="Downloads a public data set, compares it with its checksums, and writes text files "
    "PREFIX.LANG that `train` reads. It prints the licence and the next command. Given again, it "
    "resumes; without a network it says what to download elsewhere.",
    examples=(
        ("29,000 captions of pictures:", "transformer-jax data multi30k --output=multi30k"),
        ("160,000 pairs of talks:", "transformer-jax data iwslt14 --output=iwslt14"),
        ("4.5 million pairs, for a large machine:", "transformer-jax data wmt14 --output=wmt14"),
    ),
    pages=(("docs/datasets.md", "sizes, checksums, licences, and what to do offline"),),
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv` with the data set's name as a flag."""
    flags.DEFINE_enum(
        "dataset", None, list(DATASETS), "The data set, as the first word; or by this flag."
    )
    flags.DEFINE_string("output", None, "Folder for the texts; `downloads/` in it keeps the files.")
    return arguments.first_word_as_flag(argv, "dataset")


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
