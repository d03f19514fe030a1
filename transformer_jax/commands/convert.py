"""The command `convert`: a published model's pytorch_model.bin to safetensors, once."""

from absl import flags

from transformer_jax.commands import arguments
from transformer_jax.commands.command_help import CommandHelp

FLAGS = flags.FLAGS
HELP = CommandHelp(
    usage="--workdir=DIR",
    about="Reads the weights of pytorch_model.bin, a pickle, in a process of its own, and writes "
    "them as model.safetensors into the same folder. All other commands then read the model. "
    "It needs torch, once.",
    less_memory="convert on a machine with more memory",
    examples=(
        (
            "A folder of OPUS-MT:",
            "transformer-jax convert --workdir=opus-mt-en-de",
        ),
        (
            "A model in the cache of the Hugging Face Hub, by its name:",
            "transformer-jax convert --workdir=Helsinki-NLP/opus-mt-en-de",
        ),
        (
            "Then it translates:",
            "echo 'A dog runs.' | transformer-jax decode --workdir=opus-mt-en-de",
        ),
    ),
    pages=(("docs/interop.md", "which published models can be read"),),
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv`."""
    arguments.define_path(
        "workdir",
        None,
        "DIR",
        "Folder of a Hugging Face model, or its name on the Hub.",
    )
    return argv


def run() -> None:
    """Writes the safetensors next to the pickles."""
    from transformer_jax.interop.huggingface import pickles

    pickles.convert_directory(FLAGS.workdir)
