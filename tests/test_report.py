"""The report is complete and safe to open; `plot` draws or says why it cannot."""

import base64
import datetime
import html
import html.parser
import itertools
import json
import os
import re
import shutil
import subprocess

import jax
import numpy as np
import pytest
from etils import epath

from tests.conftest import copy_run, tiny_config, transformer_jax
from tests.test_runs import entry
from transformer_jax.commands import report_file
from transformer_jax.config import Config, DataConfig
from transformer_jax.errors import UserError
from transformer_jax.extras import plotting
from transformer_jax.extras.plotting import report, report_headline, report_page, style
from transformer_jax.extras.plotting.report import write_report
from transformer_jax.workdir import folder as workdir_lib
from transformer_jax.workdir import history, scores, summary


@pytest.fixture(scope="module")
def workdir(tiny_run, tmp_path_factory):
    """A copy of the run, for the report to be written into."""
    return copy_run(tiny_run[1], tmp_path_factory.mktemp("report") / "run")


@pytest.fixture
def quick(monkeypatch):
    """Reports without attention maps, whose drawing takes seconds."""
    monkeypatch.setattr(report, "_attention", lambda *_: [])


class Page(html.parser.HTMLParser):
    """The text of a page, its tags and the addresses it loads."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.sources, self.text, self.open = [], [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [v for k, v in attrs if k in ("src", "href")]
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_report_is_one_file_with_everything_in_it(workdir, tmp_path):
    lines = history.read_metrics(workdir)
    evaluated = [line for line in lines if "eval_loss" in line]
    given = {k.removeprefix("eval_"): v for k, v in evaluated[-1].items()}
    (tmp_path / "flickr.json").write_text(json.dumps(given))
    text = write_report(workdir, [tmp_path / "flickr.json"]).read_text()
    page = Page(text)
    assert not page.open
    assert "script" not in page.tags
    assert all(source.startswith("data:") for source in page.sources)
    assert not re.search(r"url\(|@import", text)
    pictures = [base64.b64decode(s.partition(",")[2]) for s in page.sources if "svg" in s]
    sentences, layers = 3, 1
    assert len(pictures) == len(plotting.PANELS) + sentences * 2 * layers
    assert all(b"<svg" in picture for picture in pictures)
    samples = [json.loads(line) for line in (workdir / "samples.jsonl").read_text().splitlines()]
    for sample in samples:
        assert sample["source"] in page.text
        assert sample["reference"] in page.text
        assert sample["hypothesis"] in page.text
    for line in evaluated:
        assert f"{line['eval_chrf']:.2f}" in page.text
    # Of the validation set and of the file.
    assert page.text.count(evaluated[-1]["eval_bleu_signature"]) == 2
    assert "flickr.json8 sentences" in page.text.replace("\n", "")
    assert '"label_smoothing": 0.1' in page.text


def test_report_escapes_text(workdir, quick):
    """A sentence that looks like a tag."""
    path = workdir / "samples.jsonl"
    before = path.read_text()
    sample = {"step": 60, "source": "<script>one", "reference": "a & b", "hypothesis": "<b>"}
    try:
        path.write_text(json.dumps(sample) + "\n")
        page = Page(write_report(workdir).read_text())
    finally:
        path.write_text(before)
    assert "script" not in page.tags
    assert "<script>one" in page.text
    assert "a & b" in page.text


@pytest.mark.slow
def test_report_of_a_run_without_evaluation(tiny_run, tmp_path):
    from transformer_jax.training.loop import train

    train(tiny_config(tiny_run[0], num_steps=10, eval_every_steps=0), tmp_path / "run")
    text = Page(write_report(tmp_path / "run").read_text()).text
    assert "never evaluated" in text
    assert "no sample that is short enough" in text


def test_read_lines_splits_at_line_feeds_only(tmp_path):
    path = epath.Path(tmp_path / "lines.jsonl")
    path.write_text('{"a": "x\u2028y"}\n{"a": 2}\n{"a"')
    assert history.read_lines(path) == [{"a": "x\u2028y"}, {"a": 2}]
    path.write_text('{"a"\n{"a": 2}\n')
    with pytest.raises(UserError, match="line 1 is damaged"):
        history.read_lines(path)


def test_report_marks_the_language_and_direction_of_samples():
    sample = {"step": 2, "source": "one", "reference": "واحد", "hypothesis": "اثنان"}
    samples = [{**sample, "step": 1, "hypothesis": "ثلاثة"}, sample]
    data = DataConfig(source_lang="en", target_lang="ar")
    text = "".join(report._samples(samples, Config(data=data)))
    assert '<dd lang="en" dir="auto">one</dd>' in text
    for words in ("واحد", "اثنان", "ثلاثة"):
        assert f'<dd lang="ar" dir="auto">{words}</dd>' in text


def test_report_of_a_large_model_draws_its_last_layers():
    weights = np.ones((5, 16, 2, 2)) / 2
    text = "".join(report._maps(weights, ["a", "b"], ["c", "d"]))
    assert [f"layer {n}, each head" in text for n in range(5)] == [False, False, False, True, True]
    assert all(f'alt="decoder layer {n}"' in text for n in range(5))


def test_report_refuses_a_missing_run_and_wrong_scores(tmp_path, workdir):
    with pytest.raises(UserError, match=r"no config\.json"):
        write_report(tmp_path)
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(UserError, match=r"bad\.json is not a file of eval"):
        write_report(workdir, [tmp_path / "bad.json"])


# --- The head of the page ------------------------------------------------------------------------


def head_of(text):
    """The text before the curves."""
    return Page(text.partition("<section")[0] + "</main></body></html>").text


def test_report_opens_with_score_date_duration_machine_and_commands(workdir, tmp_path, quick):
    run = tmp_path / "run"
    shutil.copytree(workdir, run)
    (path,) = (run / "history").iterdir()
    record = json.loads(path.read_text())
    record |= {
        "command_line": "python train.py --config=tiny '--workdir=my runs/tiny'",
        "started": "2026-05-04T10:00:00+00:00",
        "ended": "2026-05-04T12:11:40+00:00",
    }
    record["machine"] |= {"cpu": "EPYC 7", "cores": 2, "platform": "cpu", "jax": "0.10.2"}
    path.write_text(json.dumps(record))
    text = write_report(run).read_text()
    best = max(
        (line for line in history.read_metrics(run) if "eval_bleu" in line),
        key=lambda line: (line["eval_token_accuracy"], -line["eval_loss"]),
    )
    head = head_of(text)
    assert f"{best['eval_chrf']:.1f}" in head
    assert f"validation set, best evaluation: {best['eval_num_sentences']} sentences" in head
    for words in ("2026-05-04 10:00 UTC", "2 h 11 min", "EPYC 7, 2 cores", "jax 0.10.2"):
        assert words in head
    assert "older version" not in head
    assert "python train.py --config=tiny '--workdir=my runs/tiny'" in head
    assert text.index("<img") < text.index("<h2>Scores")


SCORES = {
    "loss": 1.5,
    "perplexity": 4.5,
    "token_accuracy": 70.0,
    "exact_match": 8.0,
    "bleu": 38.94,
    "bleu_signature": "b",
    "chrf": 61.0,
    "chrf_signature": "c",
    "num_sentences": 1000,
    "checkpoint_step": 60,
    "split": "test",
}


def test_report_opens_with_the_score_of_the_test_set(workdir, tmp_path, quick):
    run = tmp_path / "run"
    shutil.copytree(workdir, run)
    config = workdir_lib.read_config(run)

    def evaluate(data, checkpoint="best", **changes):
        history.add_evaluation(
            run, SCORES | changes, data, config, jax.devices(), checkpoint=checkpoint
        )

    evaluate(config.data.test, bleu=11.1)
    evaluate(config.data.test)
    evaluate("news", bleu=60.0)
    evaluate("multi30k/train", split="train", bleu=50.0)
    evaluate("news", "average:5", bleu=39.5)
    text = write_report(run).read_text()
    assert "<strong>38.9</strong> <span>BLEU</span>" in text
    assert "test set: 1,000 sentences, step 60" in head_of(text)
    assert f"test {config.data.test}, step 60" in text
    assert "11.1" not in Page(text).text  # of equal evaluations the newest
    # What a file gives is not repeated.
    (tmp_path / "flickr.json").write_text(json.dumps(SCORES))
    given = {"flickr.json": report._read_scores(epath.Path(tmp_path / "flickr.json"))}
    assert list(report._distinct(given, summary.summarize(run).evals)) == [
        "flickr.json",
        "test news, step 60",
        "train multi30k/train, step 60",
        "test news, average:5 of step 60",
    ]


def test_report_opens_with_the_scores_of_an_average_where_there_are_no_others():
    test = SCORES | {"checkpoint": "average:5"}
    head = Page("".join(report_headline.headline(entry(test=test), {}))).text
    assert "test set: 1,000 sentences, average:5 of step 60" in head
    given = {"a.json": SCORES | {"split": "train", "bleu": 1.0}, "b.json": SCORES | {"bleu": 2.0}}
    head = Page("".join(report_headline.headline(entry(), given))).text
    assert head.startswith("2.0 BLEU")


def test_report_of_too_short_sentences_opens_with_exact_match():
    """Their BLEU is 0."""
    best = {"bleu": 0.0, "exact_match": 99.5, "chrf": 99.0, "loss": 0.1, "perplexity": 1.1}
    run = entry(evaluations=[best | {"step": 3}])
    head = Page("".join(report_headline.headline(run, {}))).text
    assert head.startswith("99.5% exact match")
    assert "BLEU" not in head
    bad = entry(evaluations=[best | {"step": 3, "exact_match": 0.0}])
    assert "0.0 BLEU" in Page("".join(report_headline.headline(bad, {}))).text


def test_report_folds_many_commands_away():
    records = [{"command": "train", "command_line": f"train {n}"} for n in range(5)]
    shown, folded = "".join(report_headline.commands(records)).split("<details>")
    find = r"<span>train</span> <span>(\d)</span>"
    assert re.findall(find, shown) == ["0", "1", "4"]
    assert re.findall(find, folded) == list("01234")
    assert "<details>" not in "".join(report_headline.commands(records[:3]))


def test_report_of_a_run_without_history_says_when_it_was_written(workdir, tmp_path, quick):
    run = tmp_path / "run"
    shutil.copytree(workdir, run)
    shutil.rmtree(run / "history")
    written = datetime.datetime(2025, 1, 2, 3, 4, tzinfo=datetime.UTC).timestamp()
    os.utime(run / "metrics.jsonl", (written, written))
    text = write_report(run).read_text()
    assert "last written2025-01-02 03:04 UTC" in head_of(text)
    assert "An older version trained this run" in text
    assert 'class="commands"' not in text


def test_report_folds_many_evaluations_away():
    assert report.spread([1, 2, 3], 3) == [1, 2, 3]
    assert report.spread(list(range(1, 101)), 4) == [25, 50, 75, 100]
    assert report.spread(list(range(1, 8)), 3)[-1] == 7
    run = entry(
        evaluations=[
            {"step": n, **dict.fromkeys(scores.LABELS, 100.0 - abs(n - 34))} for n in range(1, 101)
        ]
    )
    text = "".join(report._evaluations(Config(), run))
    shown, folded = text.split("<details>")
    assert shown.count("<tr") - 1 == report.MAX_ROWS + 1  # and the best
    assert '<tr class="best"><th scope="row">34<' in shown
    assert folded.count("<tr") - 1 == 100


def test_report_has_a_column_for_the_metric_of_the_best_checkpoint():
    common = dict.fromkeys(scores.LABELS, 50.0)
    evaluations = [{"step": 1, **common}, {"step": 2, **common, "ter": 40.5}]
    evaluations.append({"step": 3, **common, "ter": 60.0})
    run = entry(evaluations=evaluations, best_metric="ter")
    text = "".join(report._evaluations(Config(), run))
    assert re.findall(r'<th scope="col">([^<]*)<', text) == ["step", *scores.LABELS.values(), "TER"]
    last = re.findall(r"<td>([^<]*)</td></tr>", text)
    assert last == ["–", "40.50", "60.00"]
    assert '<tr class="best"><th scope="row">2<' in text
    one = {"split": "test", "num_sentences": 3, **common, "chrf++": 1.0, "chrf++_signature": "s"}
    text = "".join(report._evals({"a": one}))
    assert "<td>1.00</td></tr>" in text
    assert '<p class="signature">chrF++: s</p>' in text
    # A run that was resumed with a metric which no evaluation has yet.
    resumed = entry(evaluations=evaluations[:1], best_metric="comet")
    assert "The marked row is the best by eval_loss." in "".join(
        report._evaluations(Config(), resumed)
    )


# --- Readable by everybody -----------------------------------------------------------------------


def channels(colour):
    """Of "#rrggbb", 0 to 1."""
    return np.array([int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)])


def contrast(one, other):
    """The contrast ratio of WCAG 2 of two colours, each three channels."""

    def luminance(c):
        linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def filtered(colour):
    """A colour under `invert(1) hue-rotate(180deg)`, by the matrix of the standard."""
    by_luma = np.array([0.213, 0.715, 0.072])
    return np.clip(2 * by_luma @ (1 - colour) - (1 - colour), 0, 1)


def palettes():
    """The colours of the style sheet by name, light and dark."""
    light, _, dark = report_page._STYLE.partition("prefers-color-scheme: dark")
    find = r"--(\w+): (#[0-9a-f]{6})"
    return [dict(re.findall(find, half)) for half in (light, dark)]


def test_contrast_follows_the_standard():
    assert contrast(channels("#000000"), channels("#ffffff")) == pytest.approx(21)
    assert contrast(channels("#777777"), channels("#ffffff")) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_report_text_has_contrast(mode):
    colours = {name: channels(value) for name, value in palettes()[mode].items()}
    for text in ("ink", "muted", "accent"):
        for background in ("page", "card", "best"):
            assert contrast(colours[text], colours[background]) >= 4.5, (text, background)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_report_figures_have_contrast(mode):
    """Lines at least 3, text at least 4.5, also where the dark mode filters them."""
    change = filtered if mode else lambda colour: colour
    page = channels(palettes()[mode]["page"])
    for line in style.LINES:
        assert contrast(change(channels(line)), page) >= 3.0, line
    assert contrast(change(channels(style.INK)), page) >= 4.5
    assert not mode or "--figure: invert(1) hue-rotate(180deg)" in report_page._DARK


def test_report_is_accessible(workdir):
    page = workdir / "report.html"
    text = page.read_text() if page.exists() else write_report(workdir).read_text()
    assert '<html lang="en">' in text
    assert text.count("<h1>") == 1
    alts = re.findall(r'<img alt="([^"]+)"', text)
    assert len(alts) == text.count("<img")
    assert alts[0].startswith("loss over steps: training")
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    for region in re.findall(r'<div class="scroll"[^>]*>', text):
        assert re.search(r'tabindex="0" role="group" aria-label="[^"]+"', region)


# --- In a browser --------------------------------------------------------------------------------

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
# A page that shows the report in a frame of some size, and writes down what it measures there.
FRAME = """<iframe src="report.html" style="width:{width}px;height:800px;border:0"></iframe>
<pre></pre>
<script>
onload = () => {{
  const frame = document.querySelector("iframe"), page = frame.contentDocument
  const all = query => [...page.querySelectorAll(query)]
  document.querySelector("pre").textContent = JSON.stringify({{
    scrolls: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    regions: all(".scroll").map(region => region.scrollWidth - region.clientWidth),
    maps: all(".maps .scroll").map(region => region.scrollWidth - region.clientWidth),
    curves: all(".curves img").map(image => image.getBoundingClientRect().bottom),
    images: all("img").map(image => image.naturalWidth),
    background: getComputedStyle(page.body).backgroundColor,
    headings: all("h2").map(heading => heading.textContent),
  }})
}}
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium here")
@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_report_in_a_browser(workdir, tmp_path, width, mode):
    """Only tables and maps scroll sideways, curves are seen at once, and nothing fails."""
    shutil.copy(write_report(workdir), tmp_path)
    (tmp_path / "frame.html").write_text(FRAME.format(width=width))
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--allow-file-access-from-files",
            "--enable-logging=stderr",
            "--log-level=0",
            f"--blink-settings=preferredColorScheme={1 if mode == 'light' else 0}",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            (tmp_path / "frame.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr
    seen = json.loads(html.unescape(re.search(r"<pre>(.+?)</pre>", done.stdout)[1]))
    assert "Attention to the source" in seen["headings"]
    assert all(seen["images"])
    assert seen["scrolls"] == 0
    if width == 400:
        assert max(seen["regions"]) > 0  # a table or a map is wider than the page
    else:
        assert max(seen["maps"]) == 0
        assert all(bottom <= 800 for bottom in seen["curves"][:3])
    palette = palettes()[mode == "dark"]
    background = tuple(int(255 * c + 0.5) for c in channels(palette["page"]))
    assert seen["background"] == f"rgb{background}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["attention", "--source=one two"],
        ["attention", "--source=one", "--part=encoder", "--mean"],
        ["alignment", "--source=one two", "--nowords", "--layer=-1"],
        ["curves"],
        ["curves", "--metrics=grad_norm"],
        ["schedule"],
        ["positions"],
        ["lengths"],
    ],
    ids=" ".join,
)
def test_plot_draws_each_picture(workdir, tmp_path, arguments):
    output = tmp_path / "picture.svg"
    done = transformer_jax("plot", *arguments, f"--workdir={workdir}", f"--output={output}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"wrote {output}\n"
    assert "<svg" in output.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["attention", "--workdir=x"], ["--source"]),
        (["curves", "--workdir=nowhere"], ["nowhere", "there is no such folder"]),
        (["attention", "--workdir=a,b", "--source=x"], ["one --workdir"]),
        (["curves", "--workdir=x", "--output=x.gif"], ["x.gif", ".svg"]),
        (["curves", "--workdir=x", "--source=a"], ["--source", "not for curves"]),
        (["curves", "--workdir=x", "--output=no/such/a.svg"], ["no folder no/such"]),
        (["attention", "--workdir=x", "--source=a", "--part=encoder", "--target=b"], ["--target"]),
        (["lengths", "--workdir=nowhere"], ["nowhere", "no work directory"]),
    ],
)
def test_plot_answers_mistakes_with_one_sentence(arguments, words):
    done = transformer_jax("plot", *arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert all(word in done.stderr for word in words), done.stderr


def test_plot_without_a_picture_lists_them():
    done = transformer_jax("plot")
    assert done.returncode == 2
    assert "Name the picture" in done.stderr
    assert "attention" in done.stderr
    assert "report" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("picture", ["curves", "report"])
def test_plot_without_matplotlib_names_the_package(workdir, picture):
    done = transformer_jax("plot", picture, f"--workdir={workdir}", without=["matplotlib"])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install matplotlib" in done.stderr


def test_report_that_cannot_be_written_is_said(monkeypatch, capsys):
    """The command that wanted it has done its work."""

    def fail(workdir):
        raise MemoryError(f"no memory for {workdir}")

    monkeypatch.setattr(report, "write_report", fail)
    report_file.write("runs/mine")
    said = capsys.readouterr()
    assert said.out == ""
    assert "MemoryError: no memory for runs/mine" in said.err
    assert "transformer-jax plot report --workdir=runs/mine tries again" in said.err


@pytest.mark.slow
def test_train_ends_with_a_report(tiny_run, tmp_path):
    """Also where the run has ended already, but not with --noreport."""
    _, finished = tiny_run
    shutil.copytree(finished, tmp_path / "run")
    config = json.loads((finished / "config.json").read_text())
    command = [
        "train",
        "--config=tiny",
        f"--workdir={tmp_path / 'run'}",
        "--config.parallel.data=1",
        "--config.data.source=files",
        *(
            f"--config.data.{name}={config['data'][name]}"
            for name in ("vocab_size", "train", "validation", "test", "cache_dir")
        ),
    ]
    done = transformer_jax(*command, "--noreport")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run" / "report.html").exists()
    done = transformer_jax(*command)
    assert done.returncode == 0, done.stderr
    assert f"wrote {tmp_path / 'run' / 'report.html'}" in done.stdout
    assert (tmp_path / "run" / "report.html").exists()
