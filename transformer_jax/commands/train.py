"""The command `train`: its flags; training, dry runs, checking that runs go on, replaying."""

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags
from etils import epath

from transformer_jax import paths
from transformer_jax.commands import process_flags
from transformer_jax.commands.text_output import writing
from transformer_jax.errors import UserError

FLAGS = flags.FLAGS
LESS_MEMORY = (
    "lower config.data.batch_tokens, raise config.train.accumulate_steps, or set "
    "config.train.remat=True"
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv` with `--config NAME` as the path of a recipe."""
    from ml_collections import config_flags

    config_flags.DEFINE_config_file("config", help_string="Recipe: a file, or a built-in name.")
    flags.DEFINE_string("workdir", None, "Folder of the run; made, or gone on with.")
    flags.DEFINE_integer(
        "stop_after", None, "Save and stop behind this step; the run goes on later."
    )
    flags.DEFINE_bool("dry_run", False, "Compile the step and report memory, FLOPs, exchanges.")
    flags.DEFINE_string(
        "topology",
        "",
        "Of a dry run: a TPU's such as v5e:2x4, cpu:N, gpu:N; what is here if empty.",
    )
    flags.DEFINE_string("json", None, "Also write the report of a dry run to this file.")
    flags.DEFINE_bool("verify_resume", False, "Check that a killed run goes on exactly.")
    flags.DEFINE_integer("verify_steps", 20, "Steps of each run of --verify_resume.", 4)
    flags.DEFINE_string("replay", None, "Look at a skipped step: a file of bad_batches/.")
    flags.DEFINE_bool(
        "report", True, "Write report.html at the end, where Matplotlib is installed."
    )
    process_flags.define()
    flags.mark_flag_as_required("config")
    joined: list[str] = []
    for argument in argv:
        if joined and joined[-1].lstrip("-") == "config" and joined[-1].startswith("-"):
            joined[-1] = f"{joined[-1]}={argument}"
        else:
            joined.append(argument)
    return [_resolve_recipe(argument) for argument in joined]


def _resolve_recipe(argument: str) -> str:
    """Turns `--config=NAME` into the path of a recipe that comes with the package."""
    name = argument.lstrip("-")
    if not argument.startswith("-") or not name.startswith("config="):
        return argument
    path = Path(paths.expand(name.removeprefix("config="), "--config"))
    if path.is_file():
        return f"--config={path}"
    package = Path(__file__).parent.parent
    folders = (package / "configs", package.parent / "configs")  # installed, or a checkout
    built_in = {p.stem: p for f in folders for p in f.glob("*.py") if p.stem != "__init__"}
    # NAME, or configs/NAME.py where there is no such folder; another path is meant as it is.
    if path.parent in (Path("."), Path("configs")) and path.stem in built_in:
        return f"--config={built_in[path.stem]}"
    raise UserError(f"There is no recipe {path}; built in are {', '.join(sorted(built_in))}.")


def run() -> None:
    """Trains, or does what one of the flags asks for instead."""
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
        from transformer_jax.diagnostics.verify_resume import verify_resume

        own = ("--workdir", "--verify_resume", "--verify_steps", "--replay", "--stop_after")
        verify_resume(FLAGS.config, FLAGS.workdir, _same_command(own), FLAGS.verify_steps)
        return
    if FLAGS.replay:
        from transformer_jax.diagnostics.replay import replay

        replay(FLAGS.config, FLAGS.workdir, FLAGS.replay)
        return
    process_flags.connect()
    from transformer_jax.training import loop

    finished = loop.train(FLAGS.config, epath.Path(FLAGS.workdir), FLAGS.stop_after)
    if finished and FLAGS.report:
        _report(epath.Path(FLAGS.workdir))


def _report(workdir: epath.Path) -> None:
    """Writes `report.html`; a run that is saved does not fail for want of it."""
    from transformer_jax import distributed

    if not importlib.util.find_spec("matplotlib"):
        return
    if distributed.process_count() > 1:
        # One process alone cannot read a checkpoint: Orbax would wait for the others.
        if distributed.is_primary():
            print(f"python -m transformer_jax.plotting report --workdir={workdir} writes a report")
        return
    from transformer_jax.plotting.report import write_report

    try:
        print(f"wrote {write_report(workdir)}", flush=True)
    except Exception as error:  # a device without room, a disk without, whatever it may be
        print(f"report.html could not be written: {type(error).__name__}: {error}; "
              f"python -m transformer_jax.plotting report --workdir={workdir} tries again",
              file=sys.stderr)  # fmt: skip


def _dry_run() -> None:
    from transformer_jax.diagnostics.dry_run import dry_run

    if FLAGS.topology:
        import jax

        jax.config.update("jax_platforms", "cpu")  # the devices that are here stay untouched
        jax.config.update("jax_enable_compilation_cache", False)  # no device to load programs for
    report = dry_run(FLAGS.config, FLAGS.topology, print)
    if FLAGS.json:
        with writing(FLAGS.json) as out:
            out.write(json.dumps(dataclasses.asdict(report), indent=1) + "\n")
    if report.fits is False:
        raise UserError(f"The step does not fit {report.topology}.")


def _same_command(left_out: Sequence[str]) -> list[str]:
    """Program and arguments of this process, some flags left out."""
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
