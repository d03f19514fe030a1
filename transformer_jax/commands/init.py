"""The command `init`: looks at a corpus, and writes a recipe that fits it."""

import functools

from absl import flags

from transformer_jax.commands import command_line
from transformer_jax.commands.command_help import CommandHelp
from transformer_jax.errors import UserError

FLAGS = flags.FLAGS
HELP = CommandHelp(
    usage="--train=PREFIX --source_lang=LANG --target_lang=LANG --workdir=DIR [flags]",
    about="Reads a parallel corpus, PREFIX.LANG (.gz too) or one .tsv, and prints its pairs, "
    "lengths, writing systems, copies and what looks wrong. Then it chooses the settings of a run "
    "for the corpus and the device, and writes them to DIR/recipe.py with their reasons. It takes "
    "a few training steps to estimate time and memory, and prints the next commands. Without "
    "--validation or --test it sets a fixed share of the corpus aside, in DIR/data.",
    less_memory="the recipe is written; raise config.train.accumulate_steps in it",
    examples=(
        (
            "Files corpus.en and corpus.fr, nothing else:",
            "transformer-jax init --train=corpus --source_lang=en --target_lang=fr "
            "--workdir=runs/mine",
        ),
        (
            "With validation and test sets:",
            "transformer-jax init --train=corpus --validation=dev --test=test --source_lang=en "
            "--target_lang=fr --workdir=runs/mine",
        ),
        (
            "For a run on another machine, which has a GPU:",
            "transformer-jax init --train=corpus.tsv --source_lang=de --target_lang=en "
            "--device=gpu --workdir=runs/gpu",
        ),
    ),
    pages=(("docs/train_your_own.md", "the table of sizes, from 3,000 to 100 million pairs"),),
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv`."""
    text = "path without the language suffix, or a .tsv file"
    command_line.define_paths(
        "train", None, "PREFIX", f"Training text: {text}; several with commas."
    )
    command_line.define_text(
        "source_lang", None, "LANG", "Language of the source: the suffix after PREFIX."
    )
    command_line.define_text(
        "target_lang", None, "LANG", "Language of the target: the suffix after PREFIX."
    )
    command_line.define_path("workdir", None, "DIR", "Folder of the run, which gets the recipe.")
    for part in ("validation", "test"):
        help_text = f"{part.capitalize()} set: {text}; empty: a share is set aside."
        command_line.define_path(part, "", "PREFIX", help_text)
    flags.DEFINE_enum(
        "device",
        "here",
        ("here", "cpu", "gpu", "tpu"),
        "Device that will train; here: of this machine.",
    )
    flags.DEFINE_bool("measure", True, "Take a few training steps, to estimate time and memory.")
    return argv


def run() -> None:
    """Prints what the corpus looks like, writes the recipe, prints the next commands."""
    if FLAGS.source_lang == FLAGS.target_lang:
        raise UserError(f"--source_lang and --target_lang are both {FLAGS.source_lang!r}.")
    from transformer_jax.extras.recipes.recipe import write_recipe

    write_recipe(
        ",".join(FLAGS.train),
        FLAGS.source_lang,
        FLAGS.target_lang,
        FLAGS.workdir,
        validation=FLAGS.validation,
        test=FLAGS.test,
        device=FLAGS.device,
        measure=FLAGS.measure,
        say=functools.partial(print, flush=True),
    )
