"""`train.py --dry_run`: compiles the real step of a config, for machines that are not here too."""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import Config, validate
from transformer_jax.config.loss_terms import num_passes
from transformer_jax.data.plans.batch_shapes import BatchShape, divisible_rows
from transformer_jax.errors import OUT_OF_MEMORY, UserError, is_out_of_memory
from transformer_jax.extras.diagnostics import hlo
from transformer_jax.extras.diagnostics.accelerators import ACCELERATORS, GIB, Roofline, roofline
from transformer_jax.extras.diagnostics.evaluation_memory import compile_evaluation
from transformer_jax.extras.diagnostics.memory_traffic import memory_bytes
from transformer_jax.model.choices import compute_dtype
from transformer_jax.ops import platforms
from transformer_jax.training import partition
from transformer_jax.training.runners import Runner, make_runner
from transformer_jax.training.setup import adopt_model, refuse_without_model
from transformer_jax.translator import pretrained


@dataclasses.dataclass(frozen=True)
class Report:
    """The step of one configuration on one machine; bytes and FLOPs are of one device."""

    topology: str
    device_kind: str
    num_devices: int
    mesh: dict[str, int]
    batch: tuple[int, int, int]  # rows, source positions, target positions
    num_params: int
    state_bytes: int  # parameters, optimizer state, average
    argument_bytes: int
    temporary_bytes: int
    code_bytes: int
    peak_bytes: int
    evaluation_bytes: int | None  # peak of an evaluation, state included; None: there is none
    memory_bytes: int | None  # that a device has, where known
    fits: bool | None
    compiler_flops: float
    model_flops: float  # 6 * parameters in products * tokens, and attention
    recomputed_flops: float  # that `train.remat` adds
    traffic_bytes: int  # read from main memory and written to it
    collective_bytes: dict[str, int]
    overlapped_share: float  # of those bytes: sent while matrix products run
    roofline: Roofline | None  # where the device's rates are known
    compile_seconds: float  # of all programs
    jax: str


def dry_run(config: Config, topology: str, say: Callable[[str], None]) -> Report:
    """Compiles the step for the largest batch, on devices that need not exist, and reports.

    No data is read: vocabularies are taken to have `data.vocab_size` tokens, and packed rows as
    many source positions as target positions. Of `train.init_from`, the config alone is read.

    Args:
      config: of the run.
      topology: of TPUs, such as `v5e:2x4`. `cpu:N` and `gpu:N` are N devices, simulated by XLA's
        compiler for CPUs. "": the devices of this machine.
      say: gets the report, line by line.

    Raises:
      UserError: unknown topology, a missing compiler, or a program that does not fit.
    """
    validate(config)
    devices, platform = _devices(topology)
    if config.train.init_from:
        config = adopt_model(config, pretrained.read_config(config.train.init_from))
    else:
        refuse_without_model(config)
    config = _fill_in(config, platform)
    devices = devices[: math.prod(partition.mesh_shape(config.parallel, len(devices)))]
    runner = make_runner(config, devices)
    multiple = runner.num_batch_shards * config.train.accumulate_steps
    shape = largest_shape(config).padded(multiple)
    started = time.monotonic()
    try:
        compiled = runner.compile(shape)
        evaluation = []
        if config.train.eval_every_steps:
            evaluation = compile_evaluation(config, runner, shape.source_len)
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        first = str(error).split(f"{OUT_OF_MEMORY}:")[-1].strip().splitlines()[0]
        raise UserError(
            f"The step, or an evaluation, does not fit {topology or 'the devices here'}: {first} "
            "Raise config.parallel.fsdp or config.train.accumulate_steps, or set "
            "config.train.remat=full."
        ) from error
    seconds = time.monotonic() - started
    report = _report(config, runner, topology, shape, compiled, evaluation, seconds)
    for line in lines(report):
        say(line)
    return report


def largest_shape(config: Config) -> BatchShape:
    """The largest batch of any corpus: rows as long as the config allows on both sides."""
    data = config.data
    length = (data.pack_len or data.max_len) if data.batching == "pack" else data.max_len
    rows = data.batch_tokens // length
    if data.plan_version > 1 and data.batching == "pack":
        rows = divisible_rows(rows)
    return BatchShape(data.batch_sentences or rows, length, length)


def _devices(topology: str) -> tuple[list[jax.Device], str]:
    """The devices to compile for, and their platform."""
    if not topology:
        return platforms.all_devices(), platforms.current()
    kind, _, size = topology.partition(":")
    if kind in ("cpu", "gpu"):
        if not size.isdigit() or not int(size):
            raise UserError(f"`topology={topology}` must be {kind}:N, for N devices.")
        jax.config.update("jax_num_cpu_devices", int(size))
        return jax.devices("cpu"), kind
    # Only the compiler is needed: skip the metadata server of TPUs, and allow other processes.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    from jax.experimental import topologies

    try:
        described = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    except Exception as error:  # each way to fail raises another type
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"`topology={topology}` is not known ({reason}); it is cpu:N, gpu:N, or a TPU's such "
            "as v5e:2x4, which needs its compiler: pip install libtpu."
        ) from error
    return list(described.devices), "tpu"


def _fill_in(config: Config, platform: str) -> Config:
    """The config with what the tokenizers and the devices determine in a run."""
    data = config.data
    source = config.model.source_vocab_size or data.vocab_size
    target = config.model.target_vocab_size or data.target_vocab_size or data.vocab_size
    model = dataclasses.replace(
        config.model,
        source_vocab_size=source + data.new_tokens,
        target_vocab_size=target + data.new_tokens,
        decoder_start_id=max(config.model.decoder_start_id, 0),
        dtype=compute_dtype(config.model, platform).name,  # type: ignore[arg-type]
    )
    return dataclasses.replace(config, model=model)


def _report(
    config: Config,
    runner: Runner,
    topology: str,
    shape: BatchShape,
    compiled: jax.stages.Compiled,
    evaluation: Sequence[jax.stages.Compiled],
    seconds: float,
) -> Report:
    memory = compiled.memory_analysis()
    peak = peak_bytes(compiled)
    if memory is None or peak is None:
        raise UserError(f"The compiler for {topology} does not report the memory of a program.")
    device = runner.mesh.devices.flat[0]
    accelerator = ACCELERATORS.get(device.device_kind)
    capacity = accelerator.memory_bytes if accelerator else None
    if not topology and (stats := device.memory_stats()):
        capacity = stats.get("bytes_limit")
    costs = compiled.cost_analysis() or {}
    state_bytes = sum(map(_device_bytes, jax.tree.leaves(runner.restore_target())))
    in_evaluation = [state_bytes + (peak_bytes(program) or 0) for program in evaluation]
    program = hlo.Program(compiled.as_text() or "")
    operations = program.collectives()
    sent, traffic = hlo.total_bytes(operations), memory_bytes(program)
    by_model = model_flops(config, shape) / runner.num_devices
    recomputed = recomputed_flops(config, shape) / runner.num_devices
    return Report(
        topology=topology or f"{device.platform}:{runner.num_devices}",
        device_kind=device.device_kind,
        num_devices=runner.num_devices,
        mesh=dict(runner.mesh.shape),
        batch=(shape.rows, shape.source_len, shape.target_len),
        num_params=runner.num_params(),
        state_bytes=state_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        peak_bytes=peak,
        evaluation_bytes=max(in_evaluation, default=None),
        memory_bytes=capacity,
        fits=None if capacity is None else max(peak, *in_evaluation) <= capacity,
        compiler_flops=float(costs.get("flops", 0.0)),
        model_flops=by_model,
        recomputed_flops=recomputed,
        traffic_bytes=traffic,
        collective_bytes=sent,
        overlapped_share=round(hlo.overlapped_share(operations), 3),
        roofline=roofline(device.device_kind, by_model + recomputed, traffic, sent),
        compile_seconds=round(seconds, 1),
        jax=jax.__version__,
    )


def peak_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Most memory that a program needs on one device; None if the compiler does not say."""
    memory = compiled.memory_analysis()
    if memory is None:
        return None
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.generated_code_size_in_bytes
    )


def _device_bytes(x: jax.ShapeDtypeStruct) -> int:
    """Bytes of one device's shard of an array; 0 of one in the host's memory."""
    if x.sharding.memory_kind == "pinned_host":
        return 0
    return math.prod(x.sharding.shard_shape(x.shape)) * jnp.dtype(x.dtype).itemsize


def model_flops(config: Config, shape: BatchShape) -> float:
    """FLOPs of one step by the formula: every product of the model, forward once, backward twice.

    Padding counts, because it is computed. Recomputation (`train.remat`) does not.
    """
    flops = _forward_flops(config, shape)
    return 3.0 * (flops.projections + flops.attention + flops.vocabulary)


def recomputed_flops(config: Config, shape: BatchShape) -> float:
    """FLOPs that the backward pass of one step computes again, by `train.remat`."""
    flops = _forward_flops(config, shape)
    recomputed = {
        "none": 0.0,
        "dots": flops.attention,
        "full": flops.projections + flops.attention,
    }
    return recomputed[config.train.remat]


class _ForwardFlops(NamedTuple):
    """FLOPs of the products of one forward pass."""

    projections: float  # with the parameters of layers
    attention: float  # of queries with keys, and of weights with values
    vocabulary: float


def _forward_flops(config: Config, shape: BatchShape) -> _ForwardFlops:
    model = config.model
    decoder = model.for_decoder()
    width, inner = model.d_model, model.resolved_head_dim
    rows = shape.rows * num_passes(config.train)
    source, target = rows * shape.source_len, rows * shape.target_len

    def attention(heads: int, queries: int, keys: int, key_len: int) -> np.ndarray:
        shared = 2 * (model.num_kv_heads or heads) * inner  # width of keys and values
        projections = 2 * width * (2 * queries * heads * inner + keys * shared)
        return np.array([projections, 2 * 2 * queries * key_len * heads * inner], float)

    matrices = 3 if model.feed_forward == "gated" else 2

    encoder = attention(model.num_heads, source, source, shape.source_len)
    encoder[0] += 2 * matrices * source * width * model.d_ff
    both = attention(decoder.num_heads, target, target, shape.target_len)
    both += attention(decoder.num_heads, target, source, shape.source_len)
    both[0] += 2 * matrices * target * width * decoder.d_ff
    layers = model.num_encoder_layers * encoder + model.num_decoder_layers * both
    vocabulary = 2.0 * target * width * model.target_vocab_size
    return _ForwardFlops(float(layers[0]), float(layers[1]), vocabulary)


def lines(report: Report) -> list[str]:
    """The report as text."""
    mesh = " x ".join(f"{name} {size}" for name, size in report.mesh.items())
    rows, source, target = report.batch
    verdict = evaluation = ""
    if report.memory_bytes is not None:
        fits = "fits" if report.fits else "DOES NOT FIT"
        verdict = f" of {report.memory_bytes / GIB:.0f} GiB: {fits}"
    if report.evaluation_bytes is not None:
        evaluation = f" in a step, {report.evaluation_bytes / GIB:.2f} GiB in an evaluation,"
    communicated = ", ".join(
        f"{kind} {num / 1e6:,.1f} MB" for kind, num in sorted(report.collective_bytes.items())
    )
    bounds = []
    if report.roofline is not None:
        parts = dataclasses.asdict(report.roofline)
        times = ", ".join(f"{name} {1000 * seconds:,.1f} ms" for name, seconds in parts.items())
        bounds = [f"a step takes at least, by the device's data sheet: {times}"]
    return [
        f"{report.topology}: {report.num_devices} x {report.device_kind}, mesh {mesh}, "
        f"jax {report.jax}, compiled in {report.compile_seconds:.0f} s",
        f"model: {report.num_params:,} parameters; batch {rows} x {source} + {target} positions",
        "       (vocabulary and source length assumed, no data was read)",
        f"memory a device: {report.peak_bytes / GIB:.2f} GiB{evaluation}{verdict}; state "
        f"{report.state_bytes / GIB:.2f}, temporaries {report.temporary_bytes / GIB:.2f}, "
        f"program {report.code_bytes / GIB:.2f}",
        f"FLOPs a device and step: {report.compiler_flops:.3e} by the compiler, "
        f"{report.model_flops:.3e} by the model's formula, {report.recomputed_flops:.3e} of "
        "recomputation",
        f"read and written in memory by a device in a step: {report.traffic_bytes / 1e9:,.2f} GB",
        f"communicated by a device in a step: {communicated or 'nothing'}",
        f"       of which {100 * report.overlapped_share:.0f}% while matrix products run",
        *bounds,
    ]
