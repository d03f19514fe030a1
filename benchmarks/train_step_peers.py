"""The training steps of other packages that `benchmarks/train_step.py` compares with ours."""

import importlib
import sys
import types
from typing import Any

import numpy as np
from train_step_workers import MOST_PARTS, JaxStep, Step, Task


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
        # Without a mask, as nothing is padding: torch is fastest this way.
        self._arrays, self._smoothing = (source, target.roll(1, 1), target), task.label_smoothing
        self._loss: Any = torch.compile(self._forward) if compiled else self._forward
        self.last: Any = None
        while not self._fits():
            self.parts *= 2
            torch.cuda.empty_cache()
        self.step()
        self.wait()

    def _fits(self) -> bool:
        """Runs the first step; whether it had enough memory."""
        try:
            self.first()
        except self._torch.cuda.OutOfMemoryError:
            if self.parts == MOST_PARTS:
                raise
            self._optimizer.zero_grad(set_to_none=True)
            return False
        return True

    def _forward(self, source: Any, inputs: Any, targets: Any) -> Any:
        with self._torch.autocast(
            self._device, self._dtype, enabled=self._dtype != self._torch.float32
        ):
            logits = self._model(input_ids=source, decoder_input_ids=inputs).logits
        return self._torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1),
            targets.flatten(),
            label_smoothing=self._smoothing,
        )

    def step(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self.last = 0.0
        for arrays in zip(*(x.chunk(self.parts) for x in self._arrays), strict=True):
            loss = self._loss(*arrays) / self.parts
            loss.backward()
            self.last = self.last + loss.detach()
        self._optimizer.step()

    def wait(self) -> None:
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def loss(self) -> float:
        return float(self.last)

    def peak_bytes(self) -> int:
        if self._device == "cuda":
            return self._torch.cuda.max_memory_allocated()
        return super().peak_bytes()


class FlaxExample(JaxStep):
    """The step of Flax's `examples/wmt`, unchanged, from a copy of that folder."""

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


def _import_example(folder: str) -> tuple[Any, Any]:
    """Imports `train.py` and `models.py` of `folder`, with empty modules for unused imports."""
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
