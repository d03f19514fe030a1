"""The report is complete and safe to open; `plot` draws or says why it cannot."""

import base64
import html.parser
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from etils import epath

from tests.conftest import tiny_config
from transformer_jax import plotting
from transformer_jax.errors import UserError
from transformer_jax.plotting.report import write_report
from transformer_jax.runs import history


@pytest.fixture(scope="module")
def workdir(tiny_run, tmp_path_factory):
    """A copy of the run, for the report to be written into."""
    copy = tmp_path_factory.mktemp("report") / "run"
    shutil.copytree(tiny_run[1], copy)
    return copy


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
    scores = {k.removeprefix("eval_"): v for k, v in evaluated[-1].items()}
    (tmp_path / "flickr.json").write_text(json.dumps(scores))
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
    assert "flickr.json: 8 sentences" in page.text
    assert '"label_smoothing": 0.1' in page.text


def test_report_escapes_text(workdir):
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


def test_report_of_a_large_model_draws_its_last_layers():
    from transformer_jax.plotting import report

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


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium here")
def test_report_opens_in_a_browser_without_errors(workdir, tmp_path):
    path = write_report(workdir)
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--enable-logging=stderr",
            "--log-level=0",
            f"--user-data-dir={tmp_path}",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Attention to the source" in done.stdout
    assert "CONSOLE" not in done.stderr


def run_plot(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "transformer_jax.plotting", *arguments],
        capture_output=True,
        text=True,
    )


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
    done = run_plot(*arguments, f"--workdir={workdir}", f"--output={output}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"wrote {output}\n"
    assert "<svg" in output.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["what to draw", "attention", "report"]),
        (["attention", "--workdir=x"], ["--source"]),
        (["curves", "--workdir=nowhere"], ["nowhere", "metrics.jsonl"]),
        (["attention", "--workdir=a,b", "--source=x"], ["one --workdir"]),
        (["curves", "--workdir=x", "--output=x.gif"], ["x.gif", ".svg"]),
        (["curves", "--workdir=x", "--source=a"], ["--source", "not for curves"]),
        (["curves", "--workdir=x", "--output=no/such/a.svg"], ["no folder no/such"]),
        (["attention", "--workdir=x", "--source=a", "--part=encoder", "--target=b"], ["--target"]),
        (["lengths", "--workdir=nowhere"], ["nowhere", "config.json"]),
    ],
)
def test_plot_answers_mistakes_with_one_sentence(arguments, words):
    done = run_plot(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert all(word in done.stderr for word in words), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("picture", ["curves", "report"])
def test_plot_without_matplotlib_names_the_package(workdir, picture):
    code = (
        "import sys; sys.modules['matplotlib'] = None; "
        "from transformer_jax.commands.main import run; "
        f"run('plot', ['plot', {picture!r}, {f'--workdir={workdir}'!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert ".[plot]" in done.stderr


@pytest.mark.slow
def test_train_ends_with_a_report(tiny_run, tmp_path):
    """Also where the run has ended already, but not with --noreport."""
    _, finished = tiny_run
    shutil.copytree(finished, tmp_path / "run")
    config = json.loads((finished / "config.json").read_text())
    command = [
        sys.executable,
        "train.py",
        "--config=tiny",
        f"--workdir={tmp_path / 'run'}",
        "--config.parallel.data=1",
        "--config.data.source=files",
        *(
            f"--config.data.{name}={config['data'][name]}"
            for name in ("vocab_size", "train", "validation", "test", "cache_dir")
        ),
    ]
    done = subprocess.run([*command, "--noreport"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run" / "report.html").exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"wrote {tmp_path / 'run' / 'report.html'}" in done.stdout
    assert (tmp_path / "run" / "report.html").exists()
