"""Compiles the training step of the large recipes for TPUs that are not attached.

    python benchmarks/scaling.py [--cases=base,big] [--json=docs/benchmarks/scaling_tpu.json]

Prints one row of a table per case; docs/scaling.md discusses the table. Each case runs `train.py
--dry_run` in a separate process, which takes one to two minutes on two CPU cores. Needs `libtpu`
(`pip install -c constraints.txt libtpu`), whose compiler runs on any machine.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from absl import app, flags

ROOT = Path(__file__).parent.parent
_CASES = flags.DEFINE_list(
    "cases", [], "Run only cases whose recipe and topology contain one of these texts."
)
_JSON = flags.DEFINE_string("json", None, "Also write the reports to this file.")

BIG, BASE = "wmt14_en_de_big", "wmt14_en_de_base"
POD_BATCH = "data.batch_tokens=524288"  # 8 rows of 256 for each of 256 chips
# Recipe, topology, settings.
CASES: list[tuple[str, str, list[str]]] = [
    *[(BASE, topology, []) for topology in ("v5e:2x4", "v5p:2x2x2", "v6e:2x4")],
    *[(BIG, topology, []) for topology in ("v5e:2x4", "v5p:2x2x2", "v6e:2x4")],
    (BIG, "v5e:2x2", ["parallel.data=1"]),  # one chip of the topology
    (BIG, "v5e:2x4", ["parallel.data=1", "parallel.fsdp=8"]),
    (BIG, "v5e:2x4", ["parallel.data=2", "parallel.fsdp=2", "parallel.tensor=2"]),
    (BIG, "v5e:16x16", ["parallel.fsdp=16", POD_BATCH]),
    (BIG, "v5e:16x16", [POD_BATCH]),
]


def dry_run(recipe: str, topology: str, settings: list[str]) -> dict:
    """The report of one case, with its recipe and settings."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable,
            "train.py",
            "--dry_run",
            f"--config={recipe}",
            f"--topology={topology}",
            f"--json={report}",
            *[f"--config.{setting}" for setting in settings],
        ]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-1000:]}")
        return {"recipe": recipe, "settings": settings, **json.loads(report.read_text())}


def row(report: dict) -> str:
    """One line of the table in docs/scaling.md."""
    gib, mb = 2**30, 1e6
    mesh = " x ".join(str(size) for size in report["mesh"].values())
    communicated = report["collective_bytes"]
    reduced = communicated.get("all-reduce", 0) + communicated.get("reduce-scatter", 0)
    return (
        f"| {report['recipe']} | {report['topology']} | {mesh} | {report['batch'][0]} "
        f"| {report['peak_bytes'] / gib:.2f} of {report['memory_bytes'] / gib:.0f} "
        f"| {report['state_bytes'] / gib:.2f} | {report['compiler_flops'] / 1e12:.2f} "
        f"| {report['model_flops'] / 1e12:.2f} | {reduced / mb:,.0f} "
        f"| {communicated.get('all-gather', 0) / mb:,.0f} |"
    )


def main(argv: list[str]) -> None:
    del argv
    print(
        "| recipe | topology | data x fsdp x tensor | rows | GiB per chip | GiB of state | "
        "TFLOP, compiler | TFLOP, formula | MB reduced | MB gathered |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    reports = []
    for recipe, topology, settings in CASES:
        if _CASES.value and not any(case in f"{recipe} {topology}" for case in _CASES.value):
            continue
        reports.append(dry_run(recipe, topology, settings))
        print(row(reports[-1]), flush=True)
        if _JSON.value:
            Path(_JSON.value).write_text(json.dumps(reports, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
