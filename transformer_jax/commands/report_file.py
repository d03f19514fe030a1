"""Writes `report.html` at the end of a command that is about something else."""

import importlib.util
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from etils import epath


def write(workdir: "epath.PathLike") -> None:
    """Writes the report where Matplotlib is installed.

    An error is printed only, because what the command did is saved.
    """
    from transformer_jax import distributed, waiting

    command = f"transformer-jax plot report --workdir={workdir}"
    if not importlib.util.find_spec("matplotlib"):
        return
    if distributed.process_count() > 1:
        # One process alone cannot read a checkpoint: Orbax would wait for the others.
        if distributed.is_primary():
            print(f"{command} writes a report")
        return
    from transformer_jax.extras.plotting.report import write_report

    try:
        with waiting.reminded(lambda seconds: f"still drawing after {seconds:.0f} s", print):
            path = write_report(workdir)
        print(f"wrote {path}", flush=True)
    except Exception as error:  # no memory, a full disk, or anything else
        print(
            f"report.html could not be written: {type(error).__name__}: {error}; {command} tries "
            "again",
            file=sys.stderr,
        )
