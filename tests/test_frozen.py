"""`train.frozen`: parameters that stay as they are, without gradients or optimizer state."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from tests.conftest import tiny_config
from tests.test_step import SHAPE, jitted, random_params, step_config, uneven_batch
from tests.test_training import assert_same, final_params, lines
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import param_shapes
from transformer_jax.training import frozen, partition, runners
from transformer_jax.training.fsdp import FsdpParams
from transformer_jax.training.loop import train

NAMES = ("encoder_layers_*", "*_embedding", "decoder_layers_0/self_attention/query/bias")


def paths_of(tree):
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in flat}


def is_named(path):
    """By hand, without patterns."""
    first = path.split("/")[0]
    bias = "decoder_layers_0/self_attention/query/bias"
    return first.startswith("encoder_layers_") or first.endswith("_embedding") or path == bias


@functools.cache
def run_of_one_device(names, optimizer):
    """`run` without sharding, once for all tests."""
    return run(names, optimizer)


def run(names, optimizer="adamw", count=1, **parallel):
    config = step_config(layers=(1, 1), frozen=names, **parallel)
    settings = {"name": optimizer, "weight_decay": 0.1 if optimizer == "adamw" else 0.0}
    config = dataclasses.replace(
        config,
        optimizer=dataclasses.replace(config.optimizer, weight_decay_on="all", **settings),
    )
    runner = runners.make_runner(config, partition.choose_devices(config))
    state = runner.init(0, random_params(config.model))
    before = jax.device_get(runner.to_checkpoint_layout(state).params)
    runner.compile(SHAPE)
    for t in range(count):
        state, _ = runner.step(state, uneven_batch(t))
    state = jax.device_get(runner.to_checkpoint_layout(state))
    return paths_of(before), paths_of(state.params), paths_of(state.opt_state)


@pytest.mark.parametrize(
    ("optimizer", "parallel"),
    [
        pytest.param("adafactor", {}, marks=pytest.mark.slow),
        ("adamw", {"devices": 2, "fsdp": 2, "tensor": 2, "scan_layers": True, "remat": "full"}),
    ],
)
def test_frozen_parameters_stay_and_the_others_learn_as_ever(optimizer, parallel):
    before, everything, state = run_of_one_device((), optimizer)
    _, after, smaller = run(NAMES, optimizer, **parallel)
    parts = {path.split("/")[0] for path in before if is_named(path)}
    assert parts == {"encoder_layers_0", "target_embedding", "decoder_layers_0"}
    for path, old in before.items():
        if is_named(path):
            np.testing.assert_array_equal(after[path], old)
            assert not [name for name in smaller if name.endswith(f"/{path}")]
        elif not path.endswith("/key/bias"):  # whose gradient is rounding alone
            np.testing.assert_allclose(after[path], everything[path], rtol=1e-5, atol=1e-6)
            assert np.abs(after[path] - old).max() > 0
    assert len(smaller) < len(state)


def test_frozen_layers_take_no_backward_pass():
    def products(names):
        config = step_config(layers=(2, 1), frozen=names)
        grad_sums, params = jitted(config)[0], param_shapes(config.model)
        lowered = grad_sums.lower(params, uneven_batch(0), jax.random.key(0))
        return lowered.compile().as_text().count(" dot(")

    # Six products of an encoder layer with parameters have two in the backward pass each.
    assert products(("encoder_layers_*", "target_embedding")) <= products(()) - 2 * 2 * 6


def test_names_that_are_of_nothing_or_of_everything_are_refused():
    params = {"a_0": {"kernel": 1.0}, "b": 2.0}
    frozen.check_names(params, ["a_*"])
    frozen.check_names(params, ["a_0/kernel"])
    with pytest.raises(
        UserError, match=r"has 'kernel', and the model has no such part; it has a_0"
    ):
        frozen.check_names(params, ["b", "kernel"])
    with pytest.raises(UserError, match="leaves no parameter to train"):
        frozen.check_names(params, ["*"])


def test_a_run_with_frozen_parameters_resumes_exactly(tiny_run, tmp_path):
    data, _ = tiny_run

    def config(num_steps):
        tiny = tiny_config(data, num_steps=num_steps, eval_every_steps=0, log_every_steps=1)
        return dataclasses.replace(
            tiny, train=dataclasses.replace(tiny.train, frozen=("encoder_layers_0",), ema_decay=0.9)
        )

    train(config(12), tmp_path / "straight")
    train(config(7), tmp_path / "run")
    train(config(12), tmp_path / "run")
    assert_same(final_params(tmp_path / "run"), final_params(tmp_path / "straight"))
    losses = [
        [line["train_loss"] for line in lines(tmp_path / name / "metrics.jsonl")]
        for name in ("straight", "run")
    ]
    assert losses[0] == losses[1]
    wrong = config(12)
    wrong = dataclasses.replace(wrong, train=dataclasses.replace(wrong.train, frozen=("encoder",)))
    with pytest.raises(
        UserError, match="has 'encoder', and the model has no such part; it has dec"
    ):
        train(wrong, tmp_path / "other")


def test_fsdp_sends_relative_positions_as_they_are_and_kernels_rounded():
    mesh = partition.make_mesh(step_config(devices=1, fsdp=2), jax.devices()[:2])
    specs = {"x": {"table": PartitionSpec(None, "fsdp"), "kernel": PartitionSpec("fsdp")}}
    rng = np.random.default_rng(0)
    params = {"x": {name: rng.normal(size=(4, 6)).astype(np.float32) for name in specs["x"]}}
    fsdp = FsdpParams(specs, mesh, jnp.bfloat16, by_layer=False)
    gather = jax.shard_map(
        fsdp.gather, mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec(), check_vma=False
    )
    gathered = gather(params)["x"]
    np.testing.assert_array_equal(gathered["table"], params["x"]["table"])
    rounded = params["x"]["kernel"].astype(jnp.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(gathered["kernel"], rounded)
