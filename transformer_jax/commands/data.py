"""The command `data`: fetches a public data set, verifies it, and makes text files of it."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from transformer_jax import paths
from transformer_jax.commands import command_line
from transformer_jax.commands.command_help import CommandHelp, Words
from transformer_jax.errors import UserError
from transformer_jax.extras.corpora.tables import DATASETS

FLAGS = flags.FLAGS
EMBEDDED = "number_words"  # made here; all others are downloaded
HELP = CommandHelp(
    usage="NAME --output=DIR",
    words=Words(
        "data set",
        {name: dataset.about for name, dataset in DATASETS.items()}
        | {EMBEDDED: "numbers in words, made here without a download"},
    ),
    about="Downloads a public data set, compares it with its checksums, and writes text files "
    "PREFIX.LANG that `train` reads. It prints the licence and the next command. Given again, it "
    "resumes; without a network it says what to download elsewhere.",
    less_memory="close other programs",
    uses_jax=False,
    examples=(
        ("29,000 captions of pictures:", "transformer-jax data multi30k --output=multi30k"),
        ("167,000 pairs of talks:", "transformer-jax data iwslt14 --output=iwslt14"),
        ("4.5 million pairs, for a large machine:", "transformer-jax data wmt14 --output=wmt14"),
        ("a toy corpus, without a network:", "transformer-jax data number_words --output=numbers"),
    ),
    pages=(("docs/datasets.md", "sizes, checksums, licences, and what to do offline"),),
    resumes=True,
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv`."""
    command_line.define_path(
        "output", None, "DIR", "Folder for the texts; `downloads/` in it keeps the files."
    )
    return argv


def run(words: Sequence[str]) -> None:
    """Fetches the data set and prints the next command."""
    if paths.is_remote(FLAGS.output):
        raise UserError(f"--output={FLAGS.output}: data sets are made in a local folder.")
    (name,) = words
    if name == EMBEDDED:
        _write_number_words(Path(FLAGS.output))
        return
    from transformer_jax.extras.corpora.unpacking import make_texts

    dataset, folder = DATASETS[name], Path(FLAGS.output)
    print(f"{name}: {dataset.about} ({dataset.page})")
    print(f"licence: {dataset.licence}\nchecksums: {dataset.checksums}", flush=True)
    make_texts(name, dataset, folder, lambda line: print(line, flush=True))
    names = [name for split in dataset.splits for name in (split.name, split.held_out) if name]
    prefixes = {name: shlex.quote(str(folder / name)) for name in names}
    print(f"next: {dataset.command.format(**prefixes)}")


def _write_number_words(folder: Path) -> None:
    """Writes the embedded corpus and prints the next command."""
    from transformer_jax.data import number_words

    languages = ",".join(("en", *number_words.LANGUAGES))
    for prefix, num_lines in number_words.write_texts(folder):
        print(f"{prefix}.{{{languages}}}: {num_lines:,} lines each", flush=True)
    sets = " ".join(f"--{name}={shlex.quote(str(folder / name))}" for name in number_words.SIZES)
    print(f"next: transformer-jax init {sets} --source_lang=en --target_lang=de --workdir=DIR")
