"""Flags of the commands that load a trained model, and loading it by them."""

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from transformer_jax import paths
from transformer_jax.commands import command_line, config_flags
from transformer_jax.config import Config, all_settings
from transformer_jax.errors import UserError

if TYPE_CHECKING:  # these load JAX, which flags do not need
    from transformer_jax.extras.interop.model_facts import ModelFacts
    from transformer_jax.translator.pretrained import Pretrained
    from transformer_jax.translator.translator import Translator

FLAGS = flags.FLAGS


def define(argv: Sequence[str], other_folders: str = "") -> None:
    """Defines the model's flags, and `--config.a.b` for each setting of the one `argv` names.

    Args:
      argv: of the command.
      other_folders: which the command takes besides those that all take, for the help.
    """
    kinds = "a Hugging Face model" + (f", of {other_folders}" if other_folders else "")
    command_line.define_path(
        "workdir",
        None,
        "DIR|FILE",
        f"Folder of the run or of {kinds}, a bundle, or a name on the Hub.",
    )
    define_checkpoint()
    flags.DEFINE_bool(
        "allow_pickle", False, "Read a pickle, pytorch_model.bin or best.ckpt, with torch."
    )
    recipe = command_line.value_of(argv, "config")
    if recipe is not None:
        raise UserError(
            f"--config={recipe}: a trained model has its own config; remove the flag. "
            "--config.SECTION.NAME=VALUE changes a setting."
        )
    workdir = command_line.value_of(argv, "workdir")
    if workdir:
        workdir = paths.expand(workdir, "--workdir")
        paths.require(workdir, "--workdir")
        config = (
            _config_for_help(workdir) if command_line.wants_help(argv) else _read_config(workdir)
        )
        if config is not None:
            config_flags.define_config(config, argv)


def _read_config(workdir: str) -> Config:
    from etils import epath

    from transformer_jax.translator import pretrained

    folder, _, checkpoint = workdir.rpartition("@")
    if folder and epath.Path(folder).exists() and not epath.Path(workdir).exists():
        raise UserError(f"There is no {workdir}; use --workdir={folder} --checkpoint={checkpoint}.")
    return pretrained.read_config(workdir)


def _config_for_help(workdir: str) -> Config | None:
    """The config whose values help shows as defaults; None: there is none, or it is on the Hub."""
    from transformer_jax.workdir import folder as workdir_lib

    if not paths.is_remote(workdir) and not os.path.exists(workdir):
        return None  # a name on the Hub would be downloaded
    with contextlib.suppress(UserError):
        return workdir_lib.read_config(workdir)  # without JAX
    with contextlib.suppress(UserError):
        return _read_config(workdir)
    return None


def define_checkpoint() -> None:
    """Defines `--checkpoint`."""
    command_line.define_text(
        "checkpoint",
        "best",
        "best|latest|STEP|average:N",
        "The best by the validation set, the newest, of a step, or the mean of the N newest.",
    )


def define_languages() -> None:
    """Defines `--target_lang`, `--source_lang` and `--source_prefix`."""
    command_line.define_text(
        "target_lang",
        "",
        "LANG",
        "Language to translate into, for multilingual models; else the config's.",
    )
    command_line.define_text(
        "source_lang",
        "",
        "LANG",
        "Language of the input, for models that read it; else the config's.",
    )
    command_line.define_text(
        "source_prefix",
        "",
        "TEXT",
        "Text before every source, such as a T5's task; else the config's.",
    )


def define_ensemble() -> None:
    """Defines `--ensemble`."""
    command_line.define_paths(
        "ensemble",
        [],
        "DIR,DIR",
        "Further models, DIR or DIR@CHECKPOINT, to average probabilities with.",
    )


def define_licence() -> None:
    """Defines `--licence`."""
    command_line.define_text(
        "licence", "", "NAME", "Of the model, for its model card, such as cc-by-4.0."
    )


def load_with_facts() -> "tuple[Pretrained, ModelFacts]":
    """The model that the flags name, and what its model card says of it."""
    from transformer_jax.extras.interop import model_card
    from transformer_jax.translator import pretrained
    from transformer_jax.workdir import compilation_cache

    config, path = _config_of_model(needs_parameters=True), paths.expand(FLAGS.workdir)
    paths.require(path)
    compilation_cache.keep_programs()
    model = pretrained.load(path, FLAGS.checkpoint, config, FLAGS.allow_pickle)
    facts = model_card.collect_facts(FLAGS.workdir, model, FLAGS.checkpoint, FLAGS.licence)
    return model, facts


def load_translator(needs_parameters: bool = True) -> "Translator":
    """The model that the flags name, or the ensemble, with the settings that were overridden.

    Args:
      needs_parameters: whether a CTranslate2 model, which has none that can be read, is refused.

    Raises:
      UserError: a setting that only training could change.
    """
    from transformer_jax.translator.translator import Translator

    config = _config_of_model(needs_parameters)
    return Translator.load(FLAGS.workdir, FLAGS.checkpoint, config, FLAGS.allow_pickle, ensemble())


def _config_of_model(needs_parameters: bool) -> Config:
    """The config of the model that the flags name, with the settings that were overridden."""
    from transformer_jax.translator import pretrained
    from transformer_jax.workdir import directory_kinds

    if needs_parameters and directory_kinds.is_ctranslate2(FLAGS.workdir):
        raise UserError(f"{FLAGS.workdir} {directory_kinds.NO_PARAMETERS}.")
    trained = pretrained.read_config(FLAGS.workdir)
    for setting in all_settings(Config):
        fixed = setting.path.startswith(("model.", "optimizer.", "train."))
        value, stored = setting.value(FLAGS.config), setting.value(trained)
        if fixed and value != stored:
            raise UserError(
                f"--config.{setting.path}={value} cannot be changed after training, from {stored}; "
                "remove it."
            )
    config = FLAGS.config
    if "source_prefix" in FLAGS and FLAGS.source_prefix:
        data = dataclasses.replace(config.data, source_prefix=FLAGS.source_prefix)
        config = dataclasses.replace(config, data=data)
    return config


def ensemble() -> list[tuple[str, str]]:
    """(path, checkpoint) of the further models, for commands with `--ensemble`."""
    return models(FLAGS.ensemble) if "ensemble" in FLAGS else []


def models(names: Sequence[str]) -> list[tuple[str, str]]:
    """(path, checkpoint) of each `DIR` or `DIR@CHECKPOINT`; a folder may have an @ in its name."""

    def parse(name: str) -> tuple[str, str]:
        path, _, checkpoint = name.rpartition("@")
        return (path, checkpoint) if path and not os.path.exists(name) else (name, "best")

    return list(map(parse, names))
