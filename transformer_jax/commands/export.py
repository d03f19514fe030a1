"""The command `export`: a trained model in the format of another tool."""

from absl import flags

from transformer_jax.commands import model_flags
from transformer_jax.interop import export
from transformer_jax.interop.pretrained import Pretrained

FLAGS = flags.FLAGS
LESS_MEMORY = "name fewer or shorter sentences with --sentences"


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv`."""
    model_flags.define(argv)
    flags.DEFINE_enum("format", None, export.FORMATS, "Format of the export.", required=True)
    flags.DEFINE_string("output", None, "Folder to write.", required=True)
    flags.DEFINE_enum(
        "quantization",
        "float32",
        export.QUANTIZATIONS,
        "Type of the weights in a ctranslate2 export.",
    )
    flags.DEFINE_string(
        "sentences", "", "Source text to check the export with; default: the run's validation set."
    )
    return argv


def run() -> None:
    """Writes the export and checks it against the model."""
    translator = model_flags.load_translator()
    sentences = export.find_sentences(FLAGS.workdir, translator.config, FLAGS.sentences)
    assert isinstance(translator.params, dict)  # one model, not an ensemble
    model = Pretrained(
        translator.config, translator.tokenizers, translator.params, translator.checkpoint_step
    )
    export.export_model(model, FLAGS.format, FLAGS.output, sentences, FLAGS.quantization)
