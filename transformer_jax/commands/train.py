"""The command `train`: training, dry runs, `--verify_resume` and `--replay`."""

import dataclasses
import json
import sys
from collections.abc import Sequence

from absl import flags

from transformer_jax.commands import command_line, config_flags, process_flags, report_file
from transformer_jax.commands.command_help import CommandHelp
from transformer_jax.errors import UserError

FLAGS = flags.FLAGS
HELP = CommandHelp(
    usage="[--config=RECIPE] --workdir=DIR [flags]",
    about="Trains the model of a recipe in a work directory: config, tokenizer, checkpoints, "
    "metrics and samples. A new run needs --config. Given again, the command resumes. "
    "--config.SECTION.NAME=VALUE changes a setting.",
    less_memory=(
        "lower config.data.batch_tokens, raise config.train.accumulate_steps, or set "
        "config.train.remat=full"
    ),
    examples=(
        (
            "A first run, about a minute on a CPU:",
            "transformer-jax train --config=quickstart --workdir=runs/quickstart",
        ),
        (
            "A recipe that `transformer-jax init` wrote for your corpus:",
            "transformer-jax train --config=runs/mine/recipe.py --workdir=runs/mine",
        ),
        (
            "Resume it after an interruption, with the settings it was started with:",
            "transformer-jax train --workdir=runs/mine",
        ),
    ),
    fields=(
        "data.source",
        "data.train",
        "data.validation",
        "data.source_lang",
        "data.target_lang",
        "data.vocab_size",
        "data.batch_tokens",
        "model.d_model",
        "model.num_encoder_layers",
        "model.num_decoder_layers",
        "model.dropout_rate",
        "optimizer.learning_rate",
        "optimizer.warmup_steps",
        "train.num_steps",
        "train.eval_every_steps",
        "train.accumulate_steps",
        "seed",
    ),
    pages=(
        ("docs/train_your_own.md", "from text files to a translator"),
        ("docs/long_runs.md", "interruptions, averages, several devices"),
    ),
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv` with the recipe as the path of a file."""
    command_line.define_path("workdir", None, "DIR", "Folder of the run, new or to resume.")
    flags.DEFINE_integer("stop_after", None, "Save and stop after this step, to resume later.")
    flags.DEFINE_bool("dry_run", False, "Compile the step; report memory, FLOPs, communication.")
    flags.DEFINE_string(
        "topology",
        "",
        "Of a dry run: a TPU's such as v5e:2x4, cpu:N or gpu:N; empty: the local devices.",
    )
    command_line.define_path(
        "json", None, "FILE", "Also write the report of a dry run to this file."
    )
    flags.DEFINE_bool("verify_resume", False, "Check that a killed run resumes exactly.")
    flags.DEFINE_integer("verify_steps", 20, "Steps of each run of --verify_resume.", 4)
    command_line.define_path(
        "replay", None, "FILE", "Examine a skipped step: a file of bad_batches/."
    )
    flags.DEFINE_bool(
        "report", True, "Write report.html at the end, where Matplotlib is installed."
    )
    process_flags.define()
    return config_flags.define_for_training(argv)


def run() -> None:
    """Trains, or does what one of the flags names instead."""
    if FLAGS.dry_run:
        _dry_run()
        return
    if not FLAGS.workdir:
        raise UserError("--workdir=DIR is missing: the folder of the run.")
    if FLAGS.topology or FLAGS.json:
        raise UserError("--topology and --json are for --dry_run.")
    for name in ("verify_resume", "replay"):
        if FLAGS[name].value:
            process_flags.refuse(f"--{name}")
    if FLAGS.verify_resume:
        if command_line.value_of(sys.argv, "config") is None:
            raise UserError("--verify_resume needs --config=RECIPE: its runs start from nothing.")
        from transformer_jax.extras.diagnostics.verify_resume import verify_resume

        left_out = ("--workdir", "--verify_resume", "--verify_steps", "--replay", "--stop_after")
        verify_resume(FLAGS.config, FLAGS.workdir, _this_command(left_out), FLAGS.verify_steps)
        return
    if FLAGS.replay:
        from transformer_jax.extras.diagnostics.replay import replay

        replay(FLAGS.config, FLAGS.workdir, FLAGS.replay)
        return
    from etils import epath

    from transformer_jax.workdir import folder as workdir_lib

    workdir_lib.refuse_other_tools(FLAGS.workdir)  # before processes wait for each other in it
    process_flags.connect()
    from transformer_jax.training import loop

    finished = loop.train(FLAGS.config, epath.Path(FLAGS.workdir), FLAGS.stop_after)
    if finished and FLAGS.report:
        report_file.write(FLAGS.workdir)


def _dry_run() -> None:
    """Prints the report of a dry run; fails if something needs more memory than there is."""
    from transformer_jax.extras.diagnostics.dry_run import dry_run

    if FLAGS.topology:
        import jax

        jax.config.update("jax_platforms", "cpu")  # local accelerators stay unused
        jax.config.update("jax_enable_compilation_cache", False)  # programs cannot be loaded
    report = dry_run(FLAGS.config, FLAGS.topology, print)
    if FLAGS.json:
        from transformer_jax.commands.text_output import writing

        with writing(FLAGS.json) as out:
            out.write(json.dumps(dataclasses.asdict(report), indent=1) + "\n")
    if report.fits is False:
        what = f"The step, or an evaluation, does not fit {report.topology}"
        raise UserError(f"{what}: {HELP.less_memory}.")


def _this_command(left_out: Sequence[str]) -> list[str]:
    """The command line of this process without some of its flags."""
    kept, drop_next = [sys.executable], False
    for argument in sys.argv:
        name, has_value, _ = argument.partition("=")
        name = "--" + name.lstrip("-") if name.startswith("-") else name
        if name in left_out:
            drop_next = not has_value and not isinstance(FLAGS[name[2:]].value, bool)
        elif not drop_next:
            kept.append(argument)
        else:
            drop_next = False
    return kept
