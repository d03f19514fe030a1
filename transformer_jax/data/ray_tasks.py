"""Runs a function on many tasks on the machines of a Ray cluster.

Each machine needs this package and sees the folders that the tasks name. Tasks of a machine that
fails run again on another one, which Ray takes care of.
"""

import collections
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from transformer_jax.errors import UserError, missing_package

Task = TypeVar("Task")
Result = TypeVar("Result")

QUEUED = 2  # tasks that wait, for each core of the cluster
MAX_RETRIES = 10  # of a task whose machine fails


def run(
    function: Callable[[Task], Result], tasks: Iterator[Task], address: str
) -> Iterator[Result]:
    """Yields `function(task)` for each task, in order; arguments as of `workers.Workers`.

    Raises:
      UserError: Ray is not installed, or there is no cluster at `address`.
    """
    ray = connect(address)
    shared = ray.put(function)
    remote = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_call)
    waiting: collections.deque[Any] = collections.deque()
    while True:
        cores = int(ray.cluster_resources().get("CPU", 1))  # machines may come and go
        for task in itertools.islice(tasks, max(1, cores * QUEUED - len(waiting))):
            waiting.append(remote.remote(shared, task))
        if not waiting:
            return
        try:
            result = ray.get(waiting.popleft())
        except ray.exceptions.RayTaskError as error:
            raise error.cause or error from error
        except ray.exceptions.RayError as error:
            raise UserError(
                f"A task failed {MAX_RETRIES} times on the Ray cluster ({_first_line(error)}). "
                "What is done is kept; start the command again."
            ) from error
        yield result


def connect(address: str) -> Any:
    """The module `ray`, connected to a cluster.

    Raises:
      UserError: Ray is not installed, or there is no cluster at `address`.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise missing_package(error, "ray") from error
    if not ray.is_initialized():
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"There is no Ray cluster at {address} ({_first_line(error)}); start one, "
                "or name the address of another."
            ) from error
    return ray


def _call(function: Callable[[Task], Result], task: Task) -> Result:
    return function(task)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
