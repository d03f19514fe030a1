"""The command `export`: a trained model in the format of another tool."""

from absl import flags

from transformer_jax.commands import model_flags
from transformer_jax.commands.command_help import CommandHelp
from transformer_jax.interop import FORMATS, QUANTIZATIONS

FLAGS = flags.FLAGS
LESS_MEMORY = "name fewer or shorter sentences with --sentences"
HELP = CommandHelp(
    usage="--workdir=DIR --format=FORMAT --output=DIR [flags]",
    about="Writes a trained model as a Hugging Face Marian directory, a CTranslate2 model, or "
    "StableHLO functions that any program with JAX can call. The export is compared with the "
    "model on real sentences before it gets its name.",
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
    pages=(("docs/interop.md", "what each format can express, and how exports are checked"),),
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv`."""
    model_flags.define(argv)
    flags.DEFINE_enum("format", None, FORMATS, "Format of the export.", required=True)
    flags.DEFINE_string("output", None, "Folder to write.", required=True)
    flags.DEFINE_enum(
        "quantization",
        "float32",
        QUANTIZATIONS,
        "Type of the weights in a ctranslate2 export.",
    )
    flags.DEFINE_string(
        "sentences", "", "Source text to check the export with; default: the run's validation set."
    )
    return argv


def run() -> None:
    """Writes the export and checks it against the model."""
    from transformer_jax.interop import export
    from transformer_jax.interop.pretrained import Pretrained

    translator = model_flags.load_translator()
    sentences = export.find_sentences(FLAGS.workdir, translator.config, FLAGS.sentences)
    assert isinstance(translator.params, dict)  # one model, not an ensemble
    model = Pretrained(
        translator.config, translator.tokenizers, translator.params, translator.checkpoint_step
    )
    export.export_model(model, FLAGS.format, FLAGS.output, sentences, FLAGS.quantization)
