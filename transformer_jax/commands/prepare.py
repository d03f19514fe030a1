"""The command `prepare`: filters, tokenises and plans a corpus once, for any number of runs."""

import shlex
from pathlib import Path

from absl import flags

from transformer_jax.commands import command_line, config_flags
from transformer_jax.commands.command_help import CommandHelp

FLAGS = flags.FLAGS
HELP = CommandHelp(
    usage="--config=RECIPE --output=DIR [flags]",
    about="Reads the training corpora of a recipe, leaves out the pairs that config.data.filters "
    "names, trains the tokenizer, and writes token ids in shards, with the plan of the batches. "
    "`train` reads the folder with config.data.source=prepared. Given again, the command continues "
    "where it was interrupted, and tokenises only corpora that are new.",
    less_memory="use fewer processes: --workers",
    examples=(
        (
            "All cores of this machine:",
            "transformer-jax prepare --config=runs/mine/recipe.py --output=prepared",
        ),
        (
            "With filters, among them pairs that are in the test set:",
            "transformer-jax prepare --config=runs/mine/recipe.py --output=prepared "
            '--config.data.filters=\'("empty","test_leaks","duplicates")\'',
        ),
        (
            "The machines of a Ray cluster, which share the disk:",
            "transformer-jax prepare --config=recipe.py --output=/shared/prepared --ray=auto",
        ),
        (
            "Then train:",
            "transformer-jax train --config=runs/mine/recipe.py --config.data.source=prepared "
            "--config.data.train=prepared --workdir=runs/mine",
        ),
    ),
    fields=(
        "data.source",
        "data.train",
        "data.source_lang",
        "data.target_lang",
        "data.vocab_size",
        "data.filters",
        "data.filter_function",
        "data.train_weights",
        "data.temperature",
        "data.max_len",
        "data.max_ratio",
    ),
    pages=(("docs/large_corpora.md", "filters, many machines, mixtures, and how fast it is"),),
    resumes=True,
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv` with the recipe as the path of a file."""
    command_line.define_path("output", None, "DIR", "Folder for tokenizer, shards and plan.")
    flags.DEFINE_integer(
        "workers", 0, "Processes of this machine; 0: one for each core.", lower_bound=0
    )
    command_line.define_text(
        "ray",
        "",
        "ADDRESS",
        "Use the machines of this Ray cluster instead; `auto`: the one that this machine belongs "
        "to.",
    )
    return config_flags.define_for_training(argv)


def run() -> None:
    """Prepares the folder and prints the next command."""
    from transformer_jax.data.workers import Workers
    from transformer_jax.training import prepare_data

    workers = Workers.of(FLAGS.workers)
    if FLAGS.ray:
        workers = Workers(ray=FLAGS.ray)
    folder = Path(FLAGS.output)
    prepare_data.prepare(FLAGS.config, folder, workers, lambda line: print(line, flush=True))
    print(
        "next: transformer-jax train --config=RECIPE --config.data.source=prepared "
        f"--config.data.train={shlex.quote(str(folder))} --workdir=DIR"
    )
