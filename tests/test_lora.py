"""`train.lora_rank`: adapters of dense layers, trained in the place of their kernels."""

import dataclasses
import functools
import itertools
import json
import re

import jax
import numpy as np
import optax
import pytest

from tests.conftest import run_command, tiny_config
from tests.test_frozen import paths_of
from tests.test_step import SHAPE, jitted, random_params, step_config, uneven_batch
from tests.test_training import assert_same, final_params, lines
from transformer_jax import Translator
from transformer_jax.errors import UserError
from transformer_jax.training import partition, runners
from transformer_jax.training.loop import train
from transformer_jax.training.optimizer import decays
from transformer_jax.training.step import TrainStep
from transformer_jax.translator import pretrained
from transformer_jax.workdir import checkpoint
from transformer_jax.workdir import folder as workdir_lib

RANK, ALPHA = 3, 6.0
NUM_OUT = 2  # inputs of attention's output are heads and their sizes


def lora_config(**fields):
    return step_config(init_from="model", lora_rank=RANK, lora_alpha=ALPHA, **fields)


def random_like(tree, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.normal(0, 0.1, x.shape).astype(x.dtype), tree)


def matrix(name, kernel):
    """A kernel in float64 as inputs by outputs."""
    num_inner = NUM_OUT if name.endswith("/out/kernel") else 1
    return np.asarray(kernel, np.float64).reshape(np.prod(kernel.shape[:num_inner]), -1)


def test_model_has_kernels_plus_products_in_float64():
    step = TrainStep(lora_config(layers=(2, 1)))
    params = random_params(step.config.model)
    state = jax.jit(step.init_state)(jax.random.key(0), params)
    jax.tree.map(np.testing.assert_array_equal, step.model_params(state.params), params)
    adapters = random_like(state.params["lora"], 2)
    got = paths_of(step.model_params({"base": params, "lora": adapters}))
    adapters, kernels = paths_of(adapters), set()
    for name, base in paths_of(params).items():
        if name.endswith("/kernel"):
            kernels.add(name)
            a, b = (np.asarray(adapters[f"{name}/{x}"], np.float64) for x in "ab")
            assert (a.shape[1], b.shape[0]) == (RANK, RANK)
            want = (matrix(name, base) + ALPHA / RANK * a @ b).reshape(base.shape)
            np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(got[name], base)
    # 4 kernels of each attention and 2 of each feed-forward layer: 2 encoder layers, 1 decoder.
    assert len(kernels) == 2 * 6 + 1 * 10
    assert len(adapters) == 2 * len(kernels)
    # The first products of a gradient are not 0: A is random where B is 0.
    first = paths_of(state.params["lora"])
    spread = [x.std() * x.shape[0] ** 0.5 for name, x in first.items() if name.endswith("/a")]
    np.testing.assert_allclose(np.mean(spread), 1, rtol=0.1)


def test_gradients_are_those_of_kernels_by_the_chain_rule():
    """In float64, from the gradients of a model with these kernels."""
    step = TrainStep(lora_config())
    base = random_params(step.config.model)
    shapes = jax.eval_shape(step.init_state, jax.random.key(0), base).params
    params = {"base": base, "lora": random_like(shapes["lora"], 2)}
    batch, rng = uneven_batch(0), jax.random.key(3)
    sums = jitted(step.config)[0](params, batch, rng)
    grad_sums, _ = jitted(step_config())
    full = paths_of(grad_sums(step.model_params(params), batch, rng).grads)
    assert not jax.tree.leaves(sums.grads["base"])
    grads, adapters = paths_of(sums.grads["lora"]), paths_of(params["lora"])
    for name, grad in grads.items():
        kernel, part = name.rsplit("/", 1)
        of_kernel = ALPHA / RANK * matrix(kernel, full[kernel])
        a, b = (np.asarray(adapters[f"{kernel}/{x}"], np.float64) for x in "ab")
        want = of_kernel @ b.T if part == "a" else a.T @ of_kernel
        np.testing.assert_allclose(grad, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


def test_kernels_of_adapters_decay_and_are_gathered_in_float32():
    config = lora_config(devices=2, fsdp=2)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, dtype="bfloat16"))
    runner = runners.make_runner(config, partition.choose_devices(config))
    decaying = paths_of(decays(config.optimizer, runner.restore_target().params))
    for name, does in decaying.items():
        assert does == ("/kernel" in name)
    text = runner._lower(runners.batch_struct(SHAPE), None).as_text()
    gathered = re.findall(r"all_gather.*-> tensor<[0-9x]*(\w+)>", text)
    assert set(gathered) == {"f32"}


@functools.cache
def run_steps(*fields):
    """Parameters before three steps, the state after them, what was printed, the model's start."""
    config = lora_config(frozen=("encoder_layers_0/feed_forward",), ema_decay=0.9, **dict(fields))
    config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, eps=1e-3))
    runner = runners.make_runner(config, partition.choose_devices(config))
    params = random_params(config.model)
    state = runner.init(0, params)
    before = jax.device_get(runner.to_checkpoint_layout(state).params)
    runner.compile(SHAPE, state)
    for t in range(3):
        state, metrics = runner.step(state, uneven_batch(t))
    assert not jax.device_get(metrics)["skipped"]
    said = [*runner.describe()]
    return before, jax.device_get(runner.to_checkpoint_layout(state)), said, params


@pytest.mark.parametrize(
    "fields",
    [
        {"devices": 2, "fsdp": 2, "tensor": 2, "scan_layers": True, "remat": "full"},
        {"accumulate": 2, "devices": 2, "runner": "pmap"},
    ],
)
def test_steps_on_several_devices_are_those_of_one(fields):
    before, state, said, params = run_steps()
    jax.tree.map(np.testing.assert_array_equal, state.params["base"], params)
    jax.tree.map(np.testing.assert_array_equal, state.ema["base"], params)
    jax.tree.map(
        np.testing.assert_array_equal,
        state.params["lora"]["encoder_layers_0"]["feed_forward"],
        before["lora"]["encoder_layers_0"]["feed_forward"],
    )
    adapters = paths_of(state.params["lora"])
    moved = {name for name, x in adapters.items() if np.any(x != paths_of(before["lora"])[name])}
    assert moved == {
        name for name in adapters if not name.startswith("encoder_layers_0/feed_forward/")
    }
    trained = sum(adapters[name].size for name in moved)
    # Adam keeps two numbers for each that is trained, and counts its updates.
    kept = sum(x.size for x in jax.tree.leaves(state.opt_state) if np.ndim(x))
    assert kept == 2 * trained
    assert f"{trained:,} parameters are trained" in said
    assert f"model: {sum(x.size for x in jax.tree.leaves(params)):,} parameters" in said[0]
    _, other, said, _ = run_steps(*fields.items())
    for name, want in adapters.items():
        np.testing.assert_allclose(paths_of(other.params["lora"])[name], want, rtol=1e-4, atol=1e-6)


def run_config(tiny_run, num_steps, **fields):
    data, start = tiny_run
    tiny = tiny_config(data, num_steps=num_steps, eval_every_steps=4, log_every_steps=1)
    fields = {"init_from": str(start), "lora_rank": RANK, "checkpoint_every_steps": 2} | fields
    fields["eval_sentences"] = 0
    return dataclasses.replace(
        tiny,
        train=dataclasses.replace(tiny.train, **fields),
        checkpoint=dataclasses.replace(tiny.checkpoint, max_to_keep=2),
    )


@pytest.fixture(scope="module")
def adapted_run(tiny_run, tmp_path_factory):
    """Eight steps, with a stop after the fifth."""
    workdir = tmp_path_factory.mktemp("lora") / "run"
    train(run_config(tiny_run, 5), workdir)
    train(run_config(tiny_run, 8), workdir)
    return workdir


def test_a_run_with_adapters_resumes_exactly(tiny_run, adapted_run, tmp_path):
    train(run_config(tiny_run, 8), tmp_path / "straight")
    assert_same(final_params(adapted_run), final_params(tmp_path / "straight"))
    losses = [
        [line["train_loss"] for line in lines(path / "metrics.jsonl") if "train_loss" in line]
        for path in (tmp_path / "straight", adapted_run)
    ]
    assert losses[0] == losses[1]
    # The run knows its model; another rank would be another run, and a new run needs a model.
    assert train(run_config(tiny_run, 8, init_from=""), adapted_run)
    with pytest.raises(UserError, match="lora_rank"):
        train(run_config(tiny_run, 9, lora_rank=2), adapted_run)
    with pytest.raises(UserError, match=r"lora_rank=3 changes a trained model: .*init_from"):
        train(run_config(tiny_run, 8, init_from=""), tmp_path / "other")


def test_a_run_with_adapters_is_read_as_a_model(tiny_run, adapted_run, tmp_path):
    base = Translator.load(tiny_run[1]).params
    stored = {
        step: checkpoint.read_item(adapted_run / "checkpoints" / str(step), "params")
        for step in (6, 8)
    }
    read = Translator.load(adapted_run, "average:2").params
    for name, kernel in paths_of(base).items():
        adapted = np.asarray(kernel, np.float64)
        if name.endswith("/kernel"):
            pairs = [paths_of(one["lora"]) for one in stored.values()]
            products = [
                np.float64(pair[f"{name}/a"]) @ np.float64(pair[f"{name}/b"]) for pair in pairs
            ]
            adapted = adapted + 16 / RANK * np.mean(products, 0).reshape(kernel.shape)
            assert np.any(products[1])
        np.testing.assert_allclose(paths_of(read)[name], adapted, rtol=1e-5, atol=1e-6)
    # Evaluation in the run had the same model as evaluation afterwards.
    in_run = [line for line in lines(adapted_run / "metrics.jsonl") if "eval_loss" in line][-1]
    done = run_command(
        "eval",
        f"--workdir={adapted_run}",
        "--checkpoint=latest",
        "--split=validation",
        f"--json={tmp_path}/scores.json",
    )
    assert done.returncode == 0, done.stderr
    after = json.loads((tmp_path / "scores.json").read_text())
    assert after["loss"] == pytest.approx(in_run["eval_loss"], rel=1e-5)
    # The adapted model is one to begin another run with.
    train(run_config(tiny_run, 1, init_from=str(adapted_run), lora_rank=0), tmp_path / "again")


def test_names_of_frozen_parts_are_those_of_adapters():
    with pytest.raises(UserError, match=r"has '\*embedding', and what has adapters"):
        jax.eval_shape(TrainStep(lora_config(frozen=("*embedding",))).init_state, jax.random.key(0))
    step = TrainStep(lora_config(frozen=("encoder*",)))
    state = jax.eval_shape(step.init_state, jax.random.key(0))
    moments = paths_of(optax.tree_utils.tree_get(state.opt_state, "mu"))
    assert {name.split("/")[1] for name in moments} == {"decoder_layers_0"}


def test_a_run_that_is_trained_on_is_read_to_the_host(tiny_run, adapted_run, monkeypatch):
    """A model that several devices share may be larger than one."""
    read_item, targets = checkpoint.read_item, []

    def spy(folder, item, target=None):
        targets.extend(jax.tree.leaves(target))
        return read_item(folder, item, target)

    config = workdir_lib.read_config(tiny_run[1])
    shapes = functools.partial(partition.sharded_shapes, config)
    for folder, which in itertools.product((tiny_run[1], adapted_run), ("latest", "average:2")):
        want = pretrained.load(folder, which).params
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "read_item", spy)
            read = pretrained.load(folder, which, shapes=shapes).params
        assert all(type(x) is np.ndarray for x in (*targets, *jax.tree.leaves(read)))
        assert_same(read, want)
