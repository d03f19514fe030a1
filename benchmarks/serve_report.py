"""Figures and tables of `benchmarks/serve.py`."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from serve_load import Answer

OK, TOO_MANY, TIMED_OUT = 200, 429, 504


@dataclasses.dataclass(frozen=True)
class Row:
    """A server under a load. Times are in milliseconds.

    Attributes:
      server: its name.
      load: such as `32 clients` or `200%`.
      offered: sentences a second that were sent.
      throughput: sentences a second that were translated.
      p50: time from when a request was due to its translation; then two more percentiles.
      refused: share of the requests that were answered with 429.
      refused_p99: time of these answers.
      expired: share of the requests that were answered with 504.
      failed: requests with no answer, or with any other.
      cpu_ms: processor time of the server, a translation.
    """

    server: str
    load: str
    offered: float
    throughput: float
    p50: float
    p95: float
    p99: float
    refused: float
    refused_p99: float
    expired: float
    failed: int
    cpu_ms: float


def row(
    server: str,
    load: str,
    turns: Sequence[Sequence[Answer]],
    window: tuple[float, float],
    cpu_seconds: float,
) -> Row:
    """The row of a server under a load.

    Args:
      server: its name.
      load: its name.
      turns: answers of each turn.
      window: of each turn: those due in it are counted. Its end may be infinite.
      cpu_seconds: that the server used, over all turns.
    """
    counted = [[a for a in turn if window[0] <= a.due < window[1]] for turn in turns]
    every = [a for turn in counted for a in turn]
    spans = [max(a.done for a in turn) - window[0] for turn in counted if turn]
    seconds = sum(spans)
    ok, refused = _of(every, OK), _of(every, TOO_MANY)
    num_expired = len(_of(every, TIMED_OUT))
    num_translated = sum(a.status == OK for turn in turns for a in turn)
    p50, p95, p99 = percentiles([a.seconds for a in ok])
    return Row(
        server,
        load,
        offered=len(every) / seconds if seconds else 0.0,
        throughput=len(ok) / seconds if seconds else 0.0,
        p50=p50,
        p95=p95,
        p99=p99,
        refused=len(refused) / max(1, len(every)),
        refused_p99=percentiles([a.seconds for a in refused])[2],
        expired=num_expired / max(1, len(every)),
        failed=len(every) - len(ok) - len(refused) - num_expired,
        cpu_ms=1000 * cpu_seconds / max(1, num_translated),
    )


def _of(answers: Sequence[Answer], status: int) -> list[Answer]:
    return [a for a in answers if a.status == status]


def percentiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    """p50, p95 and p99 in milliseconds; NaN of nothing."""
    if not seconds:
        return (float("nan"),) * 3
    p50, p95, p99 = 1000 * np.percentile(seconds, (50, 95, 99))
    return float(p50), float(p95), float(p99)


COLUMNS = (
    ("server", lambda r: r.server),
    ("load", lambda r: r.load),
    ("sent/s", lambda r: f"{r.offered:.0f}"),
    ("translated/s", lambda r: f"{r.throughput:.0f}"),
    ("p50 ms", lambda r: _number(r.p50)),
    ("p95 ms", lambda r: _number(r.p95)),
    ("p99 ms", lambda r: _number(r.p99)),
    ("429", lambda r: f"{r.refused:.0%}" if r.refused else ""),
    ("429, p99 ms", lambda r: _number(r.refused_p99)),
    ("504", lambda r: f"{r.expired:.1%}" if r.expired else ""),
    ("failed", lambda r: str(r.failed or "")),
    ("CPU ms", lambda r: f"{r.cpu_ms:.1f}"),
)


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def table(rows: Sequence[Row]) -> str:
    """The rows as a table of Markdown."""
    cells = [[name for name, _ in COLUMNS]] + [[show(r) for _, show in COLUMNS] for r in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def ratio(rows: Sequence[Row], load: str, server: str, other: str) -> float | None:
    """How many times the throughput of `other` that of `server` is; None: one was not measured."""
    by_name = {r.server: r.throughput for r in rows if r.load == load}
    if server not in by_name or not by_name.get(other):
        return None
    return by_name[server] / by_name[other]


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows; null in place of NaN, which is no JSON."""
    return [{k: None if v != v else v for k, v in dataclasses.asdict(r).items()} for r in rows]
