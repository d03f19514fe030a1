"""The command `bundle`: a model as one file, for `Translator.load` and every command."""

from pathlib import Path

from absl import flags

from transformer_jax import paths, units
from transformer_jax.commands import command_line, model_flags
from transformer_jax.commands.command_help import CommandHelp
from transformer_jax.errors import UserError

FLAGS = flags.FLAGS
HELP = CommandHelp(
    usage="--workdir=DIR --output=FILE [flags]",
    about="Writes the parameters of one checkpoint, the config and the tokenizers as one file, "
    "with a digest and a model card. The optimizer's state is left out. "
    "Translator.load and all commands that take a model read the file, whatever its name is, and "
    "refuse it if any byte was changed.",
    less_memory="use a machine with more memory",
    examples=(
        (
            "The best checkpoint of a run:",
            "transformer-jax bundle --workdir=runs/mine --output=mine.bundle",
        ),
        (
            "The mean of the last five, with its licence:",
            "transformer-jax bundle --workdir=runs/mine --checkpoint=average:5 "
            "--licence=cc-by-4.0 --output=mine.bundle",
        ),
        (
            "Then it translates anywhere:",
            "echo 'A dog runs.' | transformer-jax decode --workdir=mine.bundle",
        ),
    ),
    pages=(("docs/interop.md", "what the file holds, and how to open it with other tools"),),
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv`."""
    model_flags.define(argv)
    command_line.define_path("output", None, "FILE", "File to write.")
    model_flags.define_licence()
    return argv


def run() -> None:
    """Writes the file."""
    from transformer_jax.extras.interop import bundle, model_card, sample_text, usage_examples

    if paths.is_remote(FLAGS.output):
        raise UserError(f"--output={FLAGS.output} must be a local file; copy it afterwards.")
    path = Path(FLAGS.output)
    bundle.check_new(path)
    model, facts = model_flags.load_with_facts()
    text = sample_text.of_samples(FLAGS.workdir)
    sentence = model_card.example(text) if text else "A sentence to translate."
    program = usage_examples.bundle(path.name, sentence)
    card = model_card.compose(facts, model, "bundle", program)
    digest = bundle.write(
        path,
        model.config,
        model.tokenizers,
        model.params,
        facts,
        card,
        model.calibration,
        model.shortlist,
    )
    size = units.size(path.stat().st_size)
    print(f"wrote {path}: {size}, checkpoint of step {model.step}, SHA-256 {digest}")
