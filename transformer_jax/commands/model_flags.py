"""Flags of the commands that load a trained model, and loading it by them."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from transformer_jax import paths
from transformer_jax.commands import config_flags
from transformer_jax.errors import UserError

if TYPE_CHECKING:  # these load JAX, which flags do not need
    from transformer_jax.api import Translator

FLAGS = flags.FLAGS


def define(argv: Sequence[str]) -> None:
    """Defines the model's flags, and `--config.a.b` for each setting of the one `argv` names."""
    from transformer_jax.interop import pretrained

    flags.DEFINE_string(
        "workdir",
        None,
        "Folder of the run or of a Hugging Face model, or its name on the Hub.",
        required=True,
    )
    define_checkpoint()
    flags.DEFINE_bool("allow_pickle", False, "Read a Hugging Face pytorch_model.bin, with torch.")
    prefixes = ("--workdir=", "-workdir=")
    given = [argument.split("=", 1)[1] for argument in argv if argument.startswith(prefixes)]
    given += [value for name, value in itertools.pairwise(argv) if name.lstrip("-") == "workdir"]
    if given:
        workdir = paths.expand(given[-1], "--workdir")
        paths.require(workdir, "--workdir")
        config_flags.define_config(pretrained.read_config(workdir))


def define_checkpoint() -> None:
    """Defines `--checkpoint`."""
    flags.DEFINE_string("checkpoint", "best", "best, latest, a step, or average:N.")


def define_languages() -> None:
    """Defines `--target_lang` and `--source_lang`."""
    flags.DEFINE_string(
        "target_lang", "", "Language to translate into, for multilingual models; else the config's."
    )
    flags.DEFINE_string(
        "source_lang", "", "Language of the input, for models that read it; else the config's."
    )


def load_translator(ensemble: Sequence[tuple[str, str]] = ()) -> "Translator":
    """The model that the flags name, with the settings that were overridden.

    Args:
      ensemble: (path, checkpoint) of further models.

    Raises:
      UserError: a setting that only training could change.
    """
    from transformer_jax.api import Translator
    from transformer_jax.interop import pretrained

    trained = pretrained.read_config(FLAGS.workdir)
    for section in ("model", "optimizer", "train"):
        if getattr(FLAGS.config, section) != getattr(trained, section):
            raise UserError(f"--config.{section}.… cannot be changed after training; remove it.")
    return Translator.load(
        FLAGS.workdir, FLAGS.checkpoint, FLAGS.config, FLAGS.allow_pickle, ensemble
    )
