"""The command `export`: a trained model in the format of another tool."""

from absl import flags

from transformer_jax.commands import command_line, model_flags
from transformer_jax.commands.command_help import CommandHelp
from transformer_jax.extras.interop import FORMATS, QUANTIZATIONS

FLAGS = flags.FLAGS
HELP = CommandHelp(
    usage="--workdir=DIR --format=FORMAT --output=DIR [flags]",
    about="Writes a trained model as a Hugging Face Marian directory, a CTranslate2 model, or "
    "StableHLO functions that any program with JAX can call. The export is compared with the "
    "model on real sentences before it gets its name; one of 8 bits by BLEU. It has a README with "
    "a program that uses it, scores, and a model card.",
    less_memory="name fewer or shorter sentences with --sentences",
    examples=(
        (
            "For transformers and other tools that read Marian models:",
            "transformer-jax export --workdir=runs/mine --format=marian --output=exported",
        ),
        (
            "For fast translation on a CPU, with weights of 8 bits:",
            "transformer-jax export --workdir=runs/mine --format=ctranslate2 "
            "--quantization=int8 --output=exported-ct2",
        ),
        (
            "For programs with JAX but without this package:",
            "transformer-jax export --workdir=runs/mine --format=stablehlo --output=exported-jax",
        ),
    ),
    fields=("data.validation",),
    pages=(("docs/interop.md", "what each format can express, and how exports are checked"),),
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv`."""
    model_flags.define(argv)
    flags.DEFINE_enum("format", None, FORMATS, "Format of the export.")
    command_line.define_path("output", None, "DIR", "Folder to write.")
    flags.DEFINE_enum(
        "quantization",
        "float32",
        QUANTIZATIONS,
        "Type of the weights in a ctranslate2 export.",
    )
    command_line.define_path(
        "sentences",
        "",
        "FILE",
        "Source text to check the export with; default: the run's validation set, else its test "
        "set, else its samples.jsonl.",
    )
    command_line.define_path(
        "references",
        "",
        "FILE",
        "The translation of each line in the file of --sentences, for BLEU.",
    )
    flags.DEFINE_float(
        "max_bleu_loss",
        1.0,
        "Most BLEU that quantization may lose; 100: any loss is accepted.",
        lower_bound=0.0,
    )
    model_flags.define_licence()
    return argv


def run() -> None:
    """Writes the export and checks it against the model."""
    from transformer_jax.extras.interop import export, sample_text

    model, facts = model_flags.load_with_facts()
    text = sample_text.find(FLAGS.workdir, model.config, FLAGS.sentences, FLAGS.references)
    export.export_model(
        model,
        FLAGS.format,
        FLAGS.output,
        text,
        FLAGS.quantization,
        max_bleu_loss=FLAGS.max_bleu_loss,
        facts=facts,
    )
