"""The training steps that `benchmarks/train_step.py` compares, each in a process of its own."""

import abc
import dataclasses
import importlib
import resource
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from transformer_jax.config import Config, ModelConfig
from transformer_jax.config.fields import Dtype

RATE_SIZES = {"cpu": (2048, 2048, 2048), "gpu": (8192, 8192, 8192)}


@dataclasses.dataclass(frozen=True)
class Task:
    """One step: a model and a batch of sentences that are all equally long."""

    model: ModelConfig
    rows: int
    source_len: int
    target_len: int
    dtype: Dtype = "float32"
    label_smoothing: float = 0.1
    loading: bool = False  # ours: batches come through plan and loader

    @property
    def target_tokens(self) -> int:
        return self.rows * self.target_len

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Source `[B, S]` and target `[B, T]` ids, none of them special."""
        rng = np.random.default_rng(0)
        shapes = ((self.rows, self.source_len), (self.rows, self.target_len))
        source, target = (rng.integers(4, self.model.target_vocab_size, s) for s in shapes)
        return source.astype(np.int32), target.astype(np.int32)


class Step(abc.ABC):
    """A training step that can be run; what all of them have in common.

    When it is made, its first step is run, hence compiled; `compile_seconds` is what that took.
    """

    compile_seconds: float = 0.0

    def run(self, num_steps: int) -> float:
        """Seconds a step, by the clock around `num_steps` of them that are not waited for."""
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
        """Starts one."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Until all that were started are done."""

    @abc.abstractmethod
    def loss(self) -> float:
        """Of the last step, a target token."""

    def about(self) -> dict[str, Any]:
        return {"compile_seconds": self.compile_seconds, "peak_bytes": self.peak_bytes()}

    def peak_bytes(self) -> int:
        """Of the process; on a GPU, of the device."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _Jax(Step):
    """Steps whose last result is an array of JAX."""

    last: Any = None

    def wait(self) -> None:
        import jax

        jax.block_until_ready(self.last)

    def peak_bytes(self) -> int:
        import jax

        stats = jax.devices()[0].memory_stats() or {}
        return stats.get("peak_bytes_in_use") or super().peak_bytes()


class Ours(_Jax):
    """This package's step, as `train.py` runs it: runner, optimizer and metrics."""

    def __init__(self, task: Task):
        import jax

        from transformer_jax.data.batch_shapes import BatchShape
        from transformer_jax.training.runners import make_runner

        self._config = ours(task)
        self._runner = make_runner(self._config, jax.devices()[:1])
        self._state = self._runner.init(0)
        started = time.perf_counter()
        self._runner.compile(BatchShape(task.rows, task.source_len, task.target_len), self._state)
        compile_seconds = time.perf_counter() - started
        self._batches = _loaded(self._config, task)
        self._one = None if task.loading else next(self._batches)
        self.first()
        self.compile_seconds = compile_seconds

    def step(self) -> None:
        batch = next(self._batches) if self._one is None else self._one
        self._state, self.last = self._runner.step(self._state, batch)

    def loss(self) -> float:
        return float(self.last["loss_sum"] / self.last["tokens"])


def ours(task: Task) -> Config:
    """The run's config: packed rows that one sentence fills."""
    config = Config()
    return dataclasses.replace(
        config,
        model=dataclasses.replace(task.model, dtype=task.dtype),
        data=dataclasses.replace(
            config.data, max_len=task.target_len, batch_tokens=task.target_tokens
        ),
        train=dataclasses.replace(config.train, label_smoothing=task.label_smoothing),
    )


def _loaded(config: Config, task: Task) -> Iterator[Any]:
    """Batches of a made-up corpus, through plan, arrays and Grain."""
    from transformer_jax.data import batch_plan, loader
    from transformer_jax.data.epoch_data import EpochData, Epochs
    from transformer_jax.data.pair_selection import select_pairs
    from transformer_jax.data.token_cache import TokenizedCorpus, TokenizedSide
    from transformer_jax.data.tokenizer_pair import SpecialIds

    rng, count = np.random.default_rng(0), 20_000
    sides = []
    for length in (task.source_len - 1, task.target_len - 1):
        tokens = rng.integers(4, config.model.target_vocab_size, count * length)
        sides.append(TokenizedSide(tokens.astype(np.int32), np.arange(count + 1) * length))
    corpus = TokenizedCorpus(sides[0], sides[1], (count,), "made up")
    longest = max(task.source_len, task.target_len)
    selection = select_pairs(corpus.source.lengths, corpus.target.lengths, longest)
    plan = batch_plan.make_plan(selection, config)
    ids = SpecialIds(0, 2, 0, 2, 1)
    return loader.load_batches(loader.BatchSource(Epochs(EpochData(corpus, plan)), ids, 10**6), 0)


class Torch(Step):
    """Hugging Face's Marian with torch's fused Adam, eager or compiled."""

    def __init__(self, task: Task, compiled: bool = False):
        import torch
        import transformers

        self._torch, self._dtype = torch, getattr(torch, task.dtype)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("highest")
        model = task.model
        config = transformers.MarianConfig(
            vocab_size=model.target_vocab_size,
            d_model=model.d_model,
            encoder_layers=model.num_encoder_layers,
            decoder_layers=model.num_decoder_layers,
            encoder_attention_heads=model.num_heads,
            decoder_attention_heads=model.num_heads,
            encoder_ffn_dim=model.d_ff,
            decoder_ffn_dim=model.d_ff,
            activation_function=model.activation,
            dropout=model.dropout_rate,
            attention_dropout=model.attention_dropout_rate,
            activation_dropout=model.activation_dropout_rate,
            scale_embedding=True,
            max_position_embeddings=256,
            pad_token_id=0,
            eos_token_id=2,
            decoder_start_token_id=0,
            attn_implementation="sdpa",
            use_cache=False,
        )
        self._model: Any = transformers.MarianMTModel(config).to(self._device).train()
        self._optimizer = torch.optim.Adam(
            self._model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
        )
        source, target = (torch.from_numpy(x).long().to(self._device) for x in task.arrays())
        # No mask: nothing is padding, and torch is fastest so.
        self._batch = {"input_ids": source, "decoder_input_ids": target.roll(1, 1)}
        self._targets, self._smoothing = target.reshape(-1), task.label_smoothing
        self._loss: Any = torch.compile(self._forward) if compiled else self._forward
        self.last: Any = None
        self.first()
        self.step()
        self.wait()

    def _forward(self) -> Any:
        with self._torch.autocast(
            self._device, self._dtype, enabled=self._dtype != self._torch.float32
        ):
            logits = self._model(**self._batch).logits
        return self._torch.nn.functional.cross_entropy(
            logits.float().reshape(len(self._targets), -1),
            self._targets,
            label_smoothing=self._smoothing,
        )

    def step(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self.last = self._loss()
        self.last.backward()
        self._optimizer.step()

    def wait(self) -> None:
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def loss(self) -> float:
        return float(self.last.detach())

    def peak_bytes(self) -> int:
        if self._device == "cuda":
            return self._torch.cuda.max_memory_allocated()
        return super().peak_bytes()


class FlaxExample(_Jax):
    """The step of Flax's `examples/wmt`, taken from a copy of that folder, unchanged."""

    def __init__(self, task: Task, folder: str, batch: dict[str, np.ndarray] | None = None):
        import functools

        import jax
        import jax.numpy as jnp
        import optax
        from flax import jax_utils

        example, models = _import_example(folder)
        model = task.model
        self._config = models.TransformerConfig(
            vocab_size=model.target_vocab_size,
            output_vocab_size=model.target_vocab_size,
            share_embeddings=True,
            logits_via_embedding=True,
            dtype=jnp.dtype(task.dtype),
            emb_dim=model.d_model,
            num_heads=model.num_heads,
            num_layers=model.num_encoder_layers,
            qkv_dim=model.d_model,
            mlp_dim=model.d_ff,
            max_len=256,
            dropout_rate=model.dropout_rate,
            attention_dropout_rate=model.attention_dropout_rate,
        )
        if batch is None:
            source, target = task.arrays()
            batch = {"inputs": source, "targets": target}
        net = models.Transformer(self._config.replace(deterministic=True))
        ones = jnp.ones((1, task.target_len), jnp.float32)
        params = jax.jit(net.init)(jax.random.key(0), ones, ones)["params"]
        schedule = example.create_learning_rate_schedule(0.002, 1000)
        state = example.TrainState.create(
            apply_fn=net.apply,
            params=params,
            dynamic_scale=None,
            tx=optax.adamw(schedule, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.0),
        )
        self._state = jax_utils.replicate(state, jax.devices()[:1])
        self._step = jax.pmap(
            functools.partial(
                example.train_step,
                config=self._config,
                learning_rate_fn=schedule,
                label_smoothing=task.label_smoothing,
            ),
            axis_name="batch",
            donate_argnums=(0,),
            devices=jax.devices()[:1],
        )
        self._rngs = jax.random.split(jax.random.key(1), 1)
        self._batch = {name: array[None] for name, array in batch.items()}
        self.first()

    def step(self) -> None:
        self._state, self.last = self._step(self._state, self._batch, dropout_rng=self._rngs)

    def loss(self) -> float:
        return float(self.last["loss"][0] / self.last["denominator"][0])


class OursOnCorpus(Ours):
    """A run's steps on its own batches, one after the other."""

    def __init__(self, config: Config):
        import tempfile

        import jax
        from etils import epath

        from transformer_jax.data.loader import load_batches
        from transformer_jax.training import setup
        from transformer_jax.training.runners import make_runner

        with tempfile.TemporaryDirectory() as folder:
            config, data = setup.prepare(config, epath.Path(folder), lambda _: None)
        self._runner = make_runner(config, jax.devices()[:1])
        self._state = self._runner.init(0)
        started = time.perf_counter()
        self._runner.compile(data.shapes[0], self._state)
        self.compile_seconds = time.perf_counter() - started
        source = data.batches(config)
        counts = [int(source[t]["loss_mask"].sum()) for t in range(50)]
        self._useful = sum(counts) / len(counts)
        self._batches = load_batches(source, 0)

    def step(self) -> None:
        self._state, self.last = self._runner.step(self._state, next(self._batches))

    def useful_tokens(self) -> float:
        """Target tokens of a step that are not padding, mean."""
        return self._useful


class FlaxOnCorpus(FlaxExample):
    """Flax's example on a corpus that is packed as its pipeline packs: one after the other."""

    def __init__(self, config: Config, folder: str, length: int):
        import tempfile

        from etils import epath

        from transformer_jax.training import setup

        with tempfile.TemporaryDirectory() as name:
            config, data = setup.prepare(config, epath.Path(name), lambda _: None)
        rows = config.data.batch_tokens // length
        batch = packed_in_order(data.epochs.first.corpus, rows, length)
        self._useful = float((batch["targets"] > 0).sum())
        task = Task(config.model, rows, length, length, config.model.dtype)
        super().__init__(task, folder, batch)

    def useful_tokens(self) -> float:
        return self._useful


def packed_in_order(corpus: Any, rows: int, length: int) -> dict[str, np.ndarray]:
    """A batch of rows that each take sentences, in a random order, until one does not fit."""
    sides = {"inputs": corpus.source, "targets": corpus.target}
    batch = {
        f"{side}{part}": np.zeros((rows, length), np.int32)
        for side in sides
        for part in ("", "_position", "_segmentation")
    }
    row, used, number = 0, dict.fromkeys(sides, 0), 0
    for i in np.random.default_rng(0).permutation(len(corpus)):
        ids = {side: np.append(tokens[i], 2)[:length] for side, tokens in sides.items()}
        if any(used[side] + len(ids[side]) > length for side in sides):
            row, used, number = row + 1, dict.fromkeys(sides, 0), 0
            if row == rows:
                return batch
        number += 1
        for side, own in ids.items():
            place = slice(used[side], used[side] + len(own))
            batch[side][row, place] = own
            batch[f"{side}_position"][row, place] = np.arange(len(own))
            batch[f"{side}_segmentation"][row, place] = number
            used[side] += len(own)
    raise ValueError(f"the corpus does not fill {rows} rows of {length}")


def _import_example(folder: str) -> tuple[Any, Any]:
    """`train.py` and `models.py` there; what else `train.py` imports is not needed for its step."""
    importlib.import_module("flax.training.checkpoints")  # looks for the real TensorFlow
    names = (
        "bleu",
        "decode",
        "input_pipeline",
        "tensorflow",
        "clu",
        "clu.metric_writers",
        "clu.periodic_actions",
    )
    for name in names:
        sys.modules.setdefault(name, types.ModuleType(name))
    tensorflow: Any = sys.modules["tensorflow"]
    tensorflow.data = types.SimpleNamespace(Dataset=object)
    clu: Any = sys.modules["clu"]
    clu.metric_writers, clu.periodic_actions = (sys.modules[n] for n in names[-2:])
    sys.path.insert(0, folder)
    return importlib.import_module("train"), importlib.import_module("models")


class JaxProducts:
    """Times one large matrix product; apart from the engines, whose memory it would count to."""

    def rate(self, dtype: str) -> float:
        """FLOPs a second, median."""
        import jax
        import jax.numpy as jnp

        m, k, n = RATE_SIZES["cpu" if jax.default_backend() == "cpu" else "gpu"]
        a, b = jnp.ones((m, k), dtype), jnp.ones((k, n), dtype)
        product = jax.jit(jnp.matmul)
        return _rate(lambda: jax.block_until_ready(product(a, b)), 2.0 * m * k * n)


class TorchProducts:
    """The same by torch."""

    def rate(self, dtype: str) -> float:
        """FLOPs a second, median."""
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        m, k, n = RATE_SIZES["gpu" if device == "cuda" else "cpu"]
        kind = getattr(torch, dtype)
        a = torch.ones((m, k), dtype=kind, device=device)
        b = torch.ones((k, n), dtype=kind, device=device)

        def product() -> None:
            a @ b
            if device == "cuda":
                torch.cuda.synchronize()

        return _rate(product, 2.0 * m * k * n)


def _rate(run: Any, flops: float) -> float:
    seconds = []
    for i in range(12):
        started = time.perf_counter()
        run()
        if i > 1:
            seconds.append(time.perf_counter() - started)
    return flops / float(np.median(seconds))
