"""The steps that `benchmarks/train_step.py` compares are of the same model and task."""

import math

import pytest
from train_step_peers import Torch
from train_step_workers import Ours, Task

from transformer_jax.config import ModelConfig

MODEL = ModelConfig(
    num_encoder_layers=1,
    num_decoder_layers=1,
    d_model=16,
    d_ff=32,
    num_heads=2,
    source_vocab_size=50,
    target_vocab_size=50,
    decoder_start_id=1,
)


def test_train_step_benchmark_torch_model_has_the_same_size_and_task():
    task = Task(MODEL, rows=8, source_len=6, target_len=5)
    ours, torch = Ours(task), Torch(task)
    trained = sum(p.numel() for p in torch._model.parameters() if p.requires_grad)
    assert trained == ours._runner.num_params()
    # Fresh weights know nothing: the loss is about that of equal chances.
    assert torch.loss() == pytest.approx(math.log(50), abs=1.0)
    before = torch.loss()
    for _ in range(60):
        torch.step()
    assert torch.loss() < before
    assert torch.run(2) > 0
    assert torch.about()["peak_bytes"] > 0
