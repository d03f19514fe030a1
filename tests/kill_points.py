"""Trains, is killed at many points, resumes, and compares; run by test_faults.py.

    python tests/kill_points.py DATA FOLDER NUM_FILE_POINTS STEP_POINT…

Each run is a fork of one process that has imported everything and not yet used JAX. A *file point*
is the k-th time that anything is opened, made, renamed or removed below the work directory (the
audit events of Python); a *step point* is just before a training step. Prints JSON: the digest of
the undisturbed run's last state, and for each point that of the run that was killed there and
started again, with the step from which it resumed.
"""

import hashlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import jax
import numpy as np
from etils import epath

from tests.conftest import tiny_config
from transformer_jax.training import loop, runners

NUM_STEPS = 12
SAVE_EVERY = 4


def config_of(data: Path):
    return tiny_config(
        data,
        num_steps=NUM_STEPS,
        checkpoint_every_steps=SAVE_EVERY,
        eval_every_steps=0,
        log_every_steps=3,
    )


def in_child(function, *args) -> tuple[int, str]:
    """Exit status (negative: signal) of a fork that calls `function`, and what it returned."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            jax.config.update("jax_num_cpu_devices", 1)
            os.write(write, str(function(*args)).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as pipe:
        result = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), result


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def watch_files(workdir: Path, at: int | None) -> list[int]:
    """Counts events on files below `workdir`, and dies at number `at`."""
    count = [0]
    kinds = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree")

    def hook(event, args):
        if event in kinds and str(workdir) in str(args[0]):
            count[0] += 1
            if count[0] == at:
                die()

    sys.addaudithook(hook)
    return count


def run(data: Path, workdir: Path, file_point: int | None = None, step_point: int | None = None):
    """Trains to the end, unless it dies; (step it began at, digest of its state, file events)."""
    count = watch_files(workdir, file_point)
    if step_point is not None:
        original_step = runners.JitRunner.step

        def step(self, state, batch):
            if int(state.step) == step_point:
                die()
            return original_step(self, state, batch)

        runners.JitRunner.step = step
    with loop.open_run(config_of(data), epath.Path(workdir)) as trainer:
        began = trainer.step
        trainer.run()
        digest = hashlib.blake2b(digest_size=16)
        for leaf in jax.tree.leaves(jax.device_get(trainer.state)):
            digest.update(np.ascontiguousarray(leaf).tobytes())
    return json.dumps([began, digest.hexdigest(), count[0]])


def main(data: Path, folder: Path, num_file_points: int, step_points: list[int]) -> None:
    status, result = in_child(run, data, folder / "straight")
    assert status == 0
    _, straight, num_events = json.loads(result)
    file_points = np.linspace(1, num_events, num_file_points).astype(int).tolist()
    points = [("file", k, (k, None)) for k in file_points]
    points += [("step", k, (None, k)) for k in step_points]
    results = []
    for kind, number, arguments in points:
        workdir = folder / f"{kind}_{number}"
        status, _ = in_child(run, data, workdir, *arguments)
        status_again, result = in_child(run, data, workdir)
        began, digest, _ = json.loads(result) if status_again == 0 else (None, None, None)
        results.append(
            {
                "kind": kind,
                "number": number,
                "killed": status == -signal.SIGKILL,
                "began": began,
                "digest": digest,
            }
        )
    print(json.dumps({"straight": straight, "num_events": num_events, "points": results}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), [int(a) for a in sys.argv[4:]])
