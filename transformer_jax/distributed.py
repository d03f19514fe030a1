"""Several processes of one run, on JAX's own multi-controller runtime.

Each process calls the same functions in the same order. Where one of them can fail alone (it
prepares data, or looks at checkpoints), all processes get its error and stop with the same
sentence.
"""

import contextlib
import faulthandler
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar, cast

import jax
import numpy as np
from etils import epath
from jax._src import distributed  # no public name leads to the coordinator's server
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost as orbax_multihost

from transformer_jax import paths
from transformer_jax.errors import UserError

T = TypeVar("T")

HEARTBEAT_SECONDS = 30  # a process that is silent for longer is dead
PREPARING_SECONDS = 24 * 3600  # the other processes wait no longer for the one that prepares data
# Variables in which launchers pass the number of processes, and that of this one.
_LAUNCHERS = (
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
)

_LAST_ANSWER_SECONDS = 2  # see `exit_process`
ROLL_CALL = ".waiting"  # folder of the processes that wait for others, in the work directory
_NEW_FOLDERS = "new_folders"  # file in it: those that the roll call has made

_undestroyed_servers: list[object] = []  # see `disconnect`


def launched_with_others() -> bool:
    """Whether SLURM's or MPI's launcher has started several of this process."""
    return (_launched()[0] or 1) > 1


def _launched() -> tuple[int | None, int | None]:
    """Number of processes and of this one, by the launcher; None where it passes neither."""
    for names in _LAUNCHERS:
        count, number = (os.environ.get(name, "") for name in names)
        if count.isdigit() and number.isdigit():
            return int(count), int(number)
    return None, None


class SharedError(UserError):
    """Bad input that all processes have noticed at the same place, so none waits for another."""


def connect(
    workdir: epath.PathLike,
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    timeout_seconds: int,
    saves: bool = True,
) -> None:
    """Joins the other processes of the run; call it before JAX is used.

    JAX detects arguments that are None (SLURM, TPU pods, MPI, Kubernetes). Where not all processes
    arrive in time, this one ends with a sentence that names the missing ones.

    Args:
      workdir: of the run, which all processes can write to.
      coordinator_address: HOST:PORT of process 0.
      num_processes: of the run.
      process_id: 0 .. num_processes - 1.
      timeout_seconds: how long to wait for the others.
      saves: whether the process saves on a preemption notice and on SIGTERM instead of ending.

    Raises:
      UserError: where the arguments are incomplete and nothing could be detected.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Where another process dies, the runtime prints that and aborts; our frames would add nothing.
    faulthandler.disable()
    jax.config.update("jax_enable_preemption_service", saves)
    is_given = coordinator_address is not None
    names = (num_processes, process_id) if is_given else _launched()
    try:
        with _RollCall(workdir, *names, timeout_seconds):
            jax.distributed.initialize(
                coordinator_address,
                num_processes,
                process_id,
                initialization_timeout=timeout_seconds + 10,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            )
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"Process {process_id} could not join the others at {coordinator_address} "
            f"({reason}); start all of them again."
            if is_given
            else f"The other processes were not found ({reason}); give "
            "`coordinator_address=HOST:PORT`, `num_processes` and `process_id` to each."
        ) from error


def exit_process(status: int) -> NoReturn:
    """Ends this process without JAX's own clean-up, which would wait for the other processes.

    Process 0 has the runtime's server, and stays a little longer: where the server ends before its
    last answer has reached another process, the runtime aborts that one (status 134).
    """
    if distributed.global_state.process_id == 0:
        time.sleep(_LAST_ANSWER_SECONDS)
    os._exit(status)


def disconnect() -> None:
    """Leaves the other processes, after all have done their work; JAX cannot be used afterwards.

    The coordinator's server is not destroyed, but ends with the process. JAX destroys it at exit,
    which sometimes aborts the process after everything is written ("Check failed: queue.Pop() ==
    nullptr", in gRPC's server; status 134).
    """
    _undestroyed_servers.append(distributed.global_state.service)
    distributed.global_state.service = None
    with contextlib.suppress(RuntimeError):  # another process has ended, its work is done as well
        jax.distributed.shutdown()


class _RollCall:
    """A context that ends the process with status 2 where not all processes arrive in time.

    Each process that waits has a file in the work directory, so that the missing ones can be named.
    """

    def __init__(
        self,
        workdir: epath.PathLike,
        num_processes: int | None,
        process_id: int | None,
        timeout_seconds: int,
    ):
        self._num_processes, self._timeout_seconds = num_processes, timeout_seconds
        self._folder = epath.Path(workdir) / ROLL_CALL
        self._file = None if process_id is None else self._folder / str(process_id)
        self._alarm = threading.Timer(timeout_seconds, self._give_up)
        self._alarm.daemon = True

    def __enter__(self) -> None:
        self._started = time.time()
        # A folder that cannot be written is no reason to stop.
        with contextlib.suppress(OSError), paths.store_errors():
            if self._file is not None:
                workdir = self._folder.parent
                missing = [p for p in (workdir, *workdir.parents) if not p.exists()]
                self._folder.mkdir(parents=True, exist_ok=True)
                if missing and not paths.is_remote(workdir):
                    (self._folder / _NEW_FOLDERS).write_text(
                        "\n".join(map(str, missing)), encoding="utf-8"
                    )
                self._file.write_text(str(self._started), encoding="utf-8")
        self._alarm.start()

    def __exit__(self, *_: object) -> None:
        self._alarm.cancel()
        self._remove_file()

    def _give_up(self) -> None:
        # The runtime would end the process itself, with a stack of its own frames.
        print(f"error: {self._missing()}", file=sys.stderr, flush=True)
        self._remove_file()
        if not paths.is_remote(self._folder):
            with contextlib.suppress(OSError):
                if set(os.listdir(self._folder)) <= {_NEW_FOLDERS}:  # no other process waits
                    added = new_folders(self._folder.parent)
                    for folder in (self._folder, *added):
                        os.rmdir(folder)
        os._exit(2)

    def _remove_file(self) -> None:
        with contextlib.suppress(OSError), paths.store_errors():
            if self._file is not None:
                self._file.unlink(missing_ok=True)

    def _missing(self) -> str:
        wait = f"after {self._timeout_seconds} s (connect_timeout)"
        if self._file is None or self._num_processes is None:
            return f"not all processes of this run arrived {wait}; see which did not start."
        absent = [i for i in range(self._num_processes) if not self._has_arrived(i)]
        if not absent:
            return f"all processes are there but cannot reach the coordinator's address {wait}."
        names = ", ".join(map(str, absent))
        return (
            f"of {self._num_processes} processes, {names} did not arrive {wait}; start the missing "
            "ones, with the same coordinator's address and work directory, and these again."
        )

    def _has_arrived(self, number: int) -> bool:
        since = self._started - self._timeout_seconds
        try:
            with paths.store_errors():
                return float((self._folder / str(number)).read_text(encoding="utf-8")) >= since
        except (OSError, ValueError):
            return False


def new_folders(workdir: os.PathLike[str]) -> list[Path]:
    """Folders that the roll call has made: a local work directory and its parents, or none.

    Only the first call after a roll call returns them.
    """
    note = Path(workdir) / ROLL_CALL / _NEW_FOLDERS
    if not note.exists() or os.listdir(workdir) != [ROLL_CALL]:
        return []
    folders = note.read_text(encoding="utf-8").splitlines()
    note.unlink()
    return [Path(folder) for folder in folders]


def process_count() -> int:
    """Number of processes of the run."""
    return jax.process_count()


def is_primary() -> bool:
    """Whether this is the process that writes."""
    return jax.process_index() == 0


def all_gather(value: T) -> list[T]:
    """`value` of every process, in their order. All processes must call it."""
    if process_count() == 1:
        return [value]
    pickled = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.asarray([pickled.size]))).reshape(-1)
    # Of a size that comes again: each is compiled.
    padded = np.zeros(1 << int(sizes.max()).bit_length(), np.uint8)
    padded[: pickled.size] = pickled
    rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(process_count(), -1)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def run_on_primary(function: Callable[[], T], name: str) -> T:
    """Calls `function` on process 0 alone, and returns its result on every process.

    Args:
      function: its result must be picklable.
      name: of this call, for messages of the runtime.

    Raises:
      UserError: the one that `function` raised, on every process.
    """
    if process_count() == 1:
        return function()
    result, problem = _call(function) if is_primary() else (None, None)
    _wait_for_all(name)
    result, problem = all_gather((result, problem))[0]
    if problem is not None:
        raise SharedError(problem)
    return cast(T, result)


def run_on_all(function: Callable[[], T], name: str) -> T:
    """Calls `function` on every process, and returns each its own result.

    Raises:
      UserError: that of any process, on every process.
    """
    if process_count() == 1:
        return function()
    result, problem = _call(function)
    _wait_for_all(name)
    for number, other in enumerate(all_gather(problem)):
        if other is not None:
            raise SharedError(f"process {number}: {other}")
    return cast(T, result)


def run_primary_first(function: Callable[[], T], name: str) -> T:
    """Calls `function` on process 0, and then on the others, which read what it has cached.

    Raises:
      UserError: that of any process, on every process.
    """
    if process_count() == 1:
        return function()
    result, problem = _call(function) if is_primary() else (None, None)
    _wait_for_all(f"{name}_primary")
    problem = all_gather(problem)[0]
    if problem is not None:
        raise SharedError(problem)
    return run_on_all(lambda: cast(T, result) if is_primary() else function(), name)


def _call(function: Callable[[], T]) -> tuple[T | None, str | None]:
    """Result of `function`, or the sentence of its error."""
    try:
        with paths.store_errors():
            return function(), None
    except UserError as error:
        return None, str(error)
    except OSError as error:
        return None, f"{error.filename or 'a file'}: {error.strerror or error}."


def _wait_for_all(name: str) -> None:
    """By the runtime's service: collectives give up long before a large corpus is prepared."""
    orbax_multihost.get_barrier_sync_fn()(
        key=f"transformer_jax:{name}", timeout_ms=PREPARING_SECONDS * 1000
    )


def local_share(items: Sequence[T]) -> list[T]:
    """This process's share of `items`: every n-th, n being the number of processes."""
    return list(items[jax.process_index() :: process_count()])


def gather_shares(local: Sequence[T]) -> list[T]:
    """Results of every process's `local_share`, in the order of the items.

    All processes must call it.
    """
    shares = all_gather(list(local))
    total = sum(map(len, shares))
    return [shares[i % len(shares)][i // len(shares)] for i in range(total)]
