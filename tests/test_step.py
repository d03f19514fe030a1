"""The step on one device and on many, under either runner, and its collective operations."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.config import (
    CheckpointConfig,
    Config,
    ModelConfig,
    TrainConfig,
    checks,
    loss_terms,
)
from transformer_jax.data.plans.batch_shapes import BatchShape
from transformer_jax.extras.diagnostics import hlo
from transformer_jax.model.transformer import Transformer, param_shapes
from transformer_jax.ops import losses
from transformer_jax.training import objective, partition, runners, saving
from transformer_jax.training.step import Sums, TrainState, TrainStep
from transformer_jax.workdir.checkpoint import Checkpointer

SHAPE = BatchShape(rows=16, source_len=10, target_len=9)


def step_config(
    runner="jit",
    devices=1,
    accumulate=1,
    dropout=0.0,
    fsdp=1,
    tensor=1,
    layers=(1, 1),
    **train_fields,
):
    """The recipe `tiny` with as many layers of encoder and decoder."""
    from configs import tiny

    config = tiny.get_config()
    return dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model,
            num_encoder_layers=layers[0],
            num_decoder_layers=layers[1],
            dropout_rate=dropout,
            source_vocab_size=30,
            target_vocab_size=30,
            decoder_start_id=1,
        ),
        train=dataclasses.replace(config.train, accumulate_steps=accumulate, **train_fields),
        parallel=dataclasses.replace(
            config.parallel, runner=runner, data=devices, fsdp=fsdp, tensor=tensor
        ),
    )


def uneven_batch(seed):
    """Rows whose padding differs a lot, some of them all padding."""
    rng = np.random.default_rng(seed)
    batch = {}
    for name, width in (("inputs", SHAPE.source_len), ("targets", SHAPE.target_len)):
        lengths = rng.integers(1, width + 1, SHAPE.rows)
        lengths[: SHAPE.rows // 2] = 1
        lengths[-3:] = 0
        real = np.arange(width) < lengths[:, None]
        batch[name] = np.where(real, rng.integers(4, 30, (SHAPE.rows, width)), 0).astype(np.int32)
        batch[f"{name}_segment_ids"] = real.astype(np.int32)
        batch[f"{name}_positions"] = np.where(real, np.arange(width), 0).astype(np.int32)
    batch["decoder_inputs"] = np.roll(batch["targets"], 1, axis=1)
    batch["decoder_inputs"][:, 0] = 1
    batch["loss_mask"] = batch["targets_segment_ids"] != 0
    return batch


def random_params(model, seed=0):
    """As after an initialisation, but nothing is compiled for them."""
    rng = np.random.default_rng(seed)

    def draw(path, shape):
        name = path[-1].key
        if name in ("scale", "bias"):
            return np.full(shape.shape, name == "scale", np.float32)
        return rng.normal(0, 0.25, shape.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, param_shapes(model))


@functools.cache
def jitted(config):
    """The functions of a step, compiled once for all tests: `grad_sums`, `apply_sums`."""
    step = TrainStep(config)
    return jax.jit(step.grad_sums), jax.jit(step.apply_sums)


def fresh_state(config):
    return TrainStep(config).init_state(jax.random.key(0), random_params(config.model))


def spoiled(tree, value):
    """The arrays, the first number of each replaced."""
    return jax.tree.map(
        lambda x: (
            np.where(np.arange(x.size) == 0, value, x.ravel()).reshape(x.shape).astype(x.dtype)
        ),
        tree,
    )


def random_sums(state):
    """Sums of a step, by no model."""
    rng = np.random.default_rng(5)
    grads = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), state.params)
    return Sums(grads, losses.LossSums(*np.float32([30, 29, 4, 20])))


def run_steps(config, count=8):
    runner = runners.make_runner(config, partition.choose_devices(config))
    state = runner.init(0, random_params(config.model))
    runner.compile(SHAPE)
    history = []
    for t in range(count):
        state, metrics = runner.step(state, uneven_batch(t))
        history.append(float(metrics["loss_sum"] / metrics["tokens"]))
    return np.array(history), jax.device_get(runner.to_checkpoint_layout(state).params)


@functools.cache
def one_device(layers):
    return run_steps(step_config(layers=layers))


@pytest.mark.parametrize(
    ("runner", "mesh", "accumulate"),
    [
        ("pmap", (2, 1, 1), 2),
        ("jit", (2, 2, 2), 1),
        pytest.param("jit scan full", (2, 4, 1), 2, marks=pytest.mark.slow),
        # In the first case only rows are sharded; in the second, the axis divides few arrays.
        pytest.param("jit", (8, 1, 1), 1, marks=pytest.mark.slow),
        pytest.param("jit", (1, 1, 8), 1, marks=pytest.mark.slow),
        pytest.param("jit scan dots", (1, 4, 2), 1, marks=pytest.mark.slow),
        pytest.param("pmap scan none", (2, 1, 1), 2, marks=pytest.mark.slow),
    ],
)
def test_update_is_the_same_on_any_devices_runner_and_accumulation(runner, mesh, accumulate):
    data, fsdp, tensor = mesh
    runner, *scan = runner.split()
    fields = {"scan_layers": True, "remat": scan[1]} if scan else {}
    layers = (1, 2) if scan else (1, 1)
    config = step_config(
        runner, data, accumulate, fsdp=fsdp, tensor=tensor, layers=layers, **fields
    )
    history, params = run_steps(config)
    want_history, want = one_device(layers)
    np.testing.assert_allclose(history, want_history, rtol=1e-5)
    assert history[-1] < history[0]

    def same(path, a, b):
        # A bias on keys moves all scores of a row alike: its gradient is rounding, and Adam makes
        # steps of full size of it.
        if "['key']['bias']" not in jax.tree_util.keystr(path):
            np.testing.assert_allclose(a, b, atol=2e-4, rtol=1e-3)

    jax.tree_util.tree_map_with_path(same, params, want)


@pytest.mark.slow
def test_schedule_free_update_is_the_same_on_any_devices_and_runner():
    results = []
    for runner, data, fsdp in (("jit", 1, 1), ("jit", 2, 4), ("pmap", 2, 1)):
        config = step_config(runner, data, fsdp=fsdp, layers=(1, 1))
        optimizer = dataclasses.replace(
            config.optimizer, name="schedule_free_adamw", schedule="constant", learning_rate=0.01
        )
        results.append(run_steps(dataclasses.replace(config, optimizer=optimizer)))
    for history, params in results[1:]:
        np.testing.assert_allclose(history, results[0][0], rtol=1e-5)
        for (path, got), want in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(results[0][1]), strict=True
        ):
            if "['key']['bias']" not in jax.tree_util.keystr(path):  # whose gradient is rounding
                np.testing.assert_allclose(got, want, atol=2e-4, rtol=1e-3)
    assert results[0][0][-1] < results[0][0][0]


@pytest.mark.slow
def test_optimizer_state_in_the_memory_of_the_host_changes_no_number(tmp_path):
    plain = step_config(devices=2, fsdp=4)
    config = dataclasses.replace(
        plain, optimizer=dataclasses.replace(plain.optimizer, host_state=True)
    )
    history, params = run_steps(config, 3)
    want, want_params = run_steps(plain, 3)
    np.testing.assert_array_equal(history, want)
    jax.tree.map(np.testing.assert_array_equal, params, want_params)

    def kinds(tree):
        return {x.sharding.memory_kind for x in jax.tree.leaves(tree) if x.ndim}

    # A checkpoint does not say where the state was.
    for saved, target in ((config, plain), (plain, config)):
        saver, reader = (
            runners.make_runner(c, partition.choose_devices(c)) for c in (saved, target)
        )
        state, _ = saver.step(saver.init(0), uneven_batch(0))
        assert kinds(state.opt_state) == {"pinned_host" if saved is config else "device"}
        assert kinds(state.params) == {"device"}
        folder = tmp_path / str(saved is config)
        folder.mkdir()
        checkpointer = Checkpointer(folder, CheckpointConfig())
        assert checkpointer.save(1, state.to_items(), {}) is None
        assert checkpointer.wait() is None
        items, _ = checkpointer.restore(1, reader.restore_target().to_items())
        checkpointer.close()
        jax.tree.map(np.testing.assert_array_equal, items, state.to_items())
        resumed, _ = reader.step(TrainState.from_items(items), uneven_batch(1))
        assert kinds(resumed.opt_state) == {"pinned_host" if target is config else "device"}


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_checkpoint_is_written_from_copies_of_what_is_on_the_host(platform):
    mesh = jax.make_mesh((4,), ("fsdp",), devices=jax.devices()[:4])
    by_row = NamedSharding(mesh, PartitionSpec("fsdp"))
    on_host = by_row.with_memory_kind("pinned_host")
    rows = np.arange(24, dtype=np.float32).reshape(8, 3)
    state = {
        "moment": jax.device_put(rows, on_host),
        "small_moment": jax.device_put(rows.astype(jnp.bfloat16), on_host),
        "kernel": jax.device_put(rows, by_row),
        "count": jax.device_put(np.int32(5), NamedSharding(mesh, PartitionSpec())),
    }

    def addresses(x):
        return {shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards}

    copies = saving.copy_host_memory(state, platform)
    for name, x in state.items():
        if platform == "gpu" and name in ("kernel", "count"):
            assert copies[name] is x
            continue
        assert not addresses(copies[name]) & addresses(x)
        assert (copies[name].sharding, copies[name].dtype) == (x.sharding, x.dtype)
        np.testing.assert_array_equal(copies[name], x)


@pytest.mark.slow
def test_dropout_differs_between_devices():
    """Eight equal rows on eight devices: with one key for all, each would give the same loss."""
    config = step_config(devices=8, dropout=0.5)
    runner = runners.make_runner(config, partition.choose_devices(config))
    rows = {k: np.repeat(v[:1], 8, axis=0) for k, v in uneven_batch(3).items()}
    _, metrics = runner.step(runner.init(0), rows)
    alone = step_config(devices=1, dropout=0.5)
    runner = runners.make_runner(alone, partition.choose_devices(alone))
    _, single = runner.step(runner.init(0), {k: v[:1] for k, v in rows.items()})
    assert float(metrics["tokens"]) == 8 * float(single["tokens"])
    assert abs(float(metrics["loss_sum"]) - 8 * float(single["loss_sum"])) > 1e-3


def compiled_collectives(config):
    runner = runners.make_runner(config, partition.choose_devices(config))
    return runner, hlo.collectives(runner.compile(SHAPE).as_text())


def test_gradients_are_reduced_once_a_step():
    runner, collectives = compiled_collectives(step_config(devices=8, accumulate=2))
    assert {c.kind for c in collectives} == {"all-reduce"}
    assert not any(c.in_loop for c in collectives)  # the loop over accumulated parts has none
    assert all(c.times == 1 for c in collectives)
    # A tied embedding once, and the three sums of the loss that the metrics are made of.
    assert sum(c.num_bytes for c in collectives) == 4 * (runner.num_params() + 3)


def test_fsdp_gathers_parameters_and_scatters_gradients_once():
    runner, collectives = compiled_collectives(step_config(devices=1, fsdp=8, accumulate=2))
    share = runner.replicated_share()["fsdp"]
    sharded_bytes = 4 * runner.num_params() * (1 - share)
    total = hlo.total_bytes([c for c in collectives if not c.in_loop])
    assert not any(c.in_loop for c in collectives)
    assert total["all-gather"] == pytest.approx(sharded_bytes)
    # XLA for CPU may use an all-reduce and slice it, in place of a reduce-scatter.
    reduced = total.get("reduce-scatter", 0) + total.get("all-reduce", 0)
    assert reduced == pytest.approx(4 * runner.num_params(), rel=0.05)


def test_fsdp_gathers_scanned_layers_one_at_a_time():
    fields = {"scan_layers": True, "remat": "full"}
    config = step_config(devices=1, fsdp=8, layers=(2, 2), **fields)
    plain = dataclasses.replace(config.model, use_bias=False, norm="rms")
    config = dataclasses.replace(config, model=plain)
    runner, collectives = compiled_collectives(config)
    params = runner.restore_target().params
    sharded = jax.tree.map(lambda x, s: x.size * ("fsdp" in s), params, runner.specs)
    sizes = {name: 4 * sum(jax.tree.leaves(part)) for name, part in sharded.items()}
    gathers = [c for c in collectives if c.kind == "all-gather"]
    in_loops = [c for c in gathers if c.in_loop]
    one_of_each = sizes["encoder_layers_0"] + sizes["decoder_layers_0"]
    # Once in the forward and once in the backward pass, and as often as there are layers.
    assert sum(c.num_bytes for c in in_loops) == pytest.approx(2 * one_of_each, rel=0.01)
    assert {c.times for c in in_loops} == {2}
    others = sum(size for name, size in sizes.items() if "layers" not in name)
    assert sum(c.num_bytes for c in gathers if not c.in_loop) == others


def live_bytes(tree, device):
    """Bytes of the arrays of `tree` that are on `device`."""
    return sum(
        shard.data.nbytes
        for x in jax.tree.leaves(tree)
        for shard in x.addressable_shards
        if shard.device == device
    )


@pytest.mark.parametrize("optimizer", ["adam", "adafactor", "schedule_free_adamw"])
def test_fsdp_shards_the_state(optimizer):
    config = step_config(devices=1, fsdp=8, ema_decay=0.9)
    config = dataclasses.replace(
        config,
        optimizer=dataclasses.replace(config.optimizer, name=optimizer, schedule="constant"),
    )
    runner = runners.make_runner(config, partition.choose_devices(config))
    # Fresh parameters are sharded where they are made; given ones are sent.
    state = runner.init(0, None if optimizer == "adam" else random_params(config.model))
    assert runner.replicated_share() == {"fsdp": 0.0}
    num_bytes = sum(x.nbytes for x in jax.tree.leaves(state))
    for device in jax.devices():
        # Counts, and what Adafactor has in place of factors, are replicated.
        assert live_bytes(state, device) == pytest.approx(num_bytes / 8, rel=0.05)


def test_partition_replicates_what_a_mesh_axis_does_not_divide():
    config = step_config(devices=1, fsdp=1, tensor=8)
    runner = runners.make_runner(config, partition.choose_devices(config))
    layer = runner.specs["decoder_layers_0"]
    assert tuple(layer["self_attention"]["query"]["kernel"]) == ()  # 2 heads
    assert tuple(layer["feed_forward"]["up"]["kernel"]) == (None, "tensor")
    assert tuple(runner.specs["target_embedding"]) == ()  # 30 tokens
    assert 0.3 < runner.replicated_share()["tensor"] < 0.9


def test_grad_sums_are_those_of_the_mean_loss():
    config = step_config()
    params, batch = random_params(config.model), uneven_batch(0)

    def mean_loss(params):
        logits = Transformer(config.model).apply({"params": params}, batch)
        sums = losses.cross_entropy(logits, batch["targets"], batch["loss_mask"], 0.1)
        return sums.loss / sums.tokens

    want, want_grads = jax.jit(jax.value_and_grad(mean_loss))(params)
    sums = jitted(config)[0](params, batch, jax.random.key(0))
    assert float(sums.losses.tokens) == batch["loss_mask"].sum()
    assert float(sums.losses.loss / sums.losses.tokens) == pytest.approx(float(want), rel=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a / sums.losses.tokens, b, atol=1e-6),
        sums.grads,
        want_grads,
    )


def test_r_drop_compares_two_passes_with_other_dropout():
    step = TrainStep(step_config(dropout=0.3, r_drop=5.0, label_smoothing=0.1))
    params = random_params(step.config.model)
    batch, rng = uneven_batch(0), jax.random.key(1)
    got = jax.jit(step.objective.loss_sums)(params, batch, rng)

    @jax.jit
    def log_probs(key):
        logits = step.objective.model.apply(
            {"params": params}, batch, deterministic=False, rngs={"dropout": key}
        )
        return jax.nn.log_softmax(logits)

    log_p, log_q = (np.asarray(log_probs(key), float) for key in jax.random.split(rng))
    mask, both = batch["loss_mask"], np.stack([log_p, log_q])
    at_target = np.take_along_axis(both, batch["targets"][None, :, :, None], -1)[..., 0]
    divergence = ((np.exp(log_p) - np.exp(log_q)) * (log_p - log_q)).sum(-1)
    assert divergence[mask].min() > 1e-4
    smoothed = 0.9 * at_target + 0.1 * both.mean(-1)
    np.testing.assert_allclose(got.nll, -at_target.mean(0)[mask].sum(), rtol=1e-5)
    want = -smoothed.mean(0)[mask].sum() + 5 / 4 * divergence[mask].sum()
    np.testing.assert_allclose(got.loss, want, rtol=1e-5)
    assert got.tokens == mask.sum()
    # Without it there is one pass, with the key of the step.
    step = TrainStep(step_config(dropout=0.3, label_smoothing=0.1))
    once = jax.jit(step.objective.loss_sums)(params, batch, rng)
    of_one = np.take_along_axis(np.asarray(log_probs(rng)), batch["targets"][..., None], -1)
    np.testing.assert_allclose(once.nll, -of_one[mask].sum(), rtol=1e-5)
    assert abs(once.nll - got.nll) > 1e-3


def test_term_of_the_loss_is_weighted_by_its_setting(monkeypatch):
    monkeypatch.setitem(objective.TERMS, "alignment_weight", lambda *_: jnp.float32(10.0))
    config = step_config()
    params, rng = random_params(config.model), jax.random.key(1)
    without, weighted = (
        jax.jit(TrainStep(one).objective.loss_sums)(params, uneven_batch(0), rng)
        for one in (config, step_config(alignment_weight=0.25))
    )
    assert weighted.loss - without.loss == pytest.approx(2.5, rel=1e-4)


def test_ema_follows_the_parameters():
    config = step_config(ema_decay=0.9)
    state, apply_sums = fresh_state(config), jitted(config)[1]
    want, sums = state.params["target_embedding"], random_sums(state)
    for t in range(3):
        state, _ = apply_sums(state, sums)
        decay = min(0.9, (1 + t) / (10 + t))
        want = decay * want + (1 - decay) * np.asarray(state.params["target_embedding"])
    np.testing.assert_allclose(state.ema["target_embedding"], want, rtol=1e-5)


def test_bfloat16_is_used_in_products_and_float32_elsewhere():
    config = step_config(ema_decay=0.9)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, dtype="bfloat16"))
    step = TrainStep(config)
    state = fresh_state(config)
    batch = uneven_batch(0)
    hidden = jax.eval_shape(
        lambda: step.objective.model.apply({"params": state.params}, batch, method="hidden")
    )
    assert hidden.dtype == jnp.bfloat16
    logits = jax.eval_shape(lambda: step.objective.model.apply({"params": state.params}, batch))
    assert logits.dtype == jnp.float32
    grad_sums, apply_sums = jitted(config)
    lowered = grad_sums.lower(state.params, batch, jax.random.key(0))
    text = lowered.as_text()
    for operation in ("exponential", "rsqrt", "log "):  # softmax, norm, loss
        lines = [line for line in text.splitlines() if f"stablehlo.{operation}" in line]
        assert lines
        assert not any("bf16" in line for line in lines)
    sums = lowered.compile()(state.params, batch, jax.random.key(0))
    full = jitted(step_config())[0](state.params, batch, jax.random.key(0))
    np.testing.assert_allclose(sums.losses.loss, full.losses.loss, rtol=2e-2)
    state, _ = jax.eval_shape(apply_sums, state, sums)
    leaves = jax.tree.leaves((state.params, state.ema, state.opt_state, sums.losses))
    assert {x.dtype for x in leaves} == {jnp.dtype("float32"), jnp.dtype("int32")}


GRADIENT_VARIANTS = {
    "pre, sinusoids": {},
    "post, learned, untied, bias, gelu": {
        "norm_position": "post",
        "positional": "learned",
        "tie_embeddings": "none",
        "output_bias": True,
        "activation": "gelu",
        "attention": "reference",
    },
    "pre, rotary, silu, blockwise": {
        "positional": "rotary",
        "tie_embeddings": "decoder",
        "activation": "silu",
        "attention": "blockwise",
    },
}


@pytest.mark.parametrize("variant", GRADIENT_VARIANTS)
def test_bfloat16_gradients_are_those_of_float32(variant):
    """Each is a sum over 4,096 positions, which in bfloat16 would be wrong by 20%."""
    rng = np.random.default_rng(0)
    rows, width = 64, 64
    batch = {"loss_mask": np.ones((rows, width), bool)}
    for name in ("inputs", "targets"):
        batch[name] = rng.integers(4, 30, (rows, width)).astype(np.int32)
        batch[f"{name}_segment_ids"] = np.ones((rows, width), np.int32)
        batch[f"{name}_positions"] = np.tile(np.arange(width, dtype=np.int32), (rows, 1))
    batch["decoder_inputs"] = np.roll(batch["targets"], 1, axis=1)

    def gradients(dtype):
        config = step_config()
        fields = GRADIENT_VARIANTS[variant]
        model = dataclasses.replace(config.model, dtype=dtype, max_len=width, **fields)
        step = TrainStep(dataclasses.replace(config, model=model))
        sums = jax.jit(step.grad_sums)(random_params(model), batch, jax.random.key(0))
        return traverse_util.flatten_dict(jax.device_get(sums.grads))

    want, got = gradients("float32"), gradients("bfloat16")
    for path, gradient in want.items():
        scale = path
        if path[-2:] == ("key", "bias"):
            # Moves all scores of a row alike, so that its gradient is rounding alone.
            scale = (*path[:-2], "query", "bias")
        error = np.linalg.norm(got[path] - gradient) / np.linalg.norm(want[scale])
        assert error < 0.03, path


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_gradients_on_accelerators_are_summed_in_float32_and_in_one_order(platform):
    """A scatter whose indices may repeat has no fixed order on a GPU."""
    config = step_config()
    model = dataclasses.replace(
        config.model, dtype="bfloat16", positional="learned", output_bias=True
    )
    step = TrainStep(dataclasses.replace(config, model=model))
    traced = jax.jit(step.grad_sums).trace(param_shapes(model), uneven_batch(0), jax.random.key(0))
    lines = traced.lower(lowering_platforms=(platform,)).as_text().splitlines()
    scatters = [line for line in lines if "stablehlo.scatter" in line]
    assert [line for line in scatters if "unique_indices = true" not in line] == []
    assert len(scatters) == (0 if platform == "tpu" else 4)  # tokens and positions, two sides
    if platform == "tpu":  # whose default precision rounds float32 operands to bfloat16
        products = [line for line in lines if "stablehlo.dot_general" in line]
        full = [line for line in products if "bf16" not in line.split(" : ")[-1].split("->")[0]]
        assert full
        assert [line for line in full if "precision = [HIGHEST, HIGHEST]" not in line] == []


def test_step_that_is_not_finite_changes_only_the_count():
    config = step_config(ema_decay=0.9, skip_spikes=2.0)
    step, state = TrainStep(config), fresh_state(config)
    sums, apply_sums = random_sums(state), jitted(config)[1]
    broken = {
        "loss": sums._replace(losses=sums.losses._replace(loss=jnp.float32(jnp.inf))),
        "gradient": sums._replace(grads=spoiled(sums.grads, np.nan)),
    }
    for bad in broken.values():
        after, metrics = apply_sums(state, bad)
        assert metrics["skipped"] == 1
        assert after.step == 1
        jax.tree.map(np.testing.assert_array_equal, after.replace(step=state.step), state)
    after, metrics = apply_sums(after, sums)
    assert metrics["skipped"] == 0
    assert metrics["learning_rate"] == pytest.approx(float(step.schedule(0)))  # of update 1
    assert not np.array_equal(after.params["target_embedding"], state.params["target_embedding"])


def test_skipped_step_keeps_the_average_even_if_parameters_are_not_finite():
    config = step_config(ema_decay=0.9)
    state = fresh_state(config)
    broken = spoiled(state.params, np.inf)
    zeros = jax.tree.map(np.zeros_like, state.params)
    sums = Sums(zeros, losses.LossSums(*[np.float32(np.nan)] * 4))
    after, metrics = jitted(config)[1](state.replace(params=broken), sums)
    assert metrics["skipped"] == 1
    jax.tree.map(np.testing.assert_array_equal, after.ema, state.ema)


def test_skip_spikes_after_its_warmup(monkeypatch):
    from transformer_jax.training import step as step_lib

    monkeypatch.setattr(step_lib, "SPIKE_WARMUP", 3)
    config = step_config(skip_spikes=2.0)
    state = fresh_state(config)
    sums, apply_sums = random_sums(state), jax.jit(TrainStep(config).apply_sums)
    norm = float(apply_sums(state, sums)[1]["grad_norm"])
    scales = [1.0, 1.0, 1.0, 1.9, 2.6, 2.4, 1.0, 3.2]
    usual, updates, want = 0.0, 0, []
    for scale in scales:
        skip = updates >= 3 and scale * norm > 2 * usual
        want.append(float(skip))
        if not skip:
            decay = min(0.99, updates / (updates + 1))
            usual, updates = decay * usual + (1 - decay) * scale * norm, updates + 1
    got = []
    for scale in scales:
        scaled = sums._replace(grads=jax.tree.map(lambda g, s=scale: g * s, sums.grads))
        state, metrics = apply_sums(state, scaled)
        got.append(float(metrics["skipped"]))
    assert got == want
    assert 0 < sum(want) < len(want)
    np.testing.assert_allclose(state.usual_norm, usual, rtol=1e-5)


def test_records_of_loss_terms_agree_with_what_computes_them():
    assert loss_terms.LOSS_TERMS.keys() == {"r_drop", *objective.TERMS}
    for name, term in loss_terms.LOSS_TERMS.items():
        train = TrainConfig(**{name: 0.5})  # its weight is a setting
        assert loss_terms.num_passes(train) == term.passes
        config = Config(train=train, model=ModelConfig(dropout_rate=0.0))
        conflicts = [one for one in checks._conflicts(config) if f"train.{name}" in one]
        assert bool(conflicts) == term.compares_dropout
