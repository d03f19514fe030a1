"""The engines that `benchmarks/attention.py` compares, each in a separate process."""

import concurrent.futures
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

# Kinds of attention; `step` is one query over the cache of a decoder.
CASES = ("full", "encoder", "causal", "cross", "packed", "step")
# More kinds, not timed by default: T5's relative positions (a bias with a gradient), ALiBi (a bias
# without one), and 4 heads of queries for each head of keys. All are `full` otherwise.
VARIANTS = ("relative", "alibi", "grouped")
QUERIES_OF_A_KEY = 4
SEGMENT = 32  # mean length of a packed sentence


@dataclasses.dataclass(frozen=True)
class Problem:
    """One call of attention that is timed."""

    case: str
    batch: int
    length: int  # of the keys
    heads: int
    head_dim: int
    dtype: str
    which: str  # "forward" or "forward+backward"

    @property
    def key_heads(self) -> int:
        return self.heads // QUERIES_OF_A_KEY if self.case == "grouped" else self.heads

    @property
    def query_length(self) -> int:
        return {"step": 1, "cross": max(1, 3 * self.length // 4)}.get(self.case, self.length)


def arrays(problem: Problem) -> dict[str, np.ndarray]:
    """Inputs of a problem, the same in every engine: those with a gradient, then `d_out`.

    `distance_bias` `[H, T + S - 1]`, of relative positions, comes before `d_out`.
    """
    rng = np.random.default_rng(0)
    query_shape = (problem.batch, problem.query_length, problem.heads, problem.head_dim)
    key_shape = (problem.batch, problem.length, problem.key_heads, problem.head_dim)
    shapes = dict[str, tuple[int, ...]](query=query_shape, key=key_shape, value=key_shape)
    if problem.case == "relative":
        shapes["distance_bias"] = (problem.heads, problem.query_length + problem.length - 1)
    shapes["d_out"] = query_shape
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def constant_bias(problem: Problem) -> np.ndarray | None:
    """The bias of ALiBi (Press et al. 2022), `[H, T + S - 1]`."""
    if problem.case != "alibi":
        return None
    slopes = 2.0 ** (-8 * np.arange(1, problem.heads + 1) / problem.heads)
    distances = np.abs(np.arange(1 - problem.query_length, problem.length))
    return (-slopes[:, None] * distances).astype(np.float32)


def distance_indices(problem: Problem) -> np.ndarray:
    """Where the bias of each query and key is in a bias by distance, `[T, S]`."""
    queries = np.arange(problem.query_length)[:, None]
    return np.arange(problem.length) - queries + problem.query_length - 1


def sums_by_distance(problem: Problem, matrix: np.ndarray) -> np.ndarray:
    """Gradient of a bias by distance from that of its matrix `[1, H, T, S]`."""
    indices = distance_indices(problem)
    return np.stack([np.bincount(indices.ravel(), head.ravel()) for head in matrix[0]])


def lengths(problem: Problem) -> np.ndarray | None:
    """Number of keys in each row that are not padding, `[B]`."""
    if problem.case not in ("encoder", "cross", "step"):
        return None
    low = max(1, 3 * problem.length // 4)
    rng = np.random.default_rng(1)
    return rng.integers(low, problem.length + 1, problem.batch).astype(np.int32)


def segments(problem: Problem) -> np.ndarray | None:
    """Segment ids `[B, T]` of sentences that fill each row, one after the other."""
    if problem.case != "packed":
        return None
    rng = np.random.default_rng(2)
    rows = []
    for _ in range(problem.batch):
        sizes = rng.integers(SEGMENT // 2, 3 * SEGMENT // 2, 2 + 2 * problem.length // SEGMENT)
        rows.append(np.repeat(np.arange(1, len(sizes) + 1), sizes)[: problem.length])
    return np.stack(rows).astype(np.int32)


def mask(problem: Problem) -> np.ndarray | None:
    """All masks combined, `[B, 1, T or 1, S]`, for engines that take nothing else."""
    if problem.case == "causal":
        return np.tri(problem.query_length, problem.length, dtype=bool)[None, None]
    if (sizes := lengths(problem)) is not None:
        return (np.arange(problem.length) < sizes[:, None])[:, None, None]
    if (ids := segments(problem)) is not None:
        return (ids[:, :, None] == ids[:, None, :])[:, None]
    return None


def flops(problem: Problem) -> float:
    """FLOPs of the products over allowed pairs: 4 D per pair forward, 10 D more backward."""
    allowed = mask(problem)
    shape = (problem.batch, 1, problem.query_length, problem.length)
    pairs = np.prod(shape) if allowed is None else np.broadcast_to(allowed, shape).sum()
    products = 4 if problem.which == "forward" else 14
    return float(products * pairs * problem.heads * problem.head_dim)


# Errors of implementations that cannot compute a problem.
_UNSUPPORTED = (ValueError, NotImplementedError, RuntimeError)


class JaxEngine:
    """Our implementations."""

    def __init__(self, names: list[str]):
        import jax

        self.jax = jax
        self.implementations = names
        self.programs: dict[tuple[Problem, str], dict] = {}

    def about(self) -> dict:
        device = self.jax.devices()[0]
        return {
            "platform": device.platform,
            "device": device.device_kind,
            "version": self.jax.__version__,
        }

    def names(self, problem: Problem) -> list[str]:
        return self.implementations

    def _inputs(self, problem: Problem) -> list:
        dtype = self.jax.numpy.dtype(problem.dtype)
        inputs = [self.jax.numpy.asarray(x, dtype) for x in arrays(problem).values()]
        # Arguments, not constants: a model knows lengths and segments only when it runs.
        extras = (segments(problem), lengths(problem), constant_bias(problem))
        return [*inputs, *(None if x is None else self.jax.numpy.asarray(x) for x in extras)]

    def _call(self, problem: Problem, name: str):
        from transformer_jax.ops.attention import dot_product_attention

        def call(*arrays):
            *inputs, d_out, ids, sizes, constant = arrays

            def attend(query, key, value, distance_bias=constant):
                return dot_product_attention(
                    query,
                    key,
                    value,
                    distance_bias=distance_bias,
                    causal=problem.case == "causal",
                    query_segment_ids=ids,
                    key_segment_ids=ids,
                    key_lengths=sizes,
                    implementation=name,
                )

            if problem.which == "forward":
                return (attend(*inputs),)
            out, pullback = self.jax.vjp(attend, *inputs)
            return out, *pullback(d_out)

        return call

    def _next(self, problem: Problem, name: str):
        """A call; returns inputs of the next one, which need its result."""
        call = self._call(problem, name)

        def following(*arrays):
            out, *grads = call(*arrays)
            if not grads:
                return (out,)
            return tuple(x + d_x for x, d_x in zip(arrays, grads, strict=False))

        return following

    def _repeated(self, problem: Problem, name: str):
        """A loop of calls in one program."""
        following = self._next(problem, name)

        def body(_, arrays):
            new = following(*arrays)
            return (*new, *arrays[len(new) :])

        return lambda count, *arrays: self.jax.lax.fori_loop(0, count, body, arrays)

    def compile(self, problems: Sequence[Problem]) -> None:
        """Compiles the programs of problems on all cores of this machine."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            names = [*self.implementations, "reference"]
            keys = [(problem, name) for problem in problems for name in names]
            programs = pool.map(lambda key: self._compile(*key), keys)
            self.programs.update(zip(keys, programs, strict=True))

    def _compile(self, problem: Problem, name: str) -> dict:
        jit, inputs = self.jax.jit, self._inputs(problem)
        started = time.perf_counter()
        try:
            call = jit(self._call(problem, name)).lower(*inputs).compile()
        except _UNSUPPORTED as error:
            return {"error": str(error).splitlines()[0]}
        seconds = time.perf_counter() - started
        program = {"call": call, "compile_seconds": seconds}
        if name == "reference":
            return program
        if self.jax.default_backend() == "cpu":
            repeated = jit(self._repeated(problem, name))
            return program | {"loop": repeated.lower(np.int32(1), *inputs).compile()}
        # A loop in a GPU's program waits for the host at each call, which calls one by one do not.
        return program | {"next": jit(self._next(problem, name)).lower(*inputs).compile()}

    def prepare(self, problem: Problem, name: str) -> dict:
        program = self.programs.get((problem, name)) or self._compile(problem, name)
        self.programs[problem, name] = program
        if "error" in program:
            return program
        outputs = program["call"](*self._inputs(problem))
        memory = program["call"].memory_analysis()
        return {
            "outputs": [np.asarray(x, np.float32) for x in outputs],
            "compile_seconds": program["compile_seconds"],
            "temporary_bytes": getattr(memory, "temp_size_in_bytes", None),
        }

    def reference(self, problem: Problem) -> list[np.ndarray]:
        return self.prepare(problem, "reference")["outputs"]

    def time(self, problem: Problem, name: str, count: int) -> float:
        inputs, program = self._inputs(problem), self.programs[problem, name]

        def run(calls: int) -> None:
            if "loop" in program:
                self.jax.block_until_ready(program["loop"](np.int32(calls), *inputs))
                return
            arrays = tuple(inputs)
            for _ in range(calls):
                new = program["next"](*arrays)
                arrays = (*new, *arrays[len(new) :])
            self.jax.block_until_ready(arrays)

        run(1)
        started = time.perf_counter()
        run(count)
        return (time.perf_counter() - started) / count

    def memory(self, problem: Problem, name: str) -> dict:
        inputs = self._inputs(problem)
        try:
            call = self.jax.jit(self._call(problem, name)).lower(*inputs).compile()
        except _UNSUPPORTED as error:
            return {"error": str(error).splitlines()[0]}
        if self.jax.default_backend() == "cpu":
            return added_memory(lambda: self.jax.block_until_ready(call(*inputs)))
        self.jax.block_until_ready(call(*inputs))
        stats = self.jax.devices()[0].memory_stats()
        return {"device_peak_bytes": stats["peak_bytes_in_use"]}

    def matmul_rate(self, dtype: str) -> float:
        jnp = self.jax.numpy
        size = 2048 if self.jax.default_backend() == "cpu" else 8192
        x = self.jax.random.normal(self.jax.random.key(0), (size, size), jnp.dtype(dtype))
        product = self.jax.jit(jnp.matmul)
        return best_rate(lambda: self.jax.block_until_ready(product(x, x)), 2 * size**3)

    def clear(self, problem: Problem) -> None:
        for name in (*self.implementations, "reference"):
            self.programs.pop((problem, name), None)
        self.jax.clear_caches()


class TorchEngine:
    """`torch.nn.functional.scaled_dot_product_attention`; on a GPU each of its back ends."""

    def __init__(self, names: list[str]):
        import torch

        del names
        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

    def about(self) -> dict:
        name = self.torch.cuda.get_device_name() if self.device == "cuda" else "cpu"
        return {
            "device": name,
            "version": self.torch.__version__,
            "threads": self.torch.get_num_threads(),
        }

    def names(self, problem: Problem) -> list[str]:
        if self.device == "cpu":
            return ["torch"]
        masked = problem.case not in ("full", "causal")
        return ["torch_cudnn", "torch_efficient"] + ([] if masked else ["torch_flash"])

    def _inputs(self, problem: Problem) -> list:
        dtype = getattr(self.torch, problem.dtype)
        inputs = {
            n: self.torch.tensor(x).to(self.device, dtype) for n, x in arrays(problem).items()
        }
        if "distance_bias" in inputs:  # --> [1, H, T, S]
            inputs["distance_bias"] = inputs["distance_bias"][:, distance_indices(problem)][None]
        # [B, T, H, D] in memory --> a transposed view [B, H, T, D].
        return [x if name == "distance_bias" else x.transpose(1, 2) for name, x in inputs.items()]

    def _call(self, problem: Problem, name: str):
        torch = self.torch
        backends = torch.nn.attention.SDPBackend
        chosen = {
            "torch_flash": [backends.FLASH_ATTENTION],
            "torch_cudnn": [backends.CUDNN_ATTENTION],
            "torch_efficient": [backends.EFFICIENT_ATTENTION],
            "torch": [backends.FLASH_ATTENTION, backends.MATH],
        }[name]
        causal = problem.case == "causal"
        allowed = None if causal else mask(problem)
        if allowed is not None:
            allowed = torch.tensor(allowed, device=self.device)
            shape = (problem.batch, 1, problem.query_length, problem.length)
            allowed = allowed.expand(shape)
        constant = constant_bias(problem)
        if constant is not None:
            constant = constant[:, distance_indices(problem)][None]
            allowed = torch.tensor(constant).to(self.device, getattr(torch, problem.dtype))

        def attend(query, key, value, bias=allowed):
            with torch.nn.attention.sdpa_kernel(chosen):
                return torch.nn.functional.scaled_dot_product_attention(
                    query,
                    key,
                    value,
                    attn_mask=bias,
                    is_causal=causal,
                    enable_gqa=problem.case == "grouped",
                )

        def call(*arrays):
            *inputs, d_out = arrays
            if problem.which == "forward":
                with torch.no_grad():
                    return (attend(*inputs),)
            inputs = [x.detach().requires_grad_() for x in inputs]
            out = attend(*inputs)
            return (out, *torch.autograd.grad(out, inputs, d_out))

        return call

    def _wait(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def prepare(self, problem: Problem, name: str) -> dict:
        inputs = self._inputs(problem)
        try:
            outputs = self._call(problem, name)(*inputs)
        except RuntimeError as error:
            return {"error": str(error).splitlines()[0]}
        names = ["out", *arrays(problem)]
        outputs = [x.detach().float().cpu().numpy() for x in outputs]
        return {
            "outputs": [
                sums_by_distance(problem, x) if name == "distance_bias" else x.swapaxes(1, 2)
                for name, x in zip(names, outputs, strict=False)
            ],
            "compile_seconds": 0.0,
            "temporary_bytes": None,
        }

    def time(self, problem: Problem, name: str, count: int) -> float:
        call, inputs = self._call(problem, name), self._inputs(problem)
        call(*inputs)
        self._wait()
        started = time.perf_counter()
        for _ in range(count):
            out, *grads = call(*inputs)
            if grads:
                inputs[:-1] = [x + d_x for x, d_x in zip(inputs[:-1], grads, strict=True)]
            else:
                inputs[0] = out
        self._wait()
        return (time.perf_counter() - started) / count

    def memory(self, problem: Problem, name: str) -> dict:
        inputs = self._inputs(problem)
        call = self._call(problem, name)
        if self.device == "cpu":
            return added_memory(lambda: call(*inputs))
        call(*inputs)
        self._wait()
        return {"device_peak_bytes": self.torch.cuda.max_memory_allocated()}

    def matmul_rate(self, dtype: str) -> float:
        size = 2048 if self.device == "cpu" else 8192
        x = self.torch.randn(size, size, device=self.device, dtype=getattr(self.torch, dtype))

        def product():
            _ = x @ x
            self._wait()

        return best_rate(product, 2 * size**3)

    def clear(self, problem: Problem) -> None:
        pass


ENGINES = {"jax": JaxEngine, "torch": TorchEngine}


def resident_memory(field: str) -> int:
    """Resident size of this process in bytes: `VmRSS` now, `VmHWM` the largest since the reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def added_memory(run: Callable[[], object]) -> dict[str, int]:
    """The peak memory that `run` adds to this process, and the peak of the process, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = resident_memory("VmRSS")
    result = run()
    peak = resident_memory("VmHWM")
    del result
    return {"added_bytes": peak - before, "process_peak_bytes": peak}


def best_rate(run, operations: float) -> float:
    """Operations per second in the fastest of ten runs."""
    run()
    times = []
    for _ in range(10):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return operations / min(times)
