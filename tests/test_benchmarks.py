"""Counts, comparisons and tables of the benchmarks."""

import importlib.util
import json
import subprocess
import sys

import accelerator
import accelerator_checks
import attention_report
import attention_workers
import low_resource
import numpy as np
import pytest
import serve_load
import serve_report
import serve_slots
import serve_soak
import train_step_corpus
import train_step_undone
import train_step_workers
import trainings
from attention_workers import Problem
from memory_corpus import TokenizedSide

from tests.conftest import write_pairs
from transformer_jax.config import ModelConfig
from transformer_jax.data.token_cache import TokenizedCorpus
from transformer_jax.model import layers
from transformer_jax.ops import losses
from transformer_jax.training import optimizer


def problem(case, which="forward", batch=2, length=96):
    return Problem(case, batch, length, 2, 8, "float32", which)


@pytest.mark.parametrize("case", attention_workers.CASES)
def test_attention_flops_count_the_allowed_pairs(case):
    one = problem(case)
    ids, sizes = attention_workers.segments(one), attention_workers.lengths(one)
    pairs = 0
    for b, t, s in np.ndindex(one.batch, one.query_length, one.length):
        allowed = case != "causal" or s <= t
        allowed &= sizes is None or s < sizes[b]
        allowed &= ids is None or ids[b, t] == ids[b, s]
        pairs += bool(allowed)
    assert attention_workers.flops(one) == 4 * pairs * 2 * 8
    assert attention_workers.flops(problem(case, "forward+backward")) == 14 * pairs * 2 * 8


@pytest.mark.parametrize("case", ["causal", "cross"])
def test_accelerator_check_of_attention_has_gradients_of_its_output(case):
    """The formula's gradients, against differences of its output."""
    one = problem(case, "forward+backward", length=6)
    inputs, allowed = attention_workers.arrays(one), attention_workers.mask(one)
    _, *grads = accelerator_checks.formula(inputs, allowed)
    for name, grad in zip(("query", "key", "value"), grads, strict=True):
        index = tuple(n // 2 for n in grad.shape)
        values = []
        for step in (1e-3, -1e-3):
            changed = {k: v.astype(float) for k, v in inputs.items()}
            changed[name][index] += step
            out = accelerator_checks.formula(changed, allowed)[0]
            values.append((out * inputs["d_out"]).sum())
        assert grad[index] == pytest.approx((values[0] - values[1]) / 2e-3, rel=1e-4, abs=1e-8)


def test_attention_formula_is_0_for_a_query_without_keys():
    inputs = attention_workers.arrays(problem("full", "forward+backward", length=4))
    allowed = np.ones((1, 1, 4, 4), bool)
    allowed[..., 2, :] = False
    out, d_query, *d_keys = accelerator_checks.formula(inputs, allowed)
    assert not out[:, 2].any()
    assert not d_query[:, 2].any()
    assert all(np.isfinite(x).all() and x.any() for x in (out, d_query, *d_keys))


def test_attention_packed_case_fills_its_rows():
    ids = attention_workers.segments(problem("packed", length=500))
    assert ids.shape == (2, 500)
    assert ids.min() == 1
    assert set(np.unique(np.diff(ids, axis=1))) == {0, 1}


def test_attention_table_orders_by_speed_at_each_length():
    def row(case, length, name, milliseconds, which="forward"):
        return {
            "case": case,
            "length": length,
            "implementation": name,
            "which": which,
            "milliseconds": milliseconds,
        }

    rows = [
        row("full", 64, "xla", 1.0),
        row("full", 64, "blockwise", 2.0),
        # One case each way: the larger ratio decides.
        row("full", 256, "xla", 1.0),
        row("full", 256, "blockwise", 1.1),
        row("encoder", 256, "xla", 3.0),
        row("encoder", 256, "blockwise", 1.0),
        row("full", 1024, "xla", 9.0),
        row("full", 1024, "blockwise", 4.0),
        row("full", 1024, "auto", 1.0),
        row("full", 1024, "torch", 1.0),
        row("step", 64, "xla", 5.0),
        row("step", 64, "blockwise", 6.0),
    ]
    assert attention_report.rules({"rows": rows}) == {
        "full": [[128, ["xla", "blockwise"]], [None, ["blockwise", "xla"]]],
        "step": [[None, ["xla", "blockwise"]]],
    }


def test_attention_report_compares_with_the_fastest_peer():
    rows = [
        {
            "case": "full",
            "length": 64,
            "implementation": name,
            "which": "forward",
            "milliseconds": ms,
        }
        for name, ms in (("xla", 2.0), ("torch", 3.0))
    ]
    text = attention_report.table({"rows": rows, "memory": []})
    assert "2.000 ms (1.50x)" in text
    assert "3.000 ms (" not in text


def test_flax_example_rows_are_packed_in_order():
    lengths = np.array([2, 3, 1, 4, 2, 2, 3, 1])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.arange(10, 10 + offsets[-1])
    side = TokenizedSide(tokens, offsets)
    corpus = TokenizedCorpus(side, side, (len(lengths),), "")
    batch = train_step_corpus.packed_in_order(corpus, 2, 8)
    order = np.random.default_rng(0).permutation(len(lengths))
    rows, row = [], []
    for i in order:
        sentence = [*corpus.source[i], 2]
        if len(row) + len(sentence) > 8:
            rows.append(row)
            row = []
        row = row + sentence
    for got, want in zip(batch["inputs"], rows, strict=False):
        np.testing.assert_array_equal(got, want + [0] * (8 - len(want)))
    np.testing.assert_array_equal(batch["inputs"], batch["targets"])
    ends = batch["inputs"] == 2
    numbers = np.cumsum(ends, axis=1) - ends + 1
    np.testing.assert_array_equal(
        batch["inputs_segmentation"], np.where(batch["inputs"], numbers, 0)
    )
    # Positions restart after each end symbol.
    starts = batch["inputs_position"] == 0
    np.testing.assert_array_equal(starts[:, 1:], ends[:, :-1] | (batch["inputs"][:, 1:] == 0))


def test_train_step_batches_have_no_padding():
    model = ModelConfig(
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=8,
        d_ff=8,
        num_heads=2,
        source_vocab_size=20,
        target_vocab_size=20,
        decoder_start_id=1,
    )
    task = train_step_workers.Task(model, rows=3, source_len=7, target_len=5)
    batch = next(train_step_workers.synthetic_batches(train_step_workers.run_config(task), task))
    assert batch["inputs"].shape == (3, 7)
    assert batch["targets"].shape == (3, 5)
    assert batch["loss_mask"].all()
    assert batch["inputs_segment_ids"].all()


def losses_of(step):
    """Losses of the first step and of three more."""
    step_losses = [step.loss()]
    for _ in range(3):
        step.step()
        step_losses.append(step.loss())
    return step_losses


STEP = train_step_workers.Task(
    ModelConfig(
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=16,
        d_ff=32,
        num_heads=2,
        source_vocab_size=50,
        target_vocab_size=50,
        decoder_start_id=1,
        dropout_rate=0.0,
    ),
    rows=103,
    source_len=6,
    target_len=5,  # 515 positions: not a multiple of the chunk size
)


@pytest.fixture(scope="module")
def our_losses():
    return losses_of(train_step_workers.Ours(STEP))


@pytest.mark.slow
@pytest.mark.parametrize("change", train_step_undone.CHANGES)
def test_train_step_with_a_part_undone_is_the_same_step(our_losses, monkeypatch, change):
    """The plain form of each part computes what ours does."""
    parts = {
        "dense": vars(layers),
        "adam": optimizer.OPTIMIZERS,
        "projected_cross_entropy": vars(losses),
    }
    calls = set()

    def watch(name, function):
        def called(*args, **kwargs):
            calls.add(name)
            return function(*args, **kwargs)

        return called

    before = {name: place[name] for name, place in parts.items()}
    for name, function in before.items():
        monkeypatch.setitem(parts[name], name, function)  # so that monkeypatch restores it
    train_step_undone.CHANGES[change]()
    changed = {name for name, place in parts.items() if place[name] is not before[name]}
    for name in changed:
        parts[name][name] = watch(name, parts[name][name])
    monkeypatch.setitem(train_step_undone.CHANGES, change, lambda: None)  # applied already
    undone = train_step_undone.Undone(STEP, change)
    assert calls == changed != set()  # the step does use the plain forms
    assert losses_of(undone) == pytest.approx(our_losses, rel=1e-5)


def answers(*times_and_status):
    return [serve_load.Answer(due, due, done, status) for due, done, status in times_and_status]


def test_serve_row_counts_what_is_due_in_its_window():
    turn = answers(
        (0.0, 0.1, 200), (1.0, 1.2, 200), (1.5, 1.6, 429), (2.0, 2.4, 200), (2.5, 3.0, 504)
    )
    turn += answers((2.7, 2.9, serve_load.FAILED))
    row = serve_report.row("ours", "200%", [turn, turn], (1.0, float("inf")), cpu_seconds=0.6)
    # Two turns of 2 seconds each, with 5 requests: 2 translated, one of each other kind.
    assert (row.offered, row.throughput) == (10 / 4, 4 / 4)
    assert row.p50 == pytest.approx(300)
    assert (row.refused, row.expired, row.failed) == (0.2, 0.2, 2)
    assert row.refused_p99 == pytest.approx(100)
    assert row.cpu_ms == pytest.approx(100)  # 6 translations, those before the window included
    nothing = serve_report.row("ours", "1 client", [[]], (1.0, 2.0), 0.0)
    assert serve_report.as_json([nothing])[0]["p50"] is None
    assert serve_report.ratio([row], "200%", "ours", "ours") == 1
    assert serve_report.ratio([row], "32 clients", "ours", "ours") is None
    header, line, first = serve_report.table([row]).splitlines()
    assert len(header) == len(line) == len(first)


def test_serve_load_reads_answers_in_any_parts():
    complete = b"HTTP/1.1 429 Too Many\r\nretry-after: 1\r\nContent-Length: 4\r\n\r\nbusy"
    for size in range(len(complete)):
        assert serve_load.read_answer(complete[:size]) is None
    assert serve_load.read_answer(complete) == (429, b"busy")


def test_serve_load_arrivals_have_their_rate():
    times = serve_load.arrivals(50, 100)
    gaps = np.diff([0.0, *times])
    assert times == sorted(times)
    assert len(times) == pytest.approx(5000, rel=0.05)
    # Of a Poisson process, the gaps' standard deviation is their mean.
    assert np.std(gaps) == pytest.approx(np.mean(gaps), rel=0.1)


def test_serve_soak_growth_is_that_after_the_warm_up():
    memory = [50, 90] + [100] * 8 + [110] * 10
    assert serve_soak.growth(memory) == pytest.approx(0.1)


@pytest.mark.all_programs
def test_serve_slots_count_row_steps_of_the_batches_that_wait():
    options = lambda length: (1, 4)  # noqa: E731
    batches = list(serve_slots.form_batches([5, 5, 5, 20, 5], options, 4, 128))
    # The first batch is of those of 8 tokens. The longer text takes the last one not with it: a row
    # of 24 and one of 8 take less time than four of 24.
    assert batches == [(4, [0, 1, 2]), (1, [3]), (1, [4])]
    shares = serve_slots.share([1, 2, 3, 6, 2], batches, (1, 2, 4))
    assert (shares.needed, shares.computed) == (14, 4 * 3 + 6 + 2)
    # 3, 2 and 1 rows unfinished; then one row twice.
    assert shares.shrunk == (4 + 2 + 1) + 6 + 2
    assert shares.bound == pytest.approx(20 / 14)


def run_accelerator(folder, *options):
    command = [sys.executable, "benchmarks/accelerator.py", f"--folder={folder}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=1200)


@pytest.mark.slow
def test_accelerator_benchmark_runs_every_part_with_toy_sizes(tmp_path):
    done = run_accelerator(tmp_path, "--toy")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "accelerator.json").read_text())
    names = [part.name for part in accelerator.parts(True, [], "cpu")]
    assert [*result["parts"]] == names
    assert {part["status"] for part in result["parts"].values()} == {"done"}
    for name in set(names) - {"verify_resume"}:
        assert json.loads((tmp_path / f"{name}.json").read_text())
    resumed = result["parts"]["verify_resume"]["output"]
    assert "20 steps: the same batches, the same losses" in resumed
    assert "resumed: 1 cpu device(s), then 2" in resumed
    assert "losses within" in resumed.splitlines()[-1]
    table = json.loads((tmp_path / "table.json").read_text())
    assert table["cpu"]["full"][-1][0] is None
    rows = json.loads((tmp_path / "checks.json").read_text())["rows"]
    assert all(row["error"] <= row["tolerance"] for row in rows)
    assert {row["check"].split(",")[0] for row in rows} >= {"attention xla", "attention blockwise"}
    # The same command again finds nothing to do; another machine's results are not mixed in.
    again = run_accelerator(tmp_path, "--toy")
    assert again.returncode == 0
    assert again.stdout.count("done before") == len(names)
    result["about"]["device"] = "another"
    (tmp_path / "accelerator.json").write_text(json.dumps(result))
    other = run_accelerator(tmp_path, "--toy")
    assert other.returncode == 1
    assert "name another --folder" in other.stderr


def part(*commands, **fields):
    return accelerator.Part("part", [["-c", command] for command in commands], 60.0, **fields)


def test_accelerator_benchmark_bounds_each_part_and_reports_how_it_ended(tmp_path, monkeypatch):
    path = tmp_path / "part.json"
    monkeypatch.setattr(accelerator, "ROOT", tmp_path)
    waits = "import signal; signal.pause()"
    waits = f'import subprocess, sys; subprocess.run([sys.executable, "-c", "{waits}"])'
    write = f"open('{path}', 'w').write('{{{{\"score\": 5}}}}')"  # braces are doubled for format
    ended = accelerator.run_part(part(write, waits), tmp_path, 4.0)
    assert (ended["status"], ended["json"]) == ("out of time", "part.json")
    failed = accelerator.run_part(part("print('reason'); raise SystemExit(3)"), tmp_path, 60.0)
    assert failed["status"] == "failed with status 3"
    assert failed["output"] == "reason\n"
    wrong = accelerator.run_part(part(write, at_least=("score", 6)), tmp_path, 60.0)
    assert wrong["status"] == "wrong: score is 5, not at least 6"
    right = part(f"import os; assert os.environ['A'] == 'b'; {write}", environment={"A": "b"})
    assert accelerator.run_part(right, tmp_path, 60.0)["status"] == "done"


def test_accelerator_benchmark_compares_with_installed_peers_in_bounded_time():
    parts = accelerator.parts(False, ["torch", "transformers", "ctranslate2"], "gpu")
    text = {part.name: str(part.commands) for part in parts}
    assert "--peers=ctranslate2,transformers" in text["decode"]
    assert "--peers=transformers" in text["train_big_25k"]
    assert "--peers=torch" in text["attention"]
    assert {"flags_default", "flags_latency_hiding"} <= set(text)
    assert all(part.seconds <= 600 for part in parts)
    # Correctness first, side by side; what is timed runs by itself.
    groups = [[part.name for part in group] for group in accelerator.groups(parts)]
    assert groups[0] == ["checks", "verify_resume", "quickstart"]
    assert groups[1:] == [[part.name] for part in parts[3:]]
    alone = {part.name: str(part.commands) for part in accelerator.parts(False, [], "tpu")}
    assert "flags_default" not in alone
    assert "--peers='" in alone["decode"].replace('"', "'")


def test_low_resource_keeps_pairs_and_of_the_others_the_target(tmp_path):
    for name, count in (("train", 5), ("val", 2), (low_resource.TEST, 1)):
        pairs = [(f"{name} {i}", f"{name} {i} de") for i in range(count)]
        write_pairs(tmp_path, name, pairs)
    low_resource.split(tmp_path, tmp_path / "small", 3)
    texts = {path.name: path.read_text() for path in (tmp_path / "small").iterdir()}
    assert len(texts) == 7
    assert texts["train.en"] == "train 0\ntrain 1\ntrain 2\n"
    assert texts["train.de"] == "train 0 de\ntrain 1 de\ntrain 2 de\n"
    assert texts["monolingual.de"] == "train 3 de\ntrain 4 de\n"
    assert texts["val.de"] == (tmp_path / "val.de").read_text()
    with pytest.raises(SystemExit, match="has 5 lines: --pairs must be fewer"):
        low_resource.split(tmp_path, tmp_path / "small", 5)


def test_trainings_are_not_repeated_and_a_failure_loses_nothing(tmp_path, monkeypatch):
    def run(training, folder):
        began.append(training.variant)
        if training.variant == "bad":
            return {"variant": "bad", "seed": 0, "error": "reason"}
        return {"variant": training.variant, "seed": training.seed, "bleu": 30.0}

    monkeypatch.setattr(trainings.Training, "run", run)
    path = tmp_path / "results.json"

    def train(*variants, steps=100, every=10):
        began.clear()
        todo = [
            trainings.Training(variant, 0, "tiny", tmp_path, steps, every, {})
            for variant in variants
        ]
        trainings.train_all(todo, tmp_path, path, {"steps": steps}, 1, 60.0)

    began: list[str] = []
    with pytest.raises(SystemExit, match="failed: bad"):
        train("a", "bad", "b")
    assert began == ["a", "bad", "b"]
    assert [row["variant"] for row in json.loads(path.read_text())["rows"]] == ["a", "b"]
    train("a", "b", "c")
    assert began == ["c"]
    with pytest.raises(SystemExit, match="runs of another steps"):
        train("d", steps=200)
    with pytest.raises(SystemExit, match="100 steps have no 10 checkpoints, every 11 steps"):
        train("d", every=11)


def test_training_command_keeps_the_checkpoints_that_are_averaged(tmp_path):
    one = trainings.Training("a, b", 3, "tiny", tmp_path, 100, 4, {"seed": 1}, "test")
    assert one.name == "tiny_100_a_b_3"
    first, last, *scored = one.commands(tmp_path / "run", tmp_path / "tokens")
    # The first command writes its only checkpoint, the second one the ten last.
    assert {"--config.train.num_steps=60", "--config.train.checkpoint_every_steps=60"} < {*first}
    assert {"--config.train.num_steps=100", "--config.train.checkpoint_every_steps=4"} < {*last}
    splits = [flag for command in scored for flag in command if flag.startswith("--split")]
    assert splits == ["--split=validation", "--split=test"]


@pytest.mark.slow
def test_serve_benchmark_measures_a_tiny_model(tiny_run, tmp_path):
    pytest.importorskip("ctranslate2")
    if importlib.util.find_spec("locust") is None:  # its import patches threads
        pytest.skip("Locust is not installed")
    text, path = tmp_path / "text", tmp_path / "result.json"
    text.write_text("one two\nthree\nfour five six\n" * 4)
    command = [sys.executable, "benchmarks/serve.py", f"--model={tiny_run[1]}", f"--text={text}"]
    options = ["--clients=1,32", "--shares=2", "--seconds=2", "--open_seconds=2", "--turns=1"]
    subprocess.run([*command, *options, f"--json={path}"], check=True, timeout=600)
    result = json.loads(path.read_text())
    assert {(row["server"], row["load"]) for row in result["rows"]} == {
        (server, load)
        for server in result["same_outputs"]
        for load in ("1 client", "32 clients", "200%")
    }
    assert all(row["failed"] == 0 and row["throughput"] > 0 for row in result["rows"])
    assert all(count >= 11 for count in result["same_outputs"].values())
    assert all(one["failed"] == 0 < one["throughput"] for one in result["locust"].values())

    subprocess.run([*command, "--soak=3", f"--json={path}"], check=True, timeout=600)
    result = json.loads(path.read_text())
    assert result["sent"] == result["translated"]
    assert (result["lost_at_term"], result["exit_status"]) == (0, 0)
