"""The command `convert`: a published model's pytorch_model.bin to safetensors, once."""

from collections.abc import Sequence

from transformer_jax import paths
from transformer_jax.commands.command_help import CommandHelp, Words
from transformer_jax.errors import UserError

HELP = CommandHelp(
    usage="DIR [DIR ...]",
    words=Words("folder"),
    about="Reads the weights of pytorch_model.bin, a pickle, in a process of its own, and writes "
    "them as model.safetensors into the same folder; of a model of JoeyNMT, best.ckpt as "
    "best.safetensors. All other commands then read the model. It needs torch, once.",
    less_memory="convert on a machine with more memory",
    uses_jax=False,
    examples=(
        (
            "A folder of OPUS-MT:",
            "transformer-jax convert opus-mt-en-de",
        ),
        (
            "A model in the cache of the Hugging Face Hub, by its name:",
            "transformer-jax convert Helsinki-NLP/opus-mt-en-de",
        ),
        (
            "Then it translates:",
            "echo 'A dog runs.' | transformer-jax decode --workdir=opus-mt-en-de",
        ),
    ),
    pages=(("docs/interop.md", "which published models can be read"),),
)


def define_flags(argv: list[str]) -> list[str]:
    """The command has no flags; returns `argv`."""
    return argv


def run(folders: Sequence[str]) -> None:
    """Writes the safetensors next to the pickles of each folder."""
    from transformer_jax.extras.interop.huggingface import pickles

    if not folders:
        raise UserError("Name the folder of a model, or its name on the Hub: convert DIR.")
    for folder in folders:
        pickles.convert_directory(paths.expand(folder, "DIR"))
