"""Saves and restores the state of a run, and reports saves that fail."""

import dataclasses

import jax
import numpy as np
from etils import epath

from transformer_jax import distributed
from transformer_jax.config import CheckpointConfig
from transformer_jax.errors import UserError
from transformer_jax.training.progress import Progress
from transformer_jax.training.reporting import Reporter
from transformer_jax.training.runners import Runner
from transformer_jax.training.step import PyTree, TrainState
from transformer_jax.workdir.checkpoint import Checkpointer, FailedSave


class StateSaver:
    """Checkpoints of one run: its `Checkpointer`, for states in the layout of `runner`.

    A save that fails does not stop training. The next one is tried when it is due, and only the
    last one has to succeed.
    """

    def __init__(
        self, workdir: epath.Path, config: CheckpointConfig, runner: Runner, reporter: Reporter
    ):
        self._workdir, self._runner, self._reporter = workdir, runner, reporter
        self._checkpointer = Checkpointer(workdir, config)

    def restore(self, step: int) -> tuple[TrainState, Progress]:
        """The state and counters of the checkpoint of `step`, by any runner on any devices."""
        targets = self._runner.restore_target().to_items()
        items, meta = self._checkpointer.restore(step, targets)
        state = TrainState.from_items(items)
        if int(state.step) != step:
            raise UserError(
                f"Checkpoint {step} in {self._workdir} contains the state of step "
                f"{int(state.step)}; restore it from a copy, or remove it to resume from another."
            )
        return self._runner.from_checkpoint_layout(state), Progress(**meta["progress"])

    def save(
        self, step: int, state: TrainState, progress: Progress, scores: dict[str, float]
    ) -> None:
        """Starts to save in the background; reports if this save, or the one before, has failed.

        Args:
          step: steps done.
          state: in the layout of the runner.
          progress: counters of the run.
          scores: of this step's evaluation; empty without one.
        """
        self._report(self._checkpointer.wait())
        self._report(self._start(step, state, progress, scores, scheduled=True))

    def save_last(
        self,
        step: int,
        state: TrainState,
        progress: Progress,
        scores: dict[str, float],
        scheduled: bool,
    ) -> None:
        """Saves the newest step, unless it is saved, and waits until it is written.

        The arguments are those of `save`, and `scheduled`: False if only a request to stop is the
        reason. Such checkpoints are not averaged.

        Raises:
          UserError: where it could not be written.
        """
        failed = self._checkpointer.wait()
        if self._checkpointer.newest_saved == step:
            return
        self._report(failed, what_next=f"saving step {step} now")
        failed = self._start(step, state, progress, scores, scheduled) or self._checkpointer.wait()
        if failed is not None:
            newest = self._checkpointer.newest_saved
            kept = "" if newest is None else f"; step {newest} is the newest there"
            raise distributed.SharedError(
                f"Step {step} could not be saved in {self._workdir} ({failed.reason}){kept}; "
                "make room or fix the folder, and give the same command again."
            )

    def report_finished(self) -> None:
        """Reports a failed save early, without waiting for one that is being written."""
        # Of several processes one may still be saving, and they can only wait together.
        if distributed.process_count() == 1 and not self._checkpointer.is_saving():
            self._report(self._checkpointer.wait())

    def close(self) -> None:
        """Waits until the last checkpoint is written, or reports that it could not be."""
        self._report(self._checkpointer.close(), what_next="the same command resumes the run")

    def _start(
        self,
        step: int,
        state: TrainState,
        progress: Progress,
        scores: dict[str, float],
        scheduled: bool,
    ) -> FailedSave | None:
        """Starts to save; returns this save if it has failed at once."""
        state = self._runner.to_checkpoint_layout(state)
        state = copy_host_memory(state, self._runner.platform)
        meta = {
            "metrics": scores,
            "progress": dataclasses.asdict(progress),
            "scheduled": scheduled,
        }
        return self._checkpointer.save(step, state.to_items(), meta)

    def _report(
        self,
        failed: FailedSave | None,
        what_next: str = "training continues, and saves again when the next checkpoint is due",
    ) -> None:
        if failed is not None:
            newest = self._checkpointer.newest_saved
            kept = "there is none yet" if newest is None else f"that of step {newest} is kept"
            self._reporter.say(
                f"step {failed.step}: the checkpoint could not be written ({failed.reason}); "
                f"{kept}; {what_next}"
            )


def copy_host_memory(tree: PyTree, platform: str) -> PyTree:
    """`tree` with copies of its arrays in the host's memory, in the same sharding; others stay.

    Orbax would write those in the background from the very buffers that the next step overwrites,
    because it donates its state. Arrays in the memory of a device are copied by Orbax first.

    Args:
      tree: of arrays.
      platform: of their devices; on `cpu`, all memory is the host's.
    """

    def copy(x: jax.Array) -> jax.Array:
        if platform != "cpu" and x.sharding.memory_kind != "pinned_host":
            return x
        # Through NumPy: a compiled copy may have its result in the memory of the device.
        shards = [
            jax.device_put(np.array(shard.data), shard.data.sharding)
            for shard in x.addressable_shards
        ]
        return jax.make_array_from_single_device_arrays(x.shape, x.sharding, shards)

    return jax.tree.map(copy, tree)
