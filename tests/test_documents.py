"""Links, settings, flags and the index of the documents."""

import dataclasses
import json
import re
import statistics
import tomllib
from pathlib import Path

import pytest

from transformer_jax.config import Config

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]
CURRENT = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]  # that one has old names
SECTIONS = {
    section.name: {field.name for field in dataclasses.fields(section.type)}
    for section in dataclasses.fields(Config)
    if dataclasses.is_dataclass(section.type)
}
PLACEHOLDERS = {("section", "field"), ("SECTION", "NAME"), ("a", "b")}
FILE_SUFFIXES = {"json", "npz", "py", "safetensors"}


def anchors(markdown: str) -> set[str]:
    """The anchors that both GitHub and mkdocs give to headings.

    Of "A & B" GitHub makes `a--b` and mkdocs `a-b`, so no link can lead there.
    """
    headings = re.findall(r"^#+ (.+)$", markdown, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain if not re.search("[- ]{2}", heading)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings(path):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if target.startswith(("http:", "https:")):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("path", CURRENT, ids=lambda path: path.name)
def test_settings_in_documents_exist(path):
    text = path.read_text()
    named = set(re.findall(r"--config\.(\w+)\.(\w+)", text)) - PLACEHOLDERS
    for section, field in re.findall(r"`(?:config\.)?(\w+)\.(\w+)[`=]", text):
        if section in SECTIONS and field not in FILE_SUFFIXES:
            named.add((section, field))
    assert {name for name in named if name[1] not in SECTIONS.get(name[0], ())} == set()


def test_the_index_and_the_site_list_every_document():
    names = {path.name for path in DOCS.glob("*.md")} - {"index.md"}
    assert set(re.findall(r"\]\((\w+\.md)", (DOCS / "index.md").read_text())) == names
    listed = set(re.findall(r"^ +- (\w+\.md)", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed - {"contributing.md", "changelog.md"} == names


def test_the_readme_fits_two_screens():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_quickstart_scores_have_the_same_range_everywhere():
    pattern = r"([\d.]+)% to\s([\d.]+)% of (?:the )?1,000 held-out numbers"
    results = (DOCS / "results.md").read_text()
    stated = {
        re.search(pattern, text).groups()
        for text in (
            (ROOT / "README.md").read_text(),
            (ROOT / "configs" / "quickstart.py").read_text(),
            results,
        )
    }
    section = results.partition("## Quickstart\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .* \| [\d, ]+ \| ([\d., ]+)% \|$", section, re.MULTILINE)
    scores = [score for row in rows for score in row.split(", ")]
    assert len(scores) >= 12
    assert stated == {(min(scores, key=float), max(scores, key=float))}


def test_submit_and_atranslate_work_as_the_document_says(translator, capsys, monkeypatch):
    text = (DOCS / "translate_text.md").read_text(encoding="utf-8")
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if ".submit(" in b)
    monkeypatch.setattr(type(translator), "load", lambda path: translator)
    exec(compile(block, "translate_text.md", "exec"), {})
    best = translator.translate("A dog runs.").text
    assert capsys.readouterr().out == f"{best}\n{best}\n"


def flags_of_commands() -> dict[str, set[str]]:
    """From the page of all flags, which another test compares with the commands themselves."""
    _, *parts = re.split(r"^## (.+)$", (DOCS / "commands.md").read_text(), flags=re.MULTILINE)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    rows = {name: set(re.findall(r"^\| `--(\w+)", s, re.M)) for name, s in sections.items()}
    common = {"config", "help", *rows.pop("Several processes")}
    for name in rows:
        rows[name] |= common
        if "Each setting of [`decode`]" in sections[name]:
            rows[name] |= SECTIONS["decode"]
    return rows


def test_flags_of_commands_in_documents_exist():
    known, wrong, count = flags_of_commands(), [], 0
    for path in CURRENT:
        text = re.sub(r'"[^"\n]*"', "", path.read_text().replace("\\\n", " "))
        commands = re.findall(r"(?:transformer-jax|python)\s+([\w-]+)(?:\.py)?\b([^\n`|]*)", text)
        for command, arguments in commands:
            if command in known:
                for prefix, flag in re.findall(r"(?<!\S)--(no)?([a-z]\w*)", arguments):
                    count += 1
                    if known[command].isdisjoint({flag, prefix + flag}):
                        wrong.append((path.name, command, flag))
    assert not wrong
    assert count > 300  # the pattern finds them


def benchmark(name: str) -> dict:
    return json.loads((DOCS / "benchmarks" / f"{name}.json").read_text())


def ratios(name: str) -> list[str]:
    """How many times as fast as CTranslate2 ours is, for each row of both."""
    rows = benchmark(name)["rows"]
    ours, theirs = (
        [row for row in rows if row["engine"] == engine] for engine in ("ours", "ctranslate2")
    )
    values = []
    for a, b in zip(ours, theirs, strict=True):
        assert (a["beam_size"], a.get("sentences")) == (b["beam_size"], b.get("sentences"))
        in_batches = "tokens_per_second" in a
        times = [row["tokens_per_second"] if in_batches else 1 / row["p50_ms"] for row in (a, b)]
        values.append(f"{times[0] / times[1]:.2f}")
    return values


def step_ratios() -> tuple[list[str], list[str], list[str], str]:
    """How many times as fast our training step is as torch's and as Flax's example.

    Each list has the ratios of `small` and `base`. For the third list, torch keeps freed memory.
    The last ratio is to Flax's example on a corpus.
    """
    runs = benchmark("train_step_cpu")["runs"]
    rates: dict[tuple[bool, str], dict[str, float]] = {}
    for run in runs[:4]:
        (table,) = run["tables"]
        rates[run["kept_memory"], table["size"]] = {
            one["engine"]: one["target_tokens_per_second"] for one in table["engines"]
        }
    torch, example, kept = (
        [f"{rates[kept, size]['ours'] / rates[kept, size][peer]:.2f}" for size in ("small", "base")]
        for peer, kept in (("torch", False), ("flax example", False), ("torch", True))
    )
    ours, *others = runs[4]["tables"][0]["engines"]
    name = "useful_target_tokens_per_second"
    best = max(one[name] for one in others)
    return torch, example, kept, f"{ours[name] / best:.2f}"


def test_figures_of_documents_are_those_of_the_files_that_they_name():
    """One source for each figure; `docs/results.md` and README repeat some."""
    seeds = benchmark("seeds_h200")
    scores = [row["test_bleu"] for row in seeds["rows"]]
    mean, deviation = f"{statistics.mean(scores):.2f}", f"{statistics.stdev(scores):.2f}"
    together = f"{seeds['ensemble_of_the_three']['test']['bleu']:.2f}"
    students = {(row["model"], row["beam_size"]): row for row in benchmark("students_cpu")["rows"]}
    student, greedy = (students["runs/student", size] for size in (5, 1))
    noise = next(row for row in benchmark("noise_h200")["rows"] if "noise" in row["variant"])
    recipe = next(row for row in benchmark("noise_h200")["rows"] if row["variant"] == "rotary")
    batch, beam, single, single_beam = ratios("decode_cpu")
    torch, example, kept, on_corpus = step_ratios()
    parity = [(row["identical"], row["total"]) for row in benchmark("parity_multi30k_cpu")["rows"]]
    assert set(parity) == {(200, 200)}
    figures = {
        "README.md": [
            f"**{mean}** ± {deviation} BLEU (tok:none), the three together {together}",
            f"{student['bleu']:.2f}, or {greedy['bleu']:.2f} at "
            f"{greedy['ratio_to_first_beam_size']:.1f} times their speed",
            f"test_2016_flickr **{noise['test_bleu']:.2f}** BLEU (13a, cased), "
            f"{noise['test_chrf']:.2f} chrF",
            f"all 200 sentences identical in each of {len(parity)} settings",
            f"as ours does | {', '.join(torch)}; {', '.join(kept)} |",
            f"`examples/wmt` | {', '.join(example)}; {on_corpus} on Multi30k's lengths |",
            f"greedy {batch}, beam 4 {beam}; one sentence at a time {single}, {single_beam}",
        ],
        "docs/results.md": [
            f"**{mean}**, {deviation} |",
            f"**{together}** |",
            f"`small` {torch[0]} times as fast, `base` {torch[1]} times",
            f"{' and '.join(example)} times as fast, {on_corpus} times on Multi30k's lengths",
            f"**{recipe['test_bleu']:.2f}**, {recipe['test_chrf']:.2f}",
            f"**{noise['test_bleu']:.2f}**, {noise['test_chrf']:.2f}",
        ],
        "docs/fast_decoding.md": [f" | {one} |" for one in ratios("decode_cpu_avx2")],
        "docs/synthetic_data.md": [f"**{student['bleu']:.2f}**", f"**{greedy['bleu']:.2f}**"],
        "docs/guide/8_translating.py": [f"`multi30k` has {recipe['test_bleu']:.2f}, cased"],
    }
    for name, wanted in figures.items():
        text = (ROOT / name).read_text()
        assert [one for one in wanted if one not in text] == [], name


def test_install_lists_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = re.findall(r"^\| (`.+?`) \|", (DOCS / "install.md").read_text(), re.MULTILINE)
    listed = {name for row in table for name in re.findall(r"`(\w+)`", row)}
    assert {*project["optional-dependencies"]} <= listed
