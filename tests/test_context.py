"""Sentences before a source: what a model of documents is trained on, and reads."""

import dataclasses
import json
import random

import numpy as np
import pytest

from tests.conftest import DIGITS, ZIFFERN, run_command, tiny_config, write_pairs
from transformer_jax import Translator
from transformer_jax.data import context, sources, token_cache, token_links
from transformer_jax.data.shards import shard_writer
from transformer_jax.data.token_links import TokenLinks
from transformer_jax.data.tokenizer_training import make_tokenizers
from transformer_jax.errors import UserError
from transformer_jax.training.loop import train
from transformer_jax.translator.requests import Request

SEPARATOR = 99


@pytest.mark.parametrize(
    ("count", "wanted"),
    [
        (1, [(), ("a",), ("b",), (), (), ("d",)]),
        (2, [(), ("a",), ("a", "b"), (), (), ("d",)]),
        (0, [(), (), (), (), (), ()]),
    ],
)
def test_sentences_before_each_up_to_an_empty_one(count, wanted):
    # The third is empty, and the fourth: a document ends there.
    assert list(context.previous(["a", "b", "", "", "d", "e"], count)) == wanted


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [
        (10, [1, 2, SEPARATOR, 3, SEPARATOR]),
        (9, [1, 2, SEPARATOR, 3, SEPARATOR]),
        (8, [3, SEPARATOR]),
        (5, []),
    ],
)
def test_the_sentences_that_are_farthest_have_no_room(limit, wanted):
    assert context.joined_ids([[1, 2], [3]], SEPARATOR, 4, limit) == wanted


def config_of(folder, pairs, **data):
    """A `tiny` recipe with two sentences before each source."""
    config = tiny_config(folder, num_steps=150, eval_every_steps=0, checkpoint_every_steps=150)
    files = {name: write_pairs(folder, f"{name}-context", pairs) for name in ("train", "test")}
    fields = {**files, "validation": files["test"], "context_sentences": 2, "max_len": 32, **data}
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **fields))


@pytest.mark.parametrize("in_shards", [False, True])
def test_token_cache_has_the_sentences_before_each_source(tmp_path, monkeypatch, in_shards):
    # Documents of three sentences, and one that reaches over the border of two chunks.
    pairs = [("one", "eins"), ("two", "zwei"), ("", ""), ("six", "sechs"), ("five", "fünf")]
    pairs += [("", ""), ("nine " * 26, "neun"), ("one", "eins"), ("two", "zwei")]
    config = config_of(tmp_path, pairs, vocab_size=280)
    monkeypatch.setattr(shard_writer, "CHUNK", 4)
    if in_shards:
        monkeypatch.setattr(token_cache, "SHARD_PAIRS", 4)
    corpora = sources.open_corpora(config.data, "train")
    tokenizers = make_tokenizers(config.data, corpora)
    separator = tokenizers.context_separator()
    corpus = token_cache.tokenize_corpora(corpora, tokenizers, config.data)
    assert "<context>" not in tokenizers.source.tokens(tokenizers.source.encode("a <context> b"))

    def ids(*texts):
        *before, last = [tokenizers.source.encode(text) for text in texts]
        return [i for text in before for i in (*text, separator)] + last

    nines = "nine " * 26
    assert len(ids("one", "two")) < 30 < len(ids(nines, "one", "two"))
    wanted = [("one",), ("one", "two"), ("",), ("six",), ("six", "five"), ("",), (nines,)]
    wanted += [(nines, "one"), ("one", "two")]  # the last has no room for all
    assert [list(corpus.source[n]) for n in range(9)] == [ids(*texts) for texts in wanted]
    assert list(corpus.target[4]) == tokenizers.target.encode("fünf")

    fewer = dataclasses.replace(config.data, context_sentences=1)
    other = token_cache.tokenize_corpora(corpora, tokenizers, fewer)
    assert list(other.source[8]) == ids("one", "two")
    assert other.fingerprint != corpus.fingerprint

    # Guided alignment links the tokens of the sentences alone.
    seen = []

    def align(source_ids, target_ids, pair):
        seen.extend(map(list, source_ids))
        both = zip(source_ids, target_ids, strict=True)
        counts = [min(len(source), len(target)) for source, target in both]
        tokens = [(n, n) for count in counts for n in range(count)]
        return TokenLinks(np.array(tokens, np.uint16), np.concatenate([[0], np.cumsum(counts)]))

    monkeypatch.setattr(token_links, "align", align)
    linked = token_cache.tokenize_corpora(corpora, tokenizers, config.data, has_links=True).links
    assert seen[:2] == [ids("one"), ids("two")]
    first = len(ids("one")) + 1
    assert linked.tokens[linked.offsets[1], 0] == first
    assert linked.tokens[0, 0] == 0


def again_pairs(count, seed):
    """Documents whose second sentence cannot be translated without the first."""
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        number = rng.randrange(10)
        pairs += [(DIGITS[number], ZIFFERN[number]), ("again", ZIFFERN[number]), ("", "")]
    return pairs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has learned what `again` means."""
    folder = tmp_path_factory.mktemp("context")
    config = config_of(folder, again_pairs(200, 0), max_len=16)
    train(config, folder / "run")
    return folder


def test_a_model_learns_from_the_sentence_before(run):
    translator = Translator.load(run / "run", "latest")
    texts = [Request("again", context=[digit]) for digit in DIGITS]
    assert [out.text for out in translator.translate(texts)] == ZIFFERN
    # What comes with a translation is of the text alone.
    best = translator.translate(texts[3], attention=translator.alignment)
    assert "".join(best.source_tokens).strip("▁") == "again"
    tokenizers, ids = translator.tokenizers, translator.engine.ids
    before = [*tokenizers.source.encode(DIGITS[3]), tokenizers.context_separator()]
    source = [*before, *tokenizers.source.encode("again"), ids.source_eos]
    weights = translator.engine.runner.cross_attention(
        translator.params, source, [*best.ids, ids.target_eos]
    )[0].mean(axis=0)  # of the only layer
    np.testing.assert_allclose(
        best.attention, weights[: len(best.ids), len(before) : -1], atol=1e-5
    )
    # Scores know the sentence before too.
    right, wrong = translator.score(
        ["again", "again"], ["drei", "drei"], contexts=[["three"], ["four"]]
    )
    assert right > wrong + 2
    assert translator.translate_document("one\nagain\n").text == "eins\neins\n"
    alone = translator.translate_document("one\nagain\n", context_sentences=0).text
    assert alone == "eins\n" + translator.translate("again").text + "\n"


def test_the_command_line_reads_the_lines_before(run, tmp_path):
    lines = "one\nagain\n\nsix\nagain\n"
    source = tmp_path / "lines.en"
    source.write_text(lines)
    command = ("decode", f"--workdir={run / 'run'}", "--checkpoint=latest", f"--input={source}")
    done = run_command(*command)
    assert done.stdout == "eins\neins\n\nsechs\nsechs\n", done.stderr
    source.write_text("one\nagain\n")
    document = run_command(*command, "--document", "--document_format=txt")
    assert document.stdout == "eins\neins\n", document.stderr
    refused = run_command(*command, "--context_sentences=-1")
    assert refused.returncode
    assert "context_sentences" in refused.stderr
    # `eval` reads the lines before too, and finds every translation.
    scored = run_command(
        "eval",
        f"--workdir={run / 'run'}",
        "--checkpoint=latest",
        f"--json={tmp_path / 'eval.json'}",
    )
    assert json.loads((tmp_path / "eval.json").read_text())["exact_match"] > 95, scored.stderr


def test_models_of_single_sentences_say_that_they_read_no_others(translator):
    for call in (
        lambda: translator.translate(Request("one", context=["two"])),
        lambda: translator.translate_document("one", context_sentences=2),
        lambda: translator.score(["one"], ["eins"], contexts=[["two"]]),
    ):
        with pytest.raises(UserError, match="reads no sentences before a text"):
            call()
    with pytest.raises(UserError, match="is negative"):
        translator.translate_document("one", context_sentences=-1)
    with pytest.raises(UserError, match="2 contexts are not one for each of 1"):
        translator.score(["one"], ["eins"], contexts=[[], []])
    with pytest.raises(TypeError, match=r"`context` is a str .*, not a list of strings"):
        Request("one", context="two")
