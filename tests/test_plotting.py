"""Pictures show the numbers they were given; the report is whole; attention is the model's."""

import base64
import functools
import html.parser
import json
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from etils import epath

from tests.conftest import tiny_config
from transformer_jax import plotting
from transformer_jax.errors import UserError
from transformer_jax.layers import MultiHeadAttention
from transformer_jax.model import Transformer
from transformer_jax.plotting import collect
from transformer_jax.plotting.report import write_report


def shown(axes):
    """Arrays of the images in a figure's axes."""
    return [np.asarray(image.get_array()) for image in axes.get_images()]


def labels(axis):
    return [tick.get_text() for tick in axis.get_ticklabels()]


# --- Figures -------------------------------------------------------------------------------------


def test_maps_have_a_panel_a_head_and_their_labels():
    weights = np.random.default_rng(0).dirichlet(np.ones(3), size=(5, 2))  # [H, T, S]
    figure = plotting.attention_maps(weights, ["▁ein", "s"], ["▁one", "▁big", "</s>"])
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == [f"head {h}" for h in range(5)]
    for number, (axes, head) in enumerate(zip(panels, weights, strict=True)):
        np.testing.assert_array_equal(shown(axes)[0], head)
        # The first of each row and the last of each column have labels.
        assert labels(axes.xaxis) == (["▁one", "▁big", "</s>"] if number >= 1 else [])
        assert labels(axes.yaxis) == (["▁ein", "s"] if number in (0, 4) else [])


def test_text_is_drawn_as_it_is():
    """Dollars make no formula, an underscore hides no entry."""
    figure = plotting.attention_maps(np.ones((1, 1, 2)), ["$$"], ["$x_$", "a$b"], ["$5 and $6"])
    svg = plotting.to_svg(figure)
    for text in ("$$", "$x_$", "a$b", "$5 and $6"):
        assert f">{text}</text>" in svg
    runs = {name: [{"step": 1, "train_loss": 1.0}] for name in ("_a", "b$1$")}
    svg = plotting.to_svg(plotting.learning_curves(runs))
    assert "_a, training" in svg
    assert "b$1$, training" in svg


def test_a_small_matrix_has_its_numbers_written_into_it():
    figure = plotting.heat_map(np.array([[0.5, -1.25]]), signed=True)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["0.50", "-1.25"]
    assert shown(axes)[0].tolist() == [[0.5, -1.25]]
    assert axes.get_images()[0].get_clim() == (-1.25, 1.25)


def test_maps_of_several_shapes_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        plotting.heat_maps({"a": np.ones((2, 2)), "b": np.ones((2, 3))})


def test_curves_show_each_runs_own_points():
    runs = {
        "a": [{"step": 10, "train_loss": 3.0}, {"step": 20, "train_loss": 2.0, "eval_loss": 1.5}],
        "b": [{"step": 5, "train_loss": 4.0}],
    }
    figure = plotting.learning_curves(runs)
    (axes,) = [axes for axes in figure.axes if axes.get_visible()]
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines == {
        "a, training, label smoothing included": [[10, 3], [20, 2]],
        "a, validation": [[20, 1.5]],
        "b, training, label smoothing included": [[5, 4]],
    }  # fmt: skip
    with pytest.raises(ValueError, match="metrics"):
        plotting.learning_curves({"c": [{"step": 1, "other": 2.0}]})


def test_an_alignment_has_a_line_for_each_weight_that_counts():
    weights = np.array([[0.9, 0.1, 0.0], [0.02, 0.0, 0.98]])
    (axes,) = plotting.alignment(weights, ["A", "B"], ["x", "y", "z"]).axes
    assert [text.get_text() for text in axes.texts] == ["x", "y", "z", "A", "B"]
    places = {text.get_text(): text.get_position()[0] for text in axes.texts}
    ends = {tuple(line.get_xdata()) for line in axes.lines}
    assert ends == {(places[s], places[t]) for s, t in ("xA", "yA", "zB")}


def test_schedules_and_lengths_show_what_they_are_given():
    (axes,) = plotting.schedules({"up": np.array([0.1, 0.2])}).axes
    assert axes.lines[0].get_xydata().tolist() == [[1, 0.1], [2, 0.2]]
    figure = plotting.length_statistics(np.array([3, 4]), np.array([5, 9]), {"a": 0.5, "b": 0.25})
    assert [bar.get_width() for bar in figure.axes[2].patches] == [50.0, 25.0]


def test_positions_show_the_table_and_its_products():
    table = np.random.default_rng(1).normal(size=(6, 4))
    figure = plotting.positions(table)
    np.testing.assert_array_equal(shown(figure.axes[0])[0], table)
    np.testing.assert_allclose(figure.axes[1].lines[0].get_ydata(), table @ table[3])


def test_the_same_figure_gives_the_same_file_whose_letters_are_text():
    one, other = (plotting.to_svg(plotting.heat_map(np.eye(2), ["größe", "b"])) for _ in range(2))
    assert one == other
    assert re.search(r"<text[^>]*>größe</text>", one)


# --- Attention -----------------------------------------------------------------------------------


def test_every_module_shows_what_its_heads_work_with(translator):
    """Against the module's own parameters, in float64: encoder, decoder and cross-attention."""
    model, params = translator.config.model, translator.params
    source, target = np.array([[5, 9, 4]]), np.array([[1, 7]])

    def run(module):
        return module.decode(module.encode(source), target)

    apply = functools.partial(Transformer(model).apply, method=run, mutable=["intermediates"])
    _, state = jax.jit(apply)({"params": params})
    parts = {"encoder_layers_0": ["self_attention"],
             "decoder_layers_0": ["self_attention", "cross_attention"]}  # fmt: skip
    for layer, names in parts.items():
        for name in names:
            (q,), (k,), (v,), (weights,) = (
                state["intermediates"][layer][name][x]
                for x in ("queries", "keys", "values", "weights")
            )
            q, k = (np.asarray(x[0], np.float64) for x in (q, k))
            scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(q.shape[-1])
            if layer.startswith("decoder") and name == "self_attention":
                scores = np.where(np.tril(np.ones(scores.shape[-2:])), scores, -np.inf)
            want = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
            np.testing.assert_allclose(weights[0], want, atol=1e-5)
            assert v[0].shape == k.shape


def test_nothing_is_shown_that_nobody_asks_for():
    from transformer_jax.config import ModelConfig

    module = MultiHeadAttention(ModelConfig(d_model=4, num_heads=2))
    x, ids = np.ones((1, 2, 4), np.float32), np.ones((1, 2), np.int32)

    def attend(module, x):
        parts = module.project_self(x, ids)
        return module.attend(*parts, query_segment_ids=ids, key_segment_ids=ids)

    assert set(module.init(jax.random.key(0), x, method=attend)) == {"params"}


def test_a_sentences_attention_is_that_of_the_translation(translator):
    """The padded, compiled look agrees with the search's own attention."""
    from transformer_jax.decoding.job import AttentionChoice

    text = "three four nine"
    choice = AttentionChoice(-1, None)
    (best,) = next(translator.translate_n_best([text], 1, attention=choice))
    seen = collect.sentence_attention(translator, text)
    assert seen.source == (*best.source_pieces, "</s>")
    assert seen.target == (*best.pieces, "</s>")
    assert seen.read == ("<s>", *best.pieces)
    np.testing.assert_allclose(seen.cross[-1].mean(axis=0)[:-1, :-1], best.attention, atol=1e-5)
    for weights in (seen.encoder, seen.decoder, seen.cross):
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
    assert (np.triu(seen.decoder[0, 0], k=1) == 0).all()
    assert seen.of("decoder")[1:] == (seen.target, seen.read)
    assert seen.of("cross")[1:] == (seen.target, seen.source)
    assert seen.of("encoder")[1:] == (seen.source, seen.source)


def test_a_given_target_is_looked_at_as_it_is(translator):
    seen = collect.sentence_attention(translator, "one", "zwei drei")
    pieces = translator.tokenizers.target
    assert list(seen.target[:-1]) == pieces.pieces(pieces.encode("zwei drei"))


@pytest.mark.parametrize(("source", "message"), [("", "no text"), ("one " * 60, "shorter")])
def test_sentences_that_cannot_be_shown_are_refused(translator, source, message):
    with pytest.raises(UserError, match=message):
        collect.sentence_attention(translator, source)


def test_padding_of_a_corpus_by_hand(tiny_run, translator):
    """One shape for all: n · (longest source + longest target) positions."""
    source, target, padding = collect.corpus_lengths(translator.config, tiny_run[1])
    whole = len(source) * (int(source.max()) + int(target.max()))
    assert padding["all as the longest"] == pytest.approx(1 - (source.sum() + target.sum()) / whole)
    assert 0 <= padding["in buckets"] < padding["all as the longest"]
    assert padding["this run"] == padding["packed"]


# --- The command and the report ------------------------------------------------------------------


@pytest.fixture(scope="module")
def workdir(tiny_run, tmp_path_factory):
    """A copy of the run, for the report to be written into."""
    copy = tmp_path_factory.mktemp("report") / "run"
    shutil.copytree(tiny_run[1], copy)
    return copy


class Page(html.parser.HTMLParser):
    """What a page says and asks for."""

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


def test_the_report_is_one_file_with_everything_in_it(workdir, tmp_path):
    lines = collect.read_metrics(workdir)
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
    # Of validation, and of the file.
    assert page.text.count(evaluated[-1]["eval_bleu_signature"]) == 2
    assert "flickr.json: 8 sentences" in page.text
    assert '"label_smoothing": 0.1' in page.text


def test_text_in_a_report_is_text(workdir):
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
def test_a_run_that_was_never_evaluated_has_a_report(tiny_run, tmp_path):
    from transformer_jax.training.loop import train

    train(tiny_config(tiny_run[0], num_steps=10, eval_every_steps=0), tmp_path / "run")
    text = Page(write_report(tmp_path / "run").read_text()).text
    assert "never evaluated" in text
    assert "no sample that is short enough" in text


def test_lines_end_where_json_does(tmp_path):
    path = epath.Path(tmp_path / "lines.jsonl")
    path.write_text('{"a": "x\u2028y"}\n{"a": 2}\n{"a"')
    assert collect.read_lines(path) == [{"a": "x\u2028y"}, {"a": 2}]
    path.write_text('{"a"\n{"a": 2}\n')
    with pytest.raises(UserError, match="line 1 is damaged"):
        collect.read_lines(path)


def test_a_large_model_has_its_last_layers_drawn():
    from transformer_jax.plotting import report

    weights = np.ones((5, 16, 2, 2)) / 2
    text = "".join(report._maps(weights, ["a", "b"], ["c", "d"]))
    assert [f"layer {n}, each head" in text for n in range(5)] == [False, False, False, True, True]
    assert all(f'alt="decoder layer {n}"' in text for n in range(5))


def test_a_report_of_no_run_and_of_no_scores_is_refused(tmp_path, workdir):
    with pytest.raises(UserError, match=r"no config\.json"):
        write_report(tmp_path)
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(UserError, match=r"bad\.json is no file of eval"):
        write_report(workdir, [tmp_path / "bad.json"])


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium here")
def test_a_browser_opens_the_report_without_complaint(workdir, tmp_path):
    path = write_report(workdir)
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--enable-logging=stderr", "--log-level=0", f"--user-data-dir={tmp_path}", "--dump-dom",
         path.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "Attention to the source" in done.stdout
    assert "CONSOLE" not in done.stderr


def run_plot(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "transformer_jax.plotting", *arguments],
        capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["attention", "--source=one two"], ["attention", "--source=one", "--part=encoder", "--mean"],
     ["alignment", "--source=one two", "--nowords", "--layer=-1"], ["curves"],
     ["curves", "--metrics=grad_norm"], ["schedule"], ["positions"], ["lengths"]],
    ids=" ".join,
)  # fmt: skip
def test_the_command_draws(workdir, tmp_path, arguments):
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
def test_what_cannot_be_drawn_is_one_sentence(arguments, words):
    done = run_plot(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert all(word in done.stderr for word in words), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("picture", ["curves", "report"])
def test_without_matplotlib_it_says_what_to_install(workdir, picture):
    code = (
        "import runpy, sys; sys.modules['matplotlib'] = None; "
        f"sys.argv = ['plot', {picture!r}, {f'--workdir={workdir}'!r}]; "
        "runpy.run_module('transformer_jax.plotting', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert ".[plot]" in done.stderr


@pytest.mark.slow
def test_training_ends_with_a_report(tiny_run, tmp_path):
    """Of a run that is at its end; not where it is not asked for."""
    _, finished = tiny_run
    shutil.copytree(finished, tmp_path / "run")
    config = json.loads((finished / "config.json").read_text())
    command = [sys.executable, "train.py", "--config=tiny", f"--workdir={tmp_path / 'run'}",
               "--config.parallel.data=1", "--config.data.source=files",
               *(f"--config.data.{name}={config['data'][name]}" for name in
                 ("vocab_size", "train", "validation", "test", "cache_dir"))]  # fmt: skip
    done = subprocess.run([*command, "--noreport"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run" / "report.html").exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"wrote {tmp_path / 'run' / 'report.html'}" in done.stdout
    assert (tmp_path / "run" / "report.html").exists()
