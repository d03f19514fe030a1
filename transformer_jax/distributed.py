"""Several processes of one run, on JAX's own multi-controller runtime.

Each process calls the same functions in the same order. Where one of them alone does something
that can fail (prepare data, look at checkpoints), the others learn of it and stop with the same
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
from typing import Any, TypeVar

import jax
import numpy as np
from etils import epath
from jax._src import distributed  # no public name leads to the coordinator's server
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost as orbax_multihost

from transformer_jax import paths
from transformer_jax.errors import UserError

T = TypeVar("T")

HEARTBEAT_SECONDS = 30  # a process that is silent for so long is dead
PREPARING_SECONDS = 24 * 3600  # others wait so long for the one that prepares the data
# Variables of launchers that tell the number of processes, and that of this one.
_LAUNCHERS = (
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
)


_kept: list[Any] = []  # servers that must not be destroyed before the process ends


def launched_with_others() -> bool:
    """Whether SLURM's or MPI's launcher has started several of this process."""
    return (_launched()[0] or 1) > 1


def _launched() -> tuple[int | None, int | None]:
    """Number of processes and of this one, by the launcher; None where it does not tell."""
    for names in _LAUNCHERS:
        count, number = (os.environ.get(name, "") for name in names)
        if count.isdigit() and number.isdigit():
            return int(count), int(number)
    return None, None


def connect(
    workdir: epath.PathLike,
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    timeout_seconds: int,
    saves: bool = True,
) -> None:
    """Joins the other processes of the run; call it before JAX is used.

    Arguments that are None are found by JAX (SLURM, TPU pods, MPI, Kubernetes). Ends the process
    with a sentence that names who is missing, where not all have come in time.

    Args:
      workdir: of the run, which all processes can write to.
      coordinator_address: HOST:PORT of process 0.
      num_processes: of the run.
      process_id: 0 .. num_processes - 1.
      timeout_seconds: how long to wait for the others.
      saves: whether preemption notices and SIGTERM are waited for, instead of ending the process.

    Raises:
      UserError: where the arguments are incomplete and nothing could be detected.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Where another process dies, the runtime says so and aborts; our frames would add nothing.
    faulthandler.disable()
    jax.config.update("jax_enable_preemption_service", saves)
    started = time.time()
    given = coordinator_address is not None
    names = (num_processes, process_id) if given else _launched()
    roll = _RollCall(workdir, *names)
    roll.enter()

    def give_up() -> None:
        # The runtime would end the process itself, with a stack of its own frames.
        print(f"error: {roll.missing(started - timeout_seconds, timeout_seconds)}",
              file=sys.stderr, flush=True)  # fmt: skip
        roll.leave()
        os._exit(2)

    alarm = threading.Timer(timeout_seconds, give_up)
    alarm.daemon = True
    alarm.start()
    try:
        jax.distributed.initialize(
            coordinator_address, num_processes, process_id,
            initialization_timeout=timeout_seconds + 10,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        if given:
            raise UserError(
                f"Process {process_id} could not join the others at {coordinator_address} "
                f"({str(error).splitlines()[0]}); start all of them again."
            ) from error
        raise UserError(
            f"The other processes were not found ({str(error).splitlines()[0]}); give "
            "--coordinator_address=HOST:PORT, --num_processes and --process_id to each."
        ) from error
    finally:
        alarm.cancel()
        roll.leave()


def disconnect() -> None:
    """Leaves the other processes, once all have done their work; JAX cannot be used afterwards.

    The coordinator's server is left running for the caller to end with its process: destroying it,
    as JAX does at exit, sometimes aborts the process ("Check failed: queue.Pop() == nullptr", in
    gRPC's server; status 134), though everything is written.
    """
    _kept.append(distributed.global_state.service)
    distributed.global_state.service = None
    with contextlib.suppress(RuntimeError):  # another has ended since: our work is done as well
        jax.distributed.shutdown()


class _RollCall:
    """Marks in the work directory of processes that wait for others, so that these can be named."""

    def __init__(self, workdir: epath.PathLike, num_processes: int | None, process_id: int | None):
        self._folder = epath.Path(workdir) / ".waiting"
        self._num_processes, self._process_id = num_processes, process_id

    def enter(self) -> None:
        # A folder that is only read is no reason to stop.
        with contextlib.suppress(OSError), paths.store_errors():
            if self._process_id is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                (self._folder / str(self._process_id)).write_text(str(time.time()))

    def leave(self) -> None:
        with contextlib.suppress(OSError), paths.store_errors():
            if self._process_id is not None:
                (self._folder / str(self._process_id)).unlink(missing_ok=True)

    def missing(self, since: float, seconds: int) -> str:
        wait = f"after {seconds} s (--connect_timeout)"
        if self._process_id is None or self._num_processes is None:
            return f"not all processes of this run have come {wait}; see which did not start."
        absent = [i for i in range(self._num_processes) if not self._has_come(i, since)]
        if not absent:
            return f"all processes are there but cannot reach --coordinator_address {wait}."
        names = ", ".join(map(str, absent))
        return (
            f"of {self._num_processes} processes, {names} did not come {wait}; start the missing "
            "ones, with the same --coordinator_address and --workdir, and these again."
        )

    def _has_come(self, number: int, since: float) -> bool:
        try:
            with paths.store_errors():
                return float((self._folder / str(number)).read_text()) >= since
        except (OSError, ValueError):
            return False


def process_count() -> int:
    return jax.process_count()


def process_index() -> int:
    return jax.process_index()


def is_primary() -> bool:
    """Whether this is the process that writes."""
    return jax.process_index() == 0


def all_gather(value: T) -> list[T]:
    """`value` of every process, in their order. All processes must call it."""
    if process_count() == 1:
        return [value]
    own = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.asarray([own.size]))).reshape(-1)
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: own.size] = own
    rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(process_count(), -1)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def run_on_primary(function: Callable[[], T], name: str) -> T:
    """The result of `function`, which process 0 alone calls; the others wait.

    Args:
      function: its result must be picklable.
      name: of the place, for messages of the runtime.

    Raises:
      UserError: the one that `function` raised, on every process.
    """
    if process_count() == 1:
        return function()
    outcome: tuple[Any, str | None] = _attempt(function) if is_primary() else (None, None)
    _wait_for_all(name)
    result, problem = all_gather(outcome)[0]
    if problem is not None:
        raise UserError(problem)
    return result


def run_on_all(function: Callable[[], T], name: str) -> T:
    """The result of `function`, which every process calls for itself.

    Raises:
      UserError: that of any process, on every process.
    """
    if process_count() == 1:
        return function()
    result, problem = _attempt(function)
    _wait_for_all(name)
    problems = all_gather(problem)
    for number, other in enumerate(problems):
        if other is not None:
            raise UserError(f"process {number}: {other}")
    return result


def _wait_for_all(name: str) -> None:
    """By the runtime's service: collectives give up long before a large corpus is prepared."""
    orbax_multihost.get_barrier_sync_fn()(
        key=f"transformer_jax:{name}", timeout_ms=PREPARING_SECONDS * 1000
    )


def _attempt(function: Callable[[], Any]) -> tuple[Any, str | None]:
    try:
        with paths.store_errors():
            return function(), None
    except UserError as error:
        return None, str(error)
    except OSError as error:
        return None, f"{error.filename or 'a file'}: {error.strerror or error}."


def local_share(items: Sequence[T]) -> list[T]:
    """This process's share of `items`: every n-th."""
    return list(items[process_index() :: process_count()])


def gather_shares(own: Sequence[T]) -> list[T]:
    """The results of all shares, in the order of the items. All processes must call it."""
    shares = all_gather(list(own))
    total = sum(map(len, shares))
    return [shares[i % len(shares)][i // len(shares)] for i in range(total)]
