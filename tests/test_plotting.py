"""Pictures show the numbers they get, and attention is the model's."""

import functools
import json
import re

import jax
import numpy as np
import pytest
from absl import flags

from transformer_jax import Translator
from transformer_jax.commands import command_help, plot
from transformer_jax.data.tokenizer_pair import LanguageTags, TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.extras import plotting
from transformer_jax.extras.plotting import collect
from transformer_jax.model.layers import SelfAttention
from transformer_jax.model.transformer import Transformer
from transformer_jax.translator.alignment import block_diagonal


def shown(axes):
    """Arrays of the images in a figure's axes."""
    return [np.asarray(image.get_array()) for image in axes.get_images()]


def labels(axis):
    return [tick.get_text() for tick in axis.get_ticklabels()]


def entries(legend):
    """Lines and labels of a legend."""
    labels = [text.get_text() for text in legend.get_texts()]
    return list(zip(legend.legend_handles, labels, strict=True))


# --- Figures -------------------------------------------------------------------------------------


def test_attention_maps_have_a_panel_for_each_head_and_labels():
    weights = np.random.default_rng(0).dirichlet(np.ones(3), size=(5, 2))  # [H, T, S]
    figure = plotting.attention_maps(weights, ["▁ein", "s"], ["▁one", "▁big", "</s>"])
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == [f"head {h}" for h in range(5)]
    for number, (axes, head) in enumerate(zip(panels, weights, strict=True)):
        np.testing.assert_array_equal(shown(axes)[0], head)
        # The first of each row and the last of each column have labels.
        assert labels(axes.xaxis) == (["▁one", "▁big", "</s>"] if number >= 1 else [])
        assert labels(axes.yaxis) == (["▁ein", "s"] if number in (0, 4) else [])


def test_labels_are_drawn_unchanged():
    """Dollars make no formula, an underscore hides no entry."""
    figure = plotting.attention_maps(np.ones((1, 1, 2)), ["$$"], ["$x_$", "a$b"], ["$5 and $6"])
    svg = plotting.to_svg(figure)
    for text in ("$$", "$x_$", "a$b", "$5 and $6"):
        assert f">{text}</text>" in svg
    runs = {name: [{"step": 1, "train_loss": 1.0}] for name in ("_a", "b$1$")}
    svg = plotting.to_svg(plotting.learning_curves(runs))
    assert "_a</text>" in svg
    assert ">b$1$</text>" in svg


def test_heat_map_writes_numbers_into_a_small_matrix():
    figure = plotting.heat_map(np.array([[0.5, -1.25]]), signed=True)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["0.50", "-1.25"]
    assert shown(axes)[0].tolist() == [[0.5, -1.25]]
    assert axes.get_images()[0].get_clim() == (-1.25, 1.25)


def test_heat_maps_refuse_several_shapes():
    with pytest.raises(ValueError, match="one shape"):
        plotting.heat_maps({"a": np.ones((2, 2)), "b": np.ones((2, 3))})


def test_learning_curves_show_the_points_of_each_run():
    runs = {
        "a": [{"step": 10, "train_loss": 3.0}, {"step": 20, "train_loss": 2.0, "eval_loss": 1.5}],
        "b": [{"step": 5, "train_loss": 4.0}],
    }
    figure = plotting.learning_curves(runs)
    (axes,) = [axes for axes in figure.axes if axes.get_visible()]
    drawn = {
        (line.get_color(), line.get_linestyle()): line.get_xydata().tolist() for line in axes.lines
    }
    colour_of = {label: line.get_color() for line, label in entries(figure.legends[0])}
    dashes_of = {label: line.get_linestyle() for line, label in entries(axes.get_legend())}
    training, validation = "training, as minimized", "validation"
    assert drawn == {
        (colour_of["a"], dashes_of[training]): [[10, 3], [20, 2]],
        (colour_of["a"], dashes_of[validation]): [[20, 1.5]],
        (colour_of["b"], dashes_of[training]): [[5, 4]],
    }
    with pytest.raises(ValueError, match="metrics"):
        plotting.learning_curves({"c": [{"step": 1, "other": 2.0}]})


def test_learning_curves_of_one_run_have_a_colour_for_each_metric():
    lines = [{"step": n, "eval_bleu": n, "eval_chrf": 2 * n, "eval_exact_match": n} for n in (1, 2)]
    figure = plotting.learning_curves({"only": lines})
    assert not figure.legends
    scores, exact = (axes for axes in figure.axes if axes.get_visible())
    drawn = {line.get_color(): line.get_ydata().tolist() for line in scores.lines}
    assert {label: drawn[line.get_color()] for line, label in entries(scores.get_legend())} == {
        "BLEU": [1, 2],
        "chrF": [2, 4],
    }
    # Exact match has axes of its own.
    assert exact.get_title("left") == "exact match (%)"
    assert [line.get_ydata().tolist() for line in exact.lines] == [[1, 2]]


RUN_LINES = [
    {"step": n, **{name: n for names in plotting.PANELS.values() for name in names}}
    for n in (1, 2, 30_000)
]


@pytest.mark.parametrize(
    ("count", "name", "panels"),
    [
        (1, "a", 7),
        (2, "a", 1),
        (3, "x" * 300, 3),
        (5, "multi30k_en_de_dropout_0.3_seed_{}", 1),
        (12, "multi30k_en_de_dropout_0.3_seed_{}", 7),
    ],
)
def test_legends_cover_nothing(count, name, panels):
    """Neither data nor titles nor each other, and all of them is inside the figure."""
    names = [f"{number} {name.format(number)}" for number in range(count)]
    chosen = dict(list(plotting.PANELS.items())[:panels])
    check_legends(plotting.learning_curves(dict.fromkeys(names, RUN_LINES), chosen), count > 1)


@pytest.mark.parametrize("count", [8, 9, 30])
def test_learning_curves_of_each_run_have_a_colour(count):
    runs = {f"run {number}": RUN_LINES for number in range(count)}
    figure = plotting.learning_curves(runs, {"loss": {"train_loss": ""}})
    colour_of = {label: line.get_color() for line, label in entries(figure.legends[0])}
    assert colour_of.keys() == runs.keys()
    assert len(set(colour_of.values())) == count
    assert [line.get_color() for line in figure.axes[0].lines] == list(colour_of.values())


@pytest.mark.parametrize("count", [1, 8])
def test_legends_of_other_curves_cover_nothing(count):
    values = {f"{number} {'long name ' * 9}": np.arange(9.0) for number in range(count)}
    check_legends(plotting.schedules(values), True)
    check_legends(plotting.curves(np.arange(9), values, "x", "a title"), count > 1)
    lengths = np.array([3, 4, 900])
    check_legends(plotting.length_statistics(lengths, lengths, {"a": 0.5}), True)


def check_legends(figure, has_legend):
    figure.draw_without_rendering()
    shown = [axes for axes in figure.axes if axes.get_visible()]
    legends = [axes.get_legend() for axes in shown if axes.get_legend()] + figure.legends
    assert legends or not has_legend
    titles = [axes._left_title for axes in shown if axes.get_title("left")]
    boxes = [artist.get_window_extent() for artist in (*legends, *titles)]
    for number, box in enumerate(boxes):
        assert figure.bbox.padded(1).containsx(box.x0)
        assert figure.bbox.padded(1).containsx(box.x1)
        assert figure.bbox.padded(1).containsy(box.y1)
        for other in [axes.get_window_extent() for axes in shown] + boxes[:number]:
            assert min(box.x1, other.x1) <= max(box.x0, other.x0) or min(box.y1, other.y1) <= max(
                box.y0, other.y0
            ), (box, other)
    for axes in shown:
        assert axes.get_window_extent().height > 80
        assert axes.get_window_extent().width > 150


def test_alignment_has_a_line_for_each_large_weight():
    weights = np.array([[0.9, 0.1, 0.0], [0.02, 0.0, 0.98]])
    (axes,) = plotting.alignment(weights, ["A", "B"], ["x", "y", "z"]).axes
    assert [text.get_text() for text in axes.texts] == ["x", "y", "z", "A", "B"]
    places = {text.get_text(): text.get_position()[0] for text in axes.texts}
    ends = {tuple(line.get_xdata()) for line in axes.lines}
    assert ends == {(places[s], places[t]) for s, t in ("xA", "yA", "zB")}


def test_schedules_and_length_statistics_show_their_values():
    (axes,) = plotting.schedules({"up": np.array([0.1, 0.2])}).axes
    assert axes.lines[0].get_xydata().tolist() == [[1, 0.1], [2, 0.2]]
    figure = plotting.length_statistics(np.array([3, 4]), np.array([5, 9]), {"a": 0.5, "b": 0.25})
    assert [bar.get_width() for bar in figure.axes[2].patches] == [50.0, 25.0]


def test_positions_show_the_table_and_dot_products():
    table = np.random.default_rng(1).normal(size=(6, 4))
    figure = plotting.positions(table)
    np.testing.assert_array_equal(shown(figure.axes[0])[0], table)
    np.testing.assert_allclose(figure.axes[1].lines[0].get_ydata(), table @ table[3])


def test_svg_is_reproducible_and_keeps_letters_as_text():
    one, other = (plotting.to_svg(plotting.heat_map(np.eye(2), ["größe", "b"])) for _ in range(2))
    assert one == other
    assert re.search(r"<text[^>]*>größe</text>", one)


# --- Attention -----------------------------------------------------------------------------------


def test_intermediates_hold_queries_keys_values_and_weights(translator):
    """Against the module's own parameters, in float64: encoder, decoder and cross-attention."""
    model, params = translator.config.model, translator.params
    source, target = np.array([[5, 9, 4]]), np.array([[1, 7]])

    def run(module):
        return module.decode(module.encode(source), target)

    apply = functools.partial(Transformer(model).apply, method=run, mutable=["intermediates"])
    _, state = jax.jit(apply)({"params": params})
    parts = {
        "encoder_layers_0": ["self_attention"],
        "decoder_layers_0": ["self_attention", "cross_attention"],
    }
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


def test_intermediates_are_empty_unless_requested():
    from transformer_jax.config import ModelConfig

    module = SelfAttention(ModelConfig(d_model=4, num_heads=2), causal=True)
    x, ids = np.ones((1, 2, 4), np.float32), np.ones((1, 2), np.int32)
    assert set(module.init(jax.random.key(0), x, True, positions=ids, segment_ids=ids)) == {
        "params"
    }


def test_sentence_attention_equals_that_of_the_search(translator):
    """The padded and compiled function agrees with the search's attention."""
    from transformer_jax.translator.alignment import AttentionChoice

    text = "three four nine"
    choice = AttentionChoice(-1, None)
    best = translator.translate(text, attention=choice)
    seen = collect.sentence_attention(translator, text)
    assert seen.source == (*best.source_tokens, "</s>")
    assert seen.target == (*best.tokens, "</s>")
    assert seen.read == ("<s>", *best.tokens)
    np.testing.assert_allclose(seen.cross[-1].mean(axis=0)[:-1, :-1], best.attention, atol=1e-5)
    for weights in (seen.encoder, seen.decoder, seen.cross):
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
    assert (np.triu(seen.decoder[0, 0], k=1) == 0).all()
    assert seen.of("decoder")[1:] == (seen.target, seen.read)
    assert seen.of("cross")[1:] == (seen.target, seen.source)
    assert seen.of("encoder")[1:] == (seen.source, seen.source)


def test_sentence_attention_includes_language_tags(translator):
    from transformer_jax.translator.alignment import AttentionChoice

    source = translator.tokenizers.source
    pair = TokenizerPair(source, source, LanguageTags("▁{}", both_sides=True))
    t = Translator(translator.config, pair, translator.params)
    languages = {"source_lang": "one", "target_lang": "zwei"}
    choice = AttentionChoice(-1, None)
    best = t.translate("three four", attention=choice, **languages)
    for target in (None, best.text):
        seen = collect.sentence_attention(t, "three four", target, **languages)
        assert seen.read[:2] == ("<s>", "▁zwei")
        assert seen.source[0] == "▁one"
        if seen.target == ("▁zwei", *best.tokens, "</s>"):
            shown = seen.cross[-1].mean(axis=0)[1:-1, 1:-1]
            np.testing.assert_allclose(shown, best.attention, atol=1e-5)
        assert target or seen.target[1:-1] == best.tokens


def test_attention_of_a_long_text_in_parts_is_drawn():
    joined = block_diagonal([np.array([[0.5, 0.25]]), np.array([[0.75]])])
    want = np.array([[0.5, 0.25, 0], [0, 0, 0.75]])
    figures = plotting.heat_map(joined), plotting.alignment(joined, ["x", "y"], ["a", "b", "c"])
    np.testing.assert_array_equal(shown(figures[0].axes[0])[0], want)
    assert plotting.to_svg(figures[1])


def test_sentence_attention_of_a_given_target(translator):
    seen = collect.sentence_attention(translator, "one", "zwei drei")
    tokens = translator.tokenizers.target
    assert list(seen.target[:-1]) == tokens.tokens(tokens.encode("zwei drei"))


@pytest.mark.parametrize(("source", "message"), [("", "no text"), ("one " * 60, "shorter")])
def test_sentence_attention_refuses_empty_and_long_sentences(translator, source, message):
    with pytest.raises(UserError, match=message):
        collect.sentence_attention(translator, source)


def test_corpus_lengths_report_padding(tiny_run, translator):
    """One shape for all: n · (longest source + longest target) positions."""
    source, target, padding = collect.corpus_lengths(translator.config, tiny_run[1])
    positions = len(source) * (int(source.max()) + int(target.max()))
    assert padding["all as the longest"] == pytest.approx(
        1 - (source.sum() + target.sum()) / positions
    )
    assert 0 <= padding["in buckets"] < padding["all as the longest"]
    lines = (tiny_run[1] / "metrics.jsonl").read_text().splitlines()
    (measured,) = {line["padding"] for line in map(json.loads, lines) if "padding" in line}
    assert padding["this run"] == pytest.approx(measured)
    assert "this run" not in collect.corpus_lengths(translator.config, tiny_run[1], "test")[2]


@pytest.mark.parametrize(
    ("more", "titles"),
    [
        ([], ["encoder layer 2, head 0", "encoder layer 2, head 3"]),
        (["--mean"], ["encoder layer 2, mean of 2 heads"]),
    ],
)
def test_attention_pictures_name_part_layer_and_head(more, titles, monkeypatch):
    weights = np.ones((2, 1, 1)), ("a",), ("b",), 2, [0, 3]
    monkeypatch.setattr(plot, "_weights", lambda part: weights)
    monkeypatch.setattr(plotting, "attention_maps", lambda *arguments: arguments[3])
    with command_help.defined_flags("plot"):
        flags.FLAGS(["plot", "attention", "--workdir=w", "--part=encoder", *more])
        assert plot._attention() == titles
