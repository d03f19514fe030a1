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
# Layers as a loop: their parameters are gathered one layer at a time.
LAYER_BY_LAYER = [
    "parallel.data=1",
    "parallel.fsdp=-1",
    "train.scan_layers=True",
    "train.remat=full",
]


def sizes(width: int, layers: int, batch_tokens: int) -> list[str]:
    """Settings of a model with heads of 64, feed-forward layers of 4 times the width."""
    return [
        f"model.d_model={width}",
        f"model.d_ff={4 * width}",
        f"model.num_heads={width // 64}",
        f"model.num_encoder_layers={layers}",
        f"model.num_decoder_layers={layers}",
        "data.vocab_size=64000",
        f"data.batch_tokens={batch_tokens}",
    ]


# Recipe, topology, settings.
CASES: list[tuple[str, str, list[str]]] = [
    *[(BASE, topology, []) for topology in ("v5e:2x4", "v5p:2x2x2", "v6e:2x4")],
    *[(BIG, topology, []) for topology in ("v5e:2x4", "v5p:2x2x2", "v6e:2x4")],
    (BIG, "v5e:2x2", ["parallel.data=1"]),  # one chip of the topology
    (BIG, "v5e:2x4", ["parallel.data=1", "parallel.fsdp=8"]),
    (BIG, "v5e:2x4", ["parallel.data=2", "parallel.fsdp=2", "parallel.tensor=2"]),
    (BIG, "v5e:16x16", ["parallel.fsdp=16", POD_BATCH]),
    (BIG, "v5e:16x16", [POD_BATCH]),
    # 3 and 10 billion parameters, 16 rows of 256 for each chip.
    (BIG, "v5e:4x4", [*sizes(2048, 24, 65_536), *LAYER_BY_LAYER]),
    (BIG, "v5p:4x4x4", [*sizes(4096, 21, 262_144), *LAYER_BY_LAYER]),
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


COLUMNS = [
    "parameters, topology",
    "data x fsdp x tensor",
    "rows",
    "GiB a chip",
    "of which state",
    "TFLOP, formula",
    "GB in memory",
    "MB reduced",
    "MB gathered",
    "overlapped",
    "least ms: products",
    "memory",
    "network",
    "compiled in s",
]


def row(report: dict) -> str:
    """One line of the table in docs/scaling.md."""
    gib, mb = 2**30, 1e6
    sent = report["collective_bytes"]
    reduced = sent.get("all-reduce", 0) + sent.get("reduce-scatter", 0)
    cells = [
        f"{report['num_params'] / 1e6:,.0f} M, {report['topology']}",
        " x ".join(str(size) for size in report["mesh"].values()),
        report["batch"][0],
        f"{report['peak_bytes'] / gib:.2f} of {report['memory_bytes'] / gib:.0f}",
        f"{report['state_bytes'] / gib:.2f}",
        f"{(report['model_flops'] + report['recomputed_flops']) / 1e12:.2f}",
        f"{report['traffic_bytes'] / 1e9:.1f}",
        f"{reduced / mb:,.0f}",
        f"{sent.get('all-gather', 0) / mb:,.0f}",
        f"{100 * report['overlapped_share']:.0f}%",
        *[f"{1000 * seconds:.1f}" for seconds in report["roofline"].values()],
        f"{report['compile_seconds']:.0f}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def main(argv: list[str]) -> None:
    del argv
    print(f"| {' | '.join(COLUMNS)} |")
    print("|" + "---|" * len(COLUMNS))
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
