"""Runs a function on many tasks on the machines of a Ray cluster.

Each machine needs this package and sees the folders that the tasks name. Tasks of a machine that
fails run again on another one, which Ray takes care of.
"""

import collections
import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from transformer_jax.errors import UserError, missing_package

Task = TypeVar("Task")
Result = TypeVar("Result")

QUEUED = 4  # tasks that wait, besides those that run
TASKS_OF_ACTOR = 2  # that wait for a process that has a model
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
        for task in itertools.islice(tasks, max(1, cores + QUEUED - len(waiting))):
            waiting.append(remote.remote(shared, task))
        if not waiting:
            return
        yield _result(ray, waiting.popleft())


def _result(ray: Any, reference: Any) -> Any:
    """Waits for the result of a task, and raises what the task has raised."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause or error from error
    except ray.exceptions.RayError as error:
        raise UserError(
            f"A task failed {MAX_RETRIES} times on the Ray cluster ({_first_line(error)}). "
            "What is done is kept; start the command again."
        ) from error


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


class Actors(Generic[Task, Result]):
    """Processes of a cluster that keep what they have loaded, such as a model.

    Args:
      make: makes in each process the function that it runs; picklable.
      address: of the cluster.
      num_cpus, num_gpus: what each process is given; as many processes are started as there is
        room for when work begins.

    Attributes:
      num: processes.
    """

    def __init__(
        self,
        make: Callable[[], Callable[[Task], Result]],
        address: str,
        num_cpus: float = 1,
        num_gpus: float = 0,
    ):
        self._ray = ray = connect(address)
        resources = ray.cluster_resources()
        rooms = [resources.get("CPU", 0) // num_cpus if num_cpus else math.inf]
        rooms += [resources.get("GPU", 0) // num_gpus] if num_gpus else []
        if not num_cpus and not num_gpus:
            raise UserError("A process needs CPUs or GPUs: `cpus` and `gpus` are both 0.")
        self.num = int(min(rooms))
        if not self.num:
            raise UserError(
                f"The Ray cluster has {resources.get('CPU', 0):g} CPUs and "
                f"{resources.get('GPU', 0):g} GPUs, and each process needs {num_cpus:g} and "
                f"{num_gpus:g}: ask for less."
            )
        remote = ray.remote(num_cpus=num_cpus, num_gpus=num_gpus)(_Actor)
        self._actors = [remote.remote(make) for _ in range(self.num)]

    def map(self, tasks: Iterator[Task]) -> Iterator[Result]:
        """The result of each task, in order; two tasks wait for each process.

        The tasks of a process that dies are given to the others.

        Raises:
          UserError: all processes have died.
        """
        ray, turns = self._ray, 0
        waiting: collections.deque[tuple[Task, Any, Any]] = collections.deque()

        def submit(task: Task) -> tuple[Task, Any, Any]:
            nonlocal turns
            turns += 1
            actor = self._actors[turns % len(self._actors)]
            return task, actor, actor.run.remote(task)

        while True:
            room = len(self._actors) * TASKS_OF_ACTOR - len(waiting)
            waiting.extend(map(submit, itertools.islice(tasks, max(0, room))))
            if not waiting:
                return
            task, actor, reference = waiting[0]
            try:
                result = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise error.cause or error from error
            except ray.exceptions.RayError as error:  # of several tasks, if a process dies
                self._actors = [other for other in self._actors if other is not actor]
                if not self._actors:
                    raise UserError(
                        f"The processes of the Ray cluster have died ({_first_line(error)}). What "
                        "is done is kept; start the command again."
                    ) from error
                waiting[0] = submit(task)
                continue
            waiting.popleft()
            yield result

    def close(self) -> None:
        """Ends the processes."""
        for actor in self._actors:
            self._ray.kill(actor)


class _Actor(Generic[Task, Result]):
    """A process; it makes its function at the first task, whose errors Ray hands on."""

    def __init__(self, make: Callable[[], Callable[[Task], Result]]):
        self._make = functools.cache(make)

    def run(self, task: Task) -> Result:
        return self._make()(task)
