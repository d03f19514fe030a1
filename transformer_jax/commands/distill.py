"""The command `distill`: trains a student on what its teachers write."""

from absl import flags

from transformer_jax.commands import (
    command_line,
    config_flags,
    model_flags,
    search_flags,
    translate_corpus,
)
from transformer_jax.commands.command_help import CommandHelp

HELP = CommandHelp(
    usage="--teacher=DIR,DIR --config=RECIPE --workdir=DIR [flags]",
    about="Distils: translates the sources of the recipe's training corpora with "
    "a teacher, or with several together, and trains the recipe's model, the student, on their "
    "translations. The pairs are kept in WORKDIR/distilled. Given again, an interrupted job "
    "continues where it was.",
    less_memory="lower --batch_tokens or config.data.batch_tokens",
    examples=(
        (
            "A student with one decoder layer, for fast translation on a CPU:",
            "transformer-jax distill --teacher=runs/a,runs/b,runs/c --config=runs/a/recipe.py "
            "--config.model.num_decoder_layers=1 --workdir=runs/student",
        ),
        (
            "Five sampled translations of each source, and the corpus itself:",
            "transformer-jax distill --teacher=runs/a --config=runs/a/recipe.py --method=sample "
            "--n_best=5 --keep_corpus --workdir=runs/student",
        ),
        (
            "Translations that the teacher is sure of, by a Ray cluster with GPUs:",
            "transformer-jax distill --teacher=/shared/runs/a --config=recipe.py --gpus=1 "
            "--ray=auto --min_log_prob=-0.5 --workdir=/shared/runs/student",
        ),
    ),
    fields=(
        "data.train",
        "model.num_encoder_layers",
        "model.num_decoder_layers",
        "model.d_model",
        "model.d_ff",
        "train.num_steps",
    ),
    pages=(("docs/synthetic_data.md", "distillation and back-translation"),),
    resumes=True,
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv` with the recipe as the path of a file."""
    command_line.define_paths(
        "teacher",
        [],
        "DIR,DIR",
        "Folders of trained models, DIR or DIR@CHECKPOINT; several are an ensemble.",
    )
    command_line.define_path("workdir", None, "DIR", "Folder of the student's run.")
    flags.DEFINE_bool("keep_corpus", False, "Train on the corpora themselves, too.")
    model_flags.define_languages()
    translate_corpus.define_pair_flags()
    translate_corpus.define_process_flags()
    search_flags.define()
    return config_flags.define_for_training(argv)


def run() -> None:
    """Translates, then trains."""
    from transformer_jax.commands import distillation

    distillation.run()
