"""The command `convert`: a published model's pytorch_model.bin to safetensors, once."""

from absl import flags

FLAGS = flags.FLAGS
LESS_MEMORY = "convert on a machine with more memory"


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv`."""
    flags.DEFINE_string(
        "workdir",
        None,
        "Folder of a Hugging Face model, or its name on the Hub.",
        required=True,
    )
    return argv


def run() -> None:
    """Writes the safetensors next to the pickles."""
    from transformer_jax.interop.huggingface import pickles

    pickles.convert_directory(FLAGS.workdir)
