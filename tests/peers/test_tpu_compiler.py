"""Attention compiled by libtpu for TPUs that are not attached."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Apart from the other packages, or JAX would look for a TPU at every start.
LIBTPU = Path(sys.prefix) / "libtpu"


NEEDS_LIBTPU = pytest.mark.skipif(not LIBTPU.exists(), reason="make test-peers installs libtpu")


@NEEDS_LIBTPU
def test_training_step_compiles_for_tpus_without_a_tpu(tmp_path):
    json_path = tmp_path / "report.json"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{LIBTPU}:{ROOT}"}
    command = [
        sys.executable,
        "train.py",
        "--dry_run",
        "--config=tiny",
        "--topology=v5e:2x4",
        "--config.model.d_model=128",
        "--config.train.accumulate_steps=2",
        f"--json={json_path}",
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "8 x TPU v5 lite, mesh data 8 x fsdp 1 x tensor 1" in done.stdout
    report = json.loads(json_path.read_text())
    assert report["fits"]
    assert report["memory_bytes"] == 16 * 2**30
    # Each gradient once a step, accumulation included, and three sums of the loss.
    assert report["collective_bytes"] == {"all-reduce": 4 * (report["num_params"] + 3)}


@NEEDS_LIBTPU
def test_pallas_kernel_compiles_for_two_tpus_with_batch_and_heads_sharded(tmp_path):
    json_path = tmp_path / "memory.json"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{LIBTPU}:{ROOT}"}
    subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "attention_tpu.py", f"--json={json_path}"],
        check=True,
        env=environment,
        capture_output=True,
    )
    rows = json.loads(json_path.read_text())["rows"]
    assert len(rows) == 8
    for row in rows:
        assert row["collectives"] == 0
        # [8 / 4, 4096, 8 / 2, 64] of 2 bytes, three times, and a little for the segments.
        inputs = 3 * 2 * 4096 * 4 * 64 * 2
        assert inputs <= row["argument_bytes"] < inputs * 1.1
        assert (row["kernels"] == 3) == (row["implementation"] in ("auto", "pallas_tpu"))
    temporary = {(r["topology"], r["implementation"]): r["temporary_bytes"] for r in rows}
    for topology in ("v5e:2x4", "v6e:2x4"):
        assert temporary[topology, "xla"] > 50 * temporary[topology, "pallas_tpu"]
