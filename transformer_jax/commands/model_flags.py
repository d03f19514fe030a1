"""Flags of the commands that load a trained model, and loading it by them."""

import itertools
from collections.abc import Sequence

from absl import flags

from transformer_jax import paths
from transformer_jax.api import Translator
from transformer_jax.commands import config_flags
from transformer_jax.errors import UserError
from transformer_jax.interop import pretrained

FLAGS = flags.FLAGS


def define(argv: list[str]) -> None:
    """Defines them, and `--config.a.b` for each setting of the model that `argv` names."""
    flags.DEFINE_string(
        "workdir",
        None,
        "Folder of the run or of a Hugging Face model, or its name on the Hub.",
        required=True,
    )
    flags.DEFINE_string("checkpoint", "best", "best, latest, a step, or average:N.")
    flags.DEFINE_bool("allow_pickle", False, "Read a Hugging Face pytorch_model.bin, with torch.")
    prefixes = ("--workdir=", "-workdir=")
    given = [a.split("=", 1)[1] for a in argv if a.startswith(prefixes)]
    given += [b for a, b in itertools.pairwise(argv) if a.lstrip("-") == "workdir"]
    if given:
        workdir = paths.expand(given[-1], "--workdir")
        paths.require(workdir, "--workdir")
        config_flags.define_config(pretrained.read_config(workdir))


def load_translator(ensemble: Sequence[tuple[str, str]] = ()) -> Translator:
    """The model that the flags name, with the settings that were overridden.

    Args:
      ensemble: (path, checkpoint) of further models.

    Raises:
      UserError: a setting that only training could change.
    """
    trained = pretrained.read_config(FLAGS.workdir)
    for section in ("model", "optimizer", "train"):
        if getattr(FLAGS.config, section) != getattr(trained, section):
            raise UserError(f"--config.{section}.… cannot be changed for a model that is trained.")
    return Translator.load(
        FLAGS.workdir, FLAGS.checkpoint, FLAGS.config, FLAGS.allow_pickle, ensemble
    )
