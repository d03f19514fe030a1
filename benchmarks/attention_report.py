"""Results of `benchmarks/attention.py` as text, as a picture, and as the table that `auto` uses."""

import collections
import importlib.resources
import json
import math

# Benchmark case -> the entry of the table that `auto` uses for such calls.
KINDS = {
    "full": "full",
    "encoder": "full",
    "cross": "full",
    "causal": "causal",
    "packed": "packed",
    "step": "step",
}


def lines(rows: list[dict]) -> str:
    """One line per row, fastest first."""
    out = []
    for row in sorted(rows, key=lambda row: row["milliseconds"]):
        shape = f"[{row['batch']}, {row['length']}, {row['heads']}, {row['head_dim']}]"
        out.append(
            f"  {row['case']:8}{shape:22}{row['which']:17}{row['implementation']:16}"
            f"{row['milliseconds']:10.3f} ms {row['tflops']:8.3f} TFLOP/s "
            f"{100 * row['share_of_matmul_rate']:5.1f}%  compiled in {row['compile_seconds']:.2f} s"
            f"  error {row['error']:.0e}"
        )
    return "\n".join(out)


def _times(result: dict) -> dict[tuple[str, str, int], dict[str, float]]:
    """(case, pass, length) -> implementation -> milliseconds."""
    times: dict[tuple[str, str, int], dict[str, float]] = collections.defaultdict(dict)
    for row in result["rows"]:
        times[row["case"], row["which"], row["length"]][row["implementation"]] = row["milliseconds"]
    return times


def table(result: dict) -> str:
    """Milliseconds by length, and the speed of ours relative to the fastest peer."""
    by_problem = _times(result)
    out = []
    for case, which in dict.fromkeys((c, w) for c, w, _ in by_problem):
        lengths = [n for c, w, n in by_problem if (c, w) == (case, which)]
        names = dict.fromkeys(name for n in lengths for name in by_problem[case, which, n])
        out.append(f"\n{case}, {which}" + "".join(f"{n:>20}" for n in lengths))
        for name in names:
            cells = []
            for n in lengths:
                times = by_problem[case, which, n]
                peers = [t for other, t in times.items() if other.startswith("torch")]
                cell = f"{times[name]:.3f} ms" if name in times else "-"
                if name in times and peers and not name.startswith("torch"):
                    cell += f" ({min(peers) / times[name]:.2f}x)"
                cells.append(f"{cell:>20}")
            out.append(f"  {name:{len(case) + len(which)}}" + "".join(cells))
    for row in result["memory"]:
        sizes = ", ".join(f"{k} {v / 1e6:.0f} MB" for k, v in row.items() if k.endswith("bytes"))
        out.append(f"memory at {row['length']}: {row['implementation']}: {sizes}")
    return "\n".join(out)


def rules(result: dict) -> dict[str, list]:
    """Entries of `auto`'s table: kind -> rows of [largest S, implementations, fastest first].

    The cost of an implementation at a length is its time relative to the fastest, as a product over
    the cases and passes of the kind.
    """
    costs: dict[str, dict[int, dict[str, list[float]]]] = {}
    for (case, _, length), times in _times(result).items():
        ours = {n: t for n, t in times.items() if n != "auto" and not n.startswith("torch")}
        cell = costs.setdefault(KINDS[case], {}).setdefault(length, {})
        for name, milliseconds in ours.items():
            cell.setdefault(name, []).append(math.log(milliseconds / min(ours.values())))
    out = {}
    for kind, by_length in costs.items():
        rows: list[list] = []  # [largest S, implementations]
        for length in sorted(by_length):
            cell = by_length[length]
            order = sorted(cell, key=lambda name: (-len(cell[name]), sum(cell[name])))
            if rows and rows[-1][1] == order:
                rows[-1][0] = length
            else:
                rows.append([length, order])
        # The boundary between two measured lengths is their geometric mean.
        for row in rows[:-1]:
            row[0] = round(math.sqrt(row[0] * min(n for n in by_length if n > row[0])))
        rows[-1][0] = None
        out[kind] = rows
    return out


def write_table(result: dict, path: str | None = None) -> None:
    """Writes the package's table with the measured entries of this platform.

    Args:
      result: of the measurement.
      path: of the file; None: that of the package.
    """
    package = importlib.resources.files("transformer_jax.ops.attention").joinpath("table.json")
    known = json.loads(package.read_text())
    known.setdefault(result["about"]["jax"]["platform"], {}).update(rules(result))
    rows = []
    for device, kinds in known.items():
        inside = ",\n".join(f'    "{kind}": {json.dumps(row)}' for kind, row in kinds.items())
        rows.append(f'  "{device}": {{\n{inside}\n  }}')
    with open(path or str(package), "w") as out:
        out.write("{\n" + ",\n".join(rows) + "\n}\n")


def plot(result: dict, path: str) -> None:
    """Draws time by length, with one panel per case and pass."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    by_problem = _times(result)
    panels = list(dict.fromkeys((c, w) for c, w, _ in by_problem))
    columns = min(4, len(panels))
    figure, axes = plt.subplots(
        -(-len(panels) // columns),
        columns,
        squeeze=False,
        layout="constrained",
        figsize=(4 * columns, 3.2 * -(-len(panels) // columns)),
    )
    names = dict.fromkeys(row["implementation"] for row in result["rows"])
    names.pop("auto", None)
    for axis, (case, which) in zip(axes.flat, panels, strict=False):
        lengths = sorted(n for c, w, n in by_problem if (c, w) == (case, which))
        for number, name in enumerate(names):
            times = [by_problem[case, which, n].get(name, math.nan) for n in lengths]
            dashes = "--" if name.startswith("torch") else "-"
            axis.plot(
                lengths, times, dashes, marker="o", markersize=4, color=f"C{number}", label=name
            )
        axis.set(
            title=f"{case}, {which}",
            xscale="log",
            yscale="log",
            xlabel="keys",
            ylabel="milliseconds",
        )
        axis.set_xticks(lengths, [str(n) for n in lengths])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    axes.flat[0].legend(fontsize=8)
    about = result["about"]
    engines = ", ".join(f"{engine} {facts['version']}" for engine, facts in about.items())
    row = result["rows"][0]
    figure.suptitle(
        f"attention, {row['heads']} heads of {row['head_dim']}, {row['dtype']}, "
        f"{about['jax']['device']}; {engines}"
    )
    figure.savefig(path, dpi=110)
