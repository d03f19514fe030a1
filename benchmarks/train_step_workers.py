"""This package's training step for `benchmarks/train_step.py`, and what all engines share."""

import abc
import dataclasses
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from transformer_jax.config import Config, ModelConfig
from transformer_jax.config.fields import Dtype

MOST_PARTS = 16
RATE_SIZES = {"cpu": (2048, 2048, 2048), "gpu": (8192, 8192, 8192)}


@dataclasses.dataclass(frozen=True)
class Task:
    """The training step that is timed: a model, and a batch of sentences of equal length."""

    model: ModelConfig
    rows: int
    source_len: int
    target_len: int
    dtype: Dtype = "float32"
    label_smoothing: float = 0.1
    loading: bool = False  # ours: batches come from the data pipeline

    @property
    def target_tokens(self) -> int:
        return self.rows * self.target_len

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Source `[B, S]` and target `[B, T]` ids without special ids."""
        rng = np.random.default_rng(0)
        shapes = ((self.rows, self.source_len), (self.rows, self.target_len))
        source, target = (rng.integers(4, self.model.target_vocab_size, s) for s in shapes)
        return source.astype(np.int32), target.astype(np.int32)


class Step(abc.ABC):
    """A training step of an engine.

    The constructor runs the first step, which compiles it, in `compile_seconds`.
    """

    compile_seconds: float = 0.0
    parts: int = 1  # equal parts of a batch, one after the other, so that it fits in memory

    def run(self, num_steps: int) -> float:
        """Seconds per step of `num_steps` steps; none waits for the result of the previous one."""
        started = time.perf_counter()
        for _ in range(num_steps):
            self.step()
        self.wait()
        return (time.perf_counter() - started) / num_steps

    def first(self) -> None:
        started = time.perf_counter()
        self.step()
        self.wait()
        self.compile_seconds = time.perf_counter() - started

    @abc.abstractmethod
    def step(self) -> None:
        """Starts one step."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Waits until all started steps are complete."""

    @abc.abstractmethod
    def loss(self) -> float:
        """Loss per target token of the last step."""

    def about(self) -> dict[str, Any]:
        return {
            "compile_seconds": self.compile_seconds,
            "peak_bytes": self.peak_bytes(),
            "parts": self.parts,
        }

    def peak_bytes(self) -> int:
        """Peak memory of the process; on a GPU, of the device."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class JaxStep(Step):
    """A training step whose result consists of JAX arrays."""

    last: Any = None

    def wait(self) -> None:
        import jax

        jax.block_until_ready(self.last)

    def peak_bytes(self) -> int:
        import jax

        stats = jax.devices()[0].memory_stats() or {}
        return stats.get("peak_bytes_in_use") or super().peak_bytes()


class Ours(JaxStep):
    """This package's step as `train.py` runs it: runner, optimizer and metrics."""

    _runner: Any
    _state: Any

    def __init__(self, task: Task):
        import jax

        while True:
            try:
                self._start(task)
                return
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error) or self.parts == MOST_PARTS:
                    raise
            # Outside the handler, whose traceback keeps the arrays of what failed.
            self.parts *= 2
            self._runner = self._state = None  # frees the device's memory

    def _start(self, task: Task) -> None:
        import jax

        from transformer_jax.data.plans.batch_shapes import BatchShape
        from transformer_jax.training.runners import make_runner

        self._config = run_config(task, self.parts)
        self._runner = make_runner(self._config, jax.devices()[:1])
        self._state = self._runner.init(0)
        started = time.perf_counter()
        self._runner.compile(BatchShape(task.rows, task.source_len, task.target_len), self._state)
        compile_seconds = time.perf_counter() - started
        self._batches = synthetic_batches(self._config, task)
        self._one = None if task.loading else next(self._batches)
        self.first()
        self.compile_seconds = compile_seconds

    def step(self) -> None:
        batch = next(self._batches) if self._one is None else self._one
        self._state, self.last = self._runner.step(self._state, batch)

    def loss(self) -> float:
        return float(self.last["loss_sum"] / self.last["tokens"])


def run_config(task: Task, parts: int = 1) -> Config:
    """The config of a run whose packed rows are filled by one sentence each."""
    config = Config()
    return dataclasses.replace(
        config,
        model=dataclasses.replace(task.model, dtype=task.dtype),
        data=dataclasses.replace(
            config.data, max_len=task.target_len, batch_tokens=task.target_tokens
        ),
        train=dataclasses.replace(
            config.train, label_smoothing=task.label_smoothing, accumulate_steps=parts
        ),
    )


def synthetic_batches(config: Config, task: Task) -> Iterator[dict[str, np.ndarray]]:
    """Batches of a synthetic corpus from the data pipeline."""
    from memory_corpus import TokenizedSide

    from transformer_jax.data import loader
    from transformer_jax.data.epoch_data import EpochData, Epochs
    from transformer_jax.data.plans import batch_plan
    from transformer_jax.data.plans.pair_selection import select_pairs
    from transformer_jax.data.token_cache import TokenizedCorpus
    from transformer_jax.data.tokenizer_pair import SpecialIds

    rng, count = np.random.default_rng(0), 20_000
    sides = []
    for length in (task.source_len - 1, task.target_len - 1):
        tokens = rng.integers(4, config.model.target_vocab_size, count * length)
        sides.append(TokenizedSide(tokens.astype(np.int32), np.arange(count + 1) * length))
    corpus = TokenizedCorpus(sides[0], sides[1], (count,), "synthetic")
    longest = max(task.source_len, task.target_len)
    selection = select_pairs(corpus.source.lengths, corpus.target.lengths, longest)
    plan = batch_plan.make_plan(selection, config)
    ids = SpecialIds(0, 2, 0, 2, 1)
    return loader.load_batches(loader.BatchSource(Epochs(EpochData(corpus, plan)), ids, 10**6), 0)


class JaxProducts:
    """Times one large matrix product, in a separate process: the engines' memory is measured."""

    def device(self) -> str:
        """JAX's name of the device's kind."""
        import jax

        return jax.devices()[0].device_kind

    def rate(self, dtype: str) -> float:
        """FLOPs per second, median."""
        import jax
        import jax.numpy as jnp

        m, k, n = RATE_SIZES["cpu" if jax.default_backend() == "cpu" else "gpu"]
        # Random: products of ones are faster on GPUs, which then draw less power.
        keys = jax.random.split(jax.random.key(0))
        a, b = (
            jax.random.normal(key, shape, dtype)
            for key, shape in zip(keys, ((m, k), (k, n)), strict=True)
        )
        product = jax.jit(jnp.matmul)
        return _rate(lambda: jax.block_until_ready(product(a, b)), 2.0 * m * k * n)


class TorchProducts:
    """Times the same matrix product with torch."""

    def rate(self, dtype: str) -> float:
        """FLOPs per second, median."""
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        m, k, n = RATE_SIZES["gpu" if device == "cuda" else "cpu"]
        kind = getattr(torch, dtype)
        a = torch.randn((m, k), dtype=kind, device=device)
        b = torch.randn((k, n), dtype=kind, device=device)

        def product() -> None:
            a @ b
            if device == "cuda":
                torch.cuda.synchronize()

        return _rate(product, 2.0 * m * k * n)


def _rate(run: Callable[[], object], flops: float) -> float:
    seconds = []
    for i in range(12):
        started = time.perf_counter()
        run()
        if i > 1:
            seconds.append(time.perf_counter() - started)
    return flops / float(np.median(seconds))
