"""Meshes, the rows of each process, dry runs, and the launch files of the documents."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml
from etils import epath
from memory_corpus import TokenizedSide

from tests.conftest import digit_pairs, tiny_config
from transformer_jax.config import Config, DataConfig, ParallelConfig, all_settings, validate
from transformer_jax.config.setting import section_rules
from transformer_jax.data import loader, token_cache
from transformer_jax.data.epoch_data import EpochData, Epochs
from transformer_jax.data.plans.batch_shapes import BatchShape
from transformer_jax.data.plans.packing import PackPlan
from transformer_jax.data.plans.pair_selection import select_pairs
from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.errors import UserError
from transformer_jax.extras.diagnostics import (
    accelerators,
    dry_run,
    evaluation_memory,
    hlo,
    memory_traffic,
)
from transformer_jax.model import decoder_weights
from transformer_jax.model.transformer import init_params
from transformer_jax.training import partition, runners, setup
from transformer_jax.training.evaluate import Evaluator
from transformer_jax.workdir import folder as workdir_lib

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("sizes", "devices", "want"),
    [
        ((-1, 1, 1), 8, (8, 1, 1)),
        ((-1, 2, 2), 8, (2, 2, 2)),
        ((2, -1, 1), 8, (2, 4, 1)),
        ((1, 2, 1), 8, (1, 2, 1)),
        ((-1, 3, 1), 8, "sizes multiply to 3, which must divide them"),
        ((4, 4, 1), 8, "does not fit 8 devices"),
    ],
)
def test_mesh_shapes(sizes, devices, want):
    parallel = ParallelConfig(data=sizes[0], fsdp=sizes[1], tensor=sizes[2])
    if isinstance(want, str):
        with pytest.raises(UserError, match=want):
            partition.mesh_shape(parallel, devices)
    else:
        assert partition.mesh_shape(parallel, devices) == want


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"runner": "pmap", "fsdp": 2}, "pmap has the axis data alone"),
        ({"data": -1, "fsdp": -1}, "Only one of config.parallel"),
        ({"tensor": 0}, "config.parallel.tensor=0 must be"),
    ],
)
def test_mesh_sizes_that_are_impossible_are_refused(tmp_path, fields, words):
    config = tiny_config(tmp_path)
    parallel = dataclasses.replace(config.parallel, **fields)
    with pytest.raises(UserError, match=words):
        validate(dataclasses.replace(config, parallel=parallel))


def test_batch_rows_of_all_processes_are_the_batch(monkeypatch):
    """Rows that several processes load are those that one process loads."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 6, 40)
    side = TokenizedSide(
        np.arange(lengths.sum(), dtype=np.int32) + 10, np.concatenate([[0], np.cumsum(lengths)])
    )
    corpus = token_cache.TokenizedCorpus(side, side, (40,), "")
    selection = select_pairs(lengths, lengths, 8)
    plan = PackPlan(selection, 6, 16, 0)
    ids, epochs = SpecialIds(0, 2, 0, 2, 1), Epochs(EpochData(corpus, plan))
    batch = loader.BatchSource(epochs, ids, 3, 4)[1]
    assert len(batch["inputs"]) == 8
    parts = [
        loader.BatchSource(epochs, ids, 3, 4, lambda n, p=p: np.arange(n)[p::2])[1]
        for p in range(2)
    ]
    for name, array in batch.items():
        combined = np.empty_like(array)
        for p, part in enumerate(parts):
            combined[p::2] = part[name]
        np.testing.assert_array_equal(combined, array, err_msg=name)


def test_empty_rows_for_devices_are_reported_and_counted_as_padding(tmp_path):
    """97 rows on 8 devices x 4 parts need 31 empty rows; the plan of today has 96 rows."""
    config = tiny_config(tmp_path)
    reports = {}
    for version in (1, 2):
        new = dataclasses.replace(
            config,
            data=dataclasses.replace(config.data, plan_version=version, batch_tokens=97 * 48),
            train=dataclasses.replace(config.train, accumulate_steps=4),
            parallel=ParallelConfig(data=8),
        )
        lines: list[str] = []
        _, data = setup.prepare(new, epath.Path(tmp_path / f"run{version}"), lines.append)
        reports[version] = data.padding, "\n".join(lines)
        (shape,) = data.padded_shapes(32)
        assert shape.rows == (128, 96)[version - 1]
    assert "31 empty rows are added to 97: 32 parts" in reports[1][1]
    assert "empty rows" not in reports[2][1]
    assert "0 with one side over data.max_ratio=9 times" in reports[2][1]
    filled = {version: 1 - padding for version, (padding, _) in reports.items()}
    assert filled[1] / filled[2] == pytest.approx(97 / 128, rel=0.01)


HLO = """
HloModule jit_step

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y)
}

%body (state: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %gathered = bf16[16,8]{1,0} all-gather(%p), replica_groups=[2,4]<=[8], dimensions={0}
  %first = (f32[4,8]{1,0}, f32[4,8]{1,0}) collective-permute-start(%q), channel_id=3
  ROOT %t = (s32[], f32[4,8]) tuple(%i, %x)
}

%token.1 (p: bf16[2,8]) -> bf16[8,8] {
  ROOT %g = bf16[8,8]{1,0} all-gather(%p), frontend_attributes={chain_id="7"}
}

%token.2 (p: bf16[2,8]) -> bf16[8,8] {
  ROOT %g = bf16[8,8]{1,0} all-gather(%p), frontend_attributes={chain_id="7"}
}

ENTRY %main (a: f32[10]) -> f32[10] {
  %both = (f32[10]{0}, f32[3,4]{1,0:T(8,128)}) all-reduce(%a, %b), replica_groups={{0,1}}, to_apply=%add
  %part = f32[2,3]{1,0} reduce-scatter(%c), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %more = f32[3]{0} reduce-scatter(%d), replica_groups=mesh['data'=2,'fsdp'=4] {'fsdp'}, to_apply=%add
  %loop = (s32[], f32[4,8]) while(%init), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %f1 = bf16[8,8] fusion(%u), kind=kCustom, calls=%token.1
  %f2 = bf16[8,8] fusion(%u), kind=kCustom, calls=%token.2
  ROOT %out = f32[10] copy(%a)
}
"""  # noqa: E501


def test_hlo_collectives_match_a_count_by_hand():
    operations = hlo.collectives(HLO)
    assert hlo.total_bytes(operations) == {
        "all-reduce": 4 * 10 + 4 * 12,
        "reduce-scatter": 4 * 6 * 4 + 4 * 3 * 4,  # the operands of four devices
        "all-gather": 5 * 2 * 16 * 8 + 2 * 64,  # five times, and one that is in two kernels
        "collective-permute": 5 * 4 * 32,
    }
    assert {c.kind for c in operations if c.in_loop} == {"all-gather", "collective-permute"}


SCHEDULED = """
HloModule jit_step, is_scheduled=true

%condition (state: (s32[], f32[8])) -> pred[] {
  %state = (s32[], f32[8]{0}) parameter(0)
  %counter = s32[] get-tuple-element(%state), index=0
  %limit = s32[]{:T(128)} constant(6)
  ROOT %below = pred[] compare(%counter, %limit), direction=LT
}

%first (p: f32[4]) -> f32[8] {
  %p = f32[4]{0} parameter(0)
  ROOT %g = f32[8]{0} all-gather(%p), dimensions={0}, frontend_attributes={chain_id="3"}
}

%product (p: f32[4], x: f32[8,8]) -> f32[8] {
  %p.1 = f32[4]{0} parameter(0)
  %g.1 = f32[8]{0} all-gather(%p.1), dimensions={0}, frontend_attributes={chain_id="3"}
  ROOT %y = f32[8]{0} dot(%x, %g.1)
}

%sliced (stack: f32[6,100], i: s32[]) -> f32[1,100] {
  %stack = f32[6,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %same = f32[6,100]{1,0} bitcast(%stack)
  ROOT %row = f32[1,100]{1,0} dynamic-slice(%same, %i), dynamic_slice_sizes={1,100}
}

%updated (stack: f32[6,100], row: f32[1,100], i: s32[]) -> f32[6,100] {
  %stack.1 = f32[6,100]{1,0} parameter(0)
  %row.1 = f32[1,100]{1,0} parameter(1)
  %i.1 = s32[] parameter(2)
  ROOT %new = f32[6,100]{1,0} dynamic-update-slice(%stack.1, %row.1, %i.1)
}

%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[6,100]{1,0}, f32[4]{0}) parameter(0)
  %n = s32[] get-tuple-element(%s), index=0
  %all = f32[6,100]{1,0} get-tuple-element(%s), index=1
  %part = f32[4]{0} get-tuple-element(%s), index=2
  %one = f32[1,100]{1,0:T(8,128)S(1)} fusion(%all, %n), kind=kLoop, calls=%sliced
  %begin = f32[8]{0} fusion(%part), kind=kCustom, calls=%first
  %multiplied = f32[8]{0} fusion(%part, %one), kind=kOutput, calls=%product
  %alone = f32[10]{0} all-reduce(%multiplied), to_apply=%add
  %written = f32[6,100]{1,0} fusion(%all, %one, %n), kind=kLoop, calls=%updated
  ROOT %t = (s32[], f32[6,100]{1,0}, f32[4]{0}) tuple(%n, %written, %part)
}

ENTRY %main (a: f32[10]) -> f32[10] {
  %a = f32[1000]{0} parameter(0)
  %loop = (s32[], f32[6,100]{1,0}, f32[4]{0}) while(%init), condition=%condition, body=%body
  %sent = (f32[4]{0}, f32[8]{0}) all-gather-start(%part.1), dimensions={0}
  %sums = f32[1000]{0} add(%a, %a)
  %got = f32[8]{0} all-gather-done(%sent)
  %later = (f32[4]{0}, f32[8]{0}) all-gather-start(%part.1), dimensions={0}
  %square = f32[10,10]{1,0:T(8,128)S(1)} dot(%m, %m)
  %got.1 = f32[8]{0} all-gather-done(%later)
  %moving = (f32[50]{0:T(128)S(1)}, f32[50]{0}, u32[]{:S(2)}) copy-start(%a)
  ROOT %moved = f32[50]{0:T(128)S(1)} copy-done(%moving)
}
"""


def test_hlo_loops_without_a_known_number_of_trips_run_to_the_limit_of_their_counter():
    operations = hlo.collectives(SCHEDULED)
    assert {c.times for c in operations if c.in_loop} == {6}
    assert hlo.total_bytes(operations) == {"all-gather": 6 * 32 + 32 + 32, "all-reduce": 6 * 40}


def test_hlo_communication_is_overlapped_where_products_run_until_its_end():
    overlapped = {(c.kind, c.in_loop, c.overlapped) for c in hlo.collectives(SCHEDULED)}
    assert overlapped == {
        ("all-gather", True, True),  # in the chain of two kernels, of which one multiplies
        ("all-reduce", True, False),  # not in the background
        ("all-gather", False, True),
        ("all-gather", False, False),  # only an addition runs until then
    }
    share = hlo.overlapped_share(hlo.collectives(SCHEDULED))
    assert share == pytest.approx((6 * 32 + 32) / (6 * 32 + 32 + 32 + 6 * 40))
    adding = hlo.collectives(SCHEDULED.replace("dot(%x, %g.1)", "add(%x, %g.1)"))
    assert {c.overlapped for c in adding if c.kind == "all-gather" and c.in_loop} == {False}


def test_hlo_memory_traffic_matches_a_count_by_hand():
    loop = (
        (4 + 4 + 1)  # the counter, its limit, and whether it is below
        + (400 + 4)  # a row of the stack and its number; the row itself stays in vector memory
        + (16 + 32)
        + (16 + 32)
        + (32 + 40)
        + (4 + 400)  # the number, and a row of the stack
    )
    communicated = 2 * (16 + 32)
    main = 3 * 4000 + 200  # the sums, and a copy whose target is in vector memory
    assert memory_traffic.memory_bytes(hlo.Program(SCHEDULED)) == 6 * loop + communicated + main


def test_roofline_divides_by_the_rates_of_the_data_sheet():
    bounds = accelerators.roofline(
        "TPU v5 lite", 197e12, 819e6, {"all-gather": 3 * 10**9, "all-reduce": 10**9}
    )
    assert bounds == accelerators.Roofline(
        products=pytest.approx(1.0), memory=pytest.approx(1e-3), network=pytest.approx(0.025)
    )
    assert accelerators.roofline("cpu", 1.0, 1.0, {}) is None


def test_recomputed_flops_are_those_of_the_layers(tmp_path):
    """`full` repeats a third of the layers' products; `dots` repeats attention's alone."""
    shape = BatchShape(8, 32, 48)
    by_remat = {}
    for remat in ("none", "dots", "full"):
        config = tiny_config(tmp_path)
        config.train.remat = remat
        config.model.source_vocab_size = config.model.target_vocab_size = 100
        by_remat[remat] = dry_run.recomputed_flops(config, shape)
    model = config.model
    width, size = model.d_model, model.num_heads * model.resolved_head_dim
    pairs = model.num_encoder_layers * 32 * 32 + model.num_decoder_layers * 48 * (48 + 32)
    assert by_remat["none"] == 0.0
    assert by_remat["dots"] == 8 * 4 * size * pairs
    vocabulary = 2 * 8 * 48 * width * 100
    total = dry_run.model_flops(config, shape)
    assert by_remat["full"] == pytest.approx(total / 3 - vocabulary)


def test_dry_run_reports_the_real_step(tmp_path):
    start = tiny_config(tmp_path)
    model = dataclasses.replace(start.model, source_vocab_size=50, target_vocab_size=60)
    (tmp_path / "start").mkdir()
    workdir_lib.write_config(
        epath.Path(tmp_path / "start"), dataclasses.replace(start, model=model)
    )
    config = dataclasses.replace(
        tiny_config(tmp_path, init_from=str(tmp_path / "start")),
        model=dataclasses.replace(model, d_model=2 * model.d_model),  # that of the start counts
        parallel=dataclasses.replace(start.parallel, data=2, fsdp=4),
    )
    lines = []
    report = dry_run.dry_run(config, "", lines.append)
    shapes = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    assert report.num_params == sum(x.size for x in jax.tree.leaves(shapes))
    assert report.num_devices == 8
    assert report.batch == (16, 48, 48)
    num_bytes = 3 * 4 * report.num_params  # and Adam's two moments
    assert report.state_bytes == pytest.approx(num_bytes / 4, rel=0.03)
    assert report.argument_bytes > report.state_bytes
    # An evaluation has the state and another copy of a device's part of the model.
    assert report.evaluation_bytes > report.state_bytes + report.num_params
    assert report.collective_bytes["all-gather"] == pytest.approx(4 * report.num_params, rel=0.01)
    text = "\n".join(lines)
    assert report.recomputed_flops == 0.0
    assert report.roofline is None  # of a CPU
    # At least each gradient is written, and the parameters and the two moments read and written.
    assert report.traffic_bytes > 4 * report.num_params * (1 + 6 / 4)
    for word in ("data 2 x fsdp 4", f"{report.num_params:,} parameters", "in an evaluation"):
        assert word in text
    with pytest.raises(UserError, match="must be cpu:N"):
        dry_run.dry_run(config, "cpu:many", print)
    with pytest.raises(UserError, match="topology=v99:2x4` is not known"):
        dry_run.dry_run(config, "v99:2x4", print)


@pytest.mark.parametrize(("sentences", "rows"), [(0, 24), (64, 64)])
def test_dry_run_batch_follows_the_config(sentences, rows):
    """1,024 tokens are 24 rows of 41; a number of sentences is a number of rows."""
    data = DataConfig(batching="bucket", max_len=41, batch_tokens=1024, batch_sentences=sentences)
    want = BatchShape(rows, 41, 41)
    assert dry_run.largest_shape(Config(data=data)) == want


@pytest.mark.parametrize(
    "fields", [{}, {"feed_forward": "gated", "num_kv_heads": 2}], ids=["paper", "gated, grouped"]
)
def test_model_flops_match_those_of_the_products_in_hlo(tmp_path, fields):
    """Against XLA's count of the forward products, on a model of uneven sizes, without padding."""
    config = tiny_config(tmp_path)
    model = dataclasses.replace(
        config.model,
        num_encoder_layers=3,
        num_decoder_layers=2,
        d_model=64,
        num_heads=4,
        head_dim=24,
        d_ff=96,
        num_decoder_heads=2,
        source_vocab_size=2000,
        target_vocab_size=2000,
        decoder_start_id=1,
        max_len=64,
        attention="xla",
        **fields,
    )
    config = dataclasses.replace(config, model=model)
    shape = BatchShape(rows=8, source_len=40, target_len=64)
    from transformer_jax.model.transformer import Transformer, init_params
    from transformer_jax.training.runners import batch_struct

    params = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    apply = jax.jit(lambda p, b: Transformer(model).apply({"params": p}, b))
    lowered = apply.lower(params, batch_struct(shape)).as_text()
    products = 0
    for line in lowered.splitlines():
        if "stablehlo.dot_general" in line:
            shapes = [
                [int(n) for n in dims.split("x")[:-1]]
                for dims in re.findall(r"tensor<([^>]*)>", line)
            ]
            contracting = re.search(r"contracting_dims = \[([\d, ]*)\]", line)[1]
            depth = np.prod([shapes[0][int(i)] for i in contracting.split(",")])
            products += 2 * depth * np.prod(shapes[-1])
    assert dry_run.model_flops(config, shape) == pytest.approx(3 * products)


def train_flags():
    done = subprocess.run(
        [sys.executable, "train.py", "--config=tiny", "--helpfull"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    names = set(re.findall(r"^ +--(?:\[no\])?([\w.]+)", done.stdout, re.MULTILINE))
    for section in dataclasses.fields(Config):
        if dataclasses.is_dataclass(section.type):
            fields = dataclasses.fields(section.type)
            names |= {f"config.{section.name}.{field.name}" for field in fields}
    return names


def test_launch_files_are_well_formed():
    known = train_flags()
    assert {"workdir", "num_processes", "config.parallel.fsdp"} <= known
    names = ("slurm.sbatch", "tpu_pod.sh", "jobset.yaml")
    texts = {name: (ROOT / "docs" / "launch" / name).read_text() for name in names}
    for name in ("slurm.sbatch", "tpu_pod.sh"):
        subprocess.run(["bash", "-n", str(ROOT / "docs" / "launch" / name)], check=True)
    for name, text in texts.items():
        _, _, command = text.partition("train")
        command = text[text.index("train --" if "train --" in text else "train.py --") :]
        command = re.split(r"\n\s*(?:ports:|#|if )|\"\n", command)[0]
        flags = re.findall(r"--([\w.]+)", command)
        assert len(flags) > 3, name
        assert set(flags) - {"config"} <= known, name
    job = yaml.safe_load(texts["jobset.yaml"])
    (workers,) = job["spec"]["replicatedJobs"]
    spec = workers["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == 4
    (container,) = spec["template"]["spec"]["containers"]
    shell = container["command"][-1]
    assert "--num_processes=4" in shell
    host = f"{job['metadata']['name']}-{workers['name']}-0-0.{job['metadata']['name']}"
    assert f"--coordinator_address={host}:1234" in shell
    subprocess.run(["bash", "-n", "-c", shell], check=True)


def test_long_runs_document_lists_the_settings_that_may_change():
    text = (ROOT / "docs" / "long_runs.md").read_text()
    listed = set(re.findall(r"^\| `([\w.*]+)`", text, re.MULTILINE))
    sections = {name: rules.resumable for name, rules in section_rules(Config).items()}
    resumable = [setting.path for setting in all_settings(Config) if setting.resumable]
    names = {
        path if not sections[path.split(".")[0]] else path.split(".")[0] + ".*"
        for path in resumable
    }
    assert listed == names


def test_scaling_document_has_the_table_of_its_file():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import scaling

    reports = json.loads((ROOT / "docs" / "benchmarks" / "scaling_tpu.json").read_text())
    text = (ROOT / "docs" / "scaling.md").read_text()
    assert len(reports) == len(scaling.CASES)
    for report in reports:
        assert scaling.row(report) in text
        assert report["fits"]


def test_evaluation_of_a_sharded_model_stays_sharded(translator, monkeypatch):
    """The scores equal those of one device; each device has only its part of a large array."""
    config = translator.config
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, eval_beam_size=2))
    pairs, results = digit_pairs(6, seed=5), []
    lay_out = decoder_weights.for_inference

    def spy(*args):
        weights = lay_out(*args)
        laid_out.extend(jax.tree.leaves(weights))
        return weights

    for data, fsdp, tensor in ((1, 1, 1), (2, 2, 2)):
        parallel = ParallelConfig(data=data, fsdp=fsdp, tensor=tensor)
        sharded = dataclasses.replace(config, parallel=parallel)
        devices = jax.devices()[: data * fsdp * tensor]
        runner = runners.make_runner(sharded, devices)
        state = runner.init(0, translator.params)
        laid_out: list[jax.Array] = []
        with monkeypatch.context() as patch:
            patch.setattr(decoder_weights, "for_inference", spy)
            results.append(Evaluator(sharded, translator.tokenizers, runner)(state, pairs))
        large = [x for x in laid_out if x.size >= 1024]
        assert large
        most = 1 if len(devices) == 1 else pytest.approx(1 / fsdp)
        assert max(x.addressable_data(0).size / x.size for x in large) == most
        # A dry run assumes arrays of these sizes.
        assumed = jax.tree.leaves(evaluation_memory._laid_out(sharded, runner).models)
        assert [(x.dtype, x.sharding.shard_shape(x.shape)) for x in assumed] == [
            (x.dtype, x.addressable_data(0).shape) for x in laid_out
        ]
    (scores, samples), (sharded_scores, sharded_samples) = results
    assert samples == sharded_samples
    assert scores.keys() == sharded_scores.keys()
    for name, value in scores.items():
        same = pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
        assert sharded_scores[name] == same
