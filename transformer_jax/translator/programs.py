"""Compiles the functions of a batch, one program for each shape, and runs them on devices."""

import collections
import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.config import ModelConfig
from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.errors import UserError
from transformer_jax.model import decoder_weights
from transformer_jax.model.transformer import Params
from transformer_jax.ops import platforms
from transformer_jax.search.processors import Processor
from transformer_jax.search.search_settings import SearchConstraints
from transformer_jax.translator.batch_functions import BatchFunctions, DeviceParams, ModelParams
from transformer_jax.translator.batching import TokenRows
from transformer_jax.workdir import host_memory

AXIS = "data"
Result = TypeVar("Result")
# Compiled programs that are kept, those used last: a structure of settings has about two for each
# of about ten lengths; a server compiles all numbers of rows, which are about forty programs.
MAX_PROGRAMS = 1024


class NotCompiledError(RuntimeError):
    """A batch needs a program that is not there, and nothing may be compiled any more."""


class ProgramCache:
    """The compiled programs that were used last; safe to use from several threads."""

    def __init__(self, max_programs: int):
        self.compiling = threading.Lock()  # held by the thread that compiles; others wait for it
        self.num_added = 0
        self.is_frozen = False
        self._max_programs = max_programs
        self._programs: collections.OrderedDict[Hashable, Callable] = collections.OrderedDict()
        self._lock = threading.Lock()  # of `_programs`

    def find(self, key: Hashable) -> Callable | None:
        """The program of `key`, if it is here."""
        with self._lock:
            if key in self._programs:
                self._programs.move_to_end(key)
            return self._programs.get(key)

    def add(self, key: Hashable, program: Callable) -> None:
        """Adds a program; drops the one that was not used for the longest time, if need be."""
        with self._lock:
            self._programs[key] = program
            self.num_added += 1
            if len(self._programs) > self._max_programs:
                self._programs.popitem(last=False)


# The programs of all models of this process. A program does not contain parameters, so a model that
# is loaded again, or another model of the same sizes, compiles nothing.
_of_process = ProgramCache(MAX_PROGRAMS)


class Programs:
    """Runs batches on the local devices; each shape is compiled once, on first use.

    Rows are sharded over the devices if their number divides; each device then searches by itself.
    With `shardings`, the devices of all processes compute each batch together: every process then
    has to run the same batches, one after the other.

    Args:
      models: one, or an ensemble of one vocabulary.
      ids: special ids.
      devices: local ones.
      starts_word: `[V]` boolean, tokens that may follow a phrase; None: all.
      processors: of log-probabilities, besides those of the settings.
      shardings: a `NamedSharding` for each parameter of the one model, which may be too large for a
        device; instead of `devices`. Rows are sharded over the axis `data` of its mesh.
    """

    def __init__(
        self,
        models: Sequence[ModelConfig],
        ids: SpecialIds,
        devices: Sequence[jax.Device],
        starts_word: np.ndarray | None = None,
        processors: Sequence[Processor] = (),
        shardings: Params | None = None,
    ):
        self.ids = ids
        self.functions = BatchFunctions(tuple(models), ids, tuple(processors))
        self._starts_word = starts_word
        self._shardings = shardings
        if shardings is None:
            kinds = (jax.sharding.AxisType.Auto,)
            self._mesh = jax.make_mesh((len(devices),), (AXIS,), kinds, devices=devices)
        else:
            self._mesh = jax.tree.leaves(shardings)[0].mesh
        self.num_devices = self._mesh.shape[AXIS]
        self._replicated = NamedSharding(self._mesh, PartitionSpec())
        self._cache = ProgramCache(MAX_PROGRAMS)
        # Of the last call: what was given, and its copy.
        self._device_params: tuple[ModelParams, DeviceParams] | None = None
        self._device_params_lock = threading.Lock()

    @property
    def vocab_size(self) -> int:
        """Tokens of the target vocabulary."""
        return max(model.target_vocab_size for model in self.functions.models)

    def num_sharing(self, num_rows: int) -> int:
        """Devices that share a batch of as many rows."""
        return self.num_devices if num_rows % self.num_devices == 0 else 1

    @property
    def num_compiled(self) -> int:
        """Programs that were compiled, or were found compiled in this process or on the disk."""
        return self._cache.num_added

    @platforms.settings_of_package()
    def put_on_devices(self, params: ModelParams) -> DeviceParams:
        """Lays out parameters on the devices. The last call's are kept, and shared by all threads.

        Args:
          params: of the model, or a tuple of them for an ensemble; or what `take` returned.
        """
        if isinstance(params, DeviceParams):
            return params
        with self._device_params_lock:
            if self._device_params is None or self._device_params[0] is not params:
                trees = params if isinstance(params, tuple) else (params,)
                self._device_params = params, self._lay_out([dict(tree) for tree in trees])
            _, device_params = self._device_params
            return device_params

    @platforms.settings_of_package()
    def take(self, trees: Sequence[Params]) -> DeviceParams:
        """As `put_on_devices`, but the trees are emptied, so that the memory holds a model once."""
        return self._lay_out(trees, host_memory.return_freed_memory)

    def _lay_out(
        self, trees: Sequence[Params], after_part: Callable[[], None] = lambda: None
    ) -> DeviceParams:
        models = self.functions.models
        if len(trees) != len(models):
            raise ValueError(f"{len(trees)} parameter trees for {len(models)} models")

        def place(name: str, part: Any) -> Any:
            after_part()  # the one before
            return jax.device_put(part, (self._shardings or {}).get(name, self._replicated))

        return DeviceParams(
            tuple(
                decoder_weights.for_inference(model, tree, place)
                for model, tree in zip(models, trees, strict=True)
            ),
            place("starts_word", self._starts_word),
        )

    def freeze(self) -> None:
        """Lets nothing compile any more: what needs another program raises `NotCompiledError`.

        Raises:
          UserError: more were compiled than are kept.
        """
        if self._cache.num_added > MAX_PROGRAMS:
            raise UserError(
                f"{self._cache.num_added} programs were compiled, and {MAX_PROGRAMS} are kept: ask "
                "for fewer searches, or for shorter texts at once."
            )
        self._cache.is_frozen = True

    @platforms.settings_of_package()
    def run(
        self,
        function: Callable[..., Result],
        params: DeviceParams,
        *batch: TokenRows | SearchConstraints | np.ndarray | None,
        **static: Hashable,
    ) -> Result:
        """Runs a function of `functions`; the result is on the host.

        Args:
          function: such as `functions.search`.
          params: its first argument.
          *batch: its other arguments, with a row for each sentence; or for each device that shares
            the batch.
          **static: its keyword arguments; each combination is compiled.
        """
        leaves, tree = jax.tree.flatten(batch)
        sharded = self.num_sharing(len(leaves[0])) > 1
        if self._shardings is not None:
            leaves = [self._global_array(x, sharded) for x in leaves]
            batch = jax.tree.unflatten(tree, leaves)
        elif self.num_devices > 1 and not sharded:
            params = jax.tree.map(lambda x: x.addressable_data(0), params)
        shapes = tuple((x.shape, str(x.dtype)) for x in leaves)
        key = (function.__name__, *static.values(), shapes, tree, platforms.matmul_precision())
        program = self._cache.find(key)
        if program is None:
            with self._cache.compiling:
                program = self._cache.find(key)
                if program is None and self._cache.is_frozen:
                    raise NotCompiledError(f"{function.__name__} of shapes {shapes}")
                if program is None:
                    shared_key = self._shared_key(key, params)
                    program = _of_process.find(shared_key) if shared_key else None
                    if program is None:
                        program = self.compile(function, params, batch, static, sharded)
                        if shared_key:
                            _of_process.add(shared_key, program)
                    self._cache.add(key, program)
        return jax.device_get(program(params, *batch))

    def _global_array(self, x: np.ndarray, by_row: bool) -> jax.Array:
        """The array of all processes, which each of them has."""
        sharding = NamedSharding(self._mesh, PartitionSpec(AXIS)) if by_row else self._replicated
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    def _shared_key(self, key: Hashable, params: DeviceParams) -> Hashable:
        """Key of a program in `_of_process`; None where it is not shared.

        Decoding rules may be closures over large arrays, which the cache would keep.
        """
        if self.functions.processors:
            return None
        leaves, tree = jax.tree.flatten(params)
        shapes = tuple((x.shape, x.dtype, x.sharding) for x in leaves)
        return key, self.functions, tuple(self._mesh.devices.flat), tree, shapes

    def compile(
        self,
        function: Callable,
        params: DeviceParams,
        batch: tuple[Any, ...],
        static: dict[str, Any],
        sharded: bool,
    ) -> jax.stages.Compiled:
        """Compiles what `run` runs; with `shardings`, shapes and their shardings are enough.

        Args:
          function, params, batch, static: as of `run`.
          sharded: whether the devices share the rows.
        """
        bound: Any = functools.partial(function, **static)
        bound.__name__ = function.__name__  # of the program
        if self._shardings is not None:
            with jax.set_mesh(self._mesh):  # which attention looks for
                jitted = jax.jit(bound, out_shardings=self._replicated)
                return jitted.lower(params, *batch).compile()
        if sharded:
            by_row = PartitionSpec(AXIS)
            bound = jax.shard_map(
                bound,
                mesh=self._mesh,
                in_specs=(PartitionSpec(), *[by_row] * len(batch)),
                out_specs=by_row,
                check_vma=False,
            )
        return jax.jit(bound).lower(params, *batch).compile()


def with_context(device: jax.Device, function: Callable[..., Result]) -> Callable[..., Result]:
    """`function` for another thread, which inherits neither device nor precision of this one."""
    precision = platforms.matmul_precision()

    @functools.wraps(function)
    def call(*arguments: Any) -> Result:
        with jax.default_device(device), jax.default_matmul_precision(precision):
            return function(*arguments)

    return call
