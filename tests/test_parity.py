"""The comparison of an export with our model, with peers written for these tests."""

import dataclasses

import numpy as np
import pytest
import sacrebleu

from tests.conftest import digit_pairs
from transformer_jax.errors import UserError
from transformer_jax.extras.interop import quality
from transformer_jax.extras.interop.parity import Parity, Reference, compare
from transformer_jax.extras.interop.sample_text import SampleText

SENTENCES = [source for source, _ in digit_pairs(5, seed=2)]


class Echo:
    """Our results with one change."""

    name, measure, tolerance = "echo", "logit", 0.1

    def __init__(self, examples, difference=0.0, change=None):
        self._examples, self._difference = examples, difference
        self._change = change or (lambda number, ids: ids)

    def largest_difference(self, batch):
        assert batch.logits.shape[:2] == batch.inputs.shape == batch.mask.shape
        return self._difference

    def outputs(self, batch):
        outputs = self._examples.output_ids
        return [self._change(number, list(outputs[number])) for number in batch.rows]


@pytest.fixture(scope="module")
def ours(translator):
    reference = Reference(translator.config, translator.tokenizers, translator.params)
    return reference, reference.examples([*SENTENCES, ""])


def test_parity_examples_are_greedy_translations(ours, translator):
    _, examples = ours
    assert examples.sentences == SENTENCES
    want = translator.translate(SENTENCES, beam_size=1, max_decode_ratio=48.0)
    assert examples.output_ids == [list(output.ids) for output in want]
    with pytest.raises(UserError, match="No sentence has 1 to"):
        ours[0].examples([""])


def test_parity_holds_for_a_peer_that_agrees(ours):
    result = compare(*ours, Echo(ours[1], 0.05))
    assert (result.identical, result.total, result.differing) == (5, 5, ())
    assert result.holds
    assert "identical outputs 5 of 5" in result.describe()


def test_parity_fails_for_numbers_beyond_the_tolerance(ours):
    assert not compare(*ours, Echo(ours[1], 0.2)).holds


@pytest.mark.parametrize(("place", "token"), [(0, 9), (1, None)])
def test_parity_compares_tokens_at_the_first_difference(place, token, ours):
    """Another token, or an early end, in the third sentence."""
    reference, examples = ours

    def change(number, ids):
        if number == 2:
            ids[place:] = [] if token is None else [token, *ids[place + 1 :]]
        return ids

    result = compare(reference, examples, Echo(examples, change=change))
    (batch,) = reference.batches(examples)
    other = reference.engine.ids.target_eos if token is None else token
    logits = batch.logits[2, place]
    gap = float(logits[examples.output_ids[2][place]] - logits[other])
    assert result.differing == ((2, pytest.approx(gap)),)
    assert result.identical == 4
    assert gap > 0.2
    assert not result.holds
    assert "sentence 3" in result.describe()


def test_parity_accepts_differences_at_near_ties():
    result = Parity("p", "logit", 0.01, 0.1, 3, 4, ((1, 0.15),))
    assert result.holds
    assert not dataclasses.replace(result, differing=((1, 0.15), (2, 0.25))).holds


def test_parity_batches_contain_the_outputs_of_the_search(ours):
    """Each token of a greedy output has the largest logit at its place."""
    reference, examples = ours
    (batch,) = reference.batches(examples)
    for row, number in enumerate(batch.rows):
        length = len(examples.output_ids[number])
        places = min(length, examples.max_decode_len - 1)
        best = np.argmax(batch.logits[row, :places], axis=-1)
        assert list(best) == examples.output_ids[number][:places]
        assert batch.mask[row].sum() == length + 1


# --- Quality after quantization -----------------------------------------------------------------

REFERENCES = ("the cat sat on the mat", "a dog runs in the park today", "two men play football")
BEFORE = [*REFERENCES[:2], "two men play soccer here now"]
AFTER = [REFERENCES[0], "a dog walks in the garden", BEFORE[2]]


def measure(before, after, references=REFERENCES):
    text = SampleText(("x",) * len(before), tuple(references), "the validation set")
    return quality.compare(text, "int8", before, after, "13a")


def test_quality_is_sacrebleus_before_and_after():
    result = measure(BEFORE, AFTER)
    scores = [sacrebleu.corpus_bleu(texts, [list(REFERENCES)]).score for texts in (BEFORE, AFTER)]
    assert result.loss == pytest.approx(scores[0] - scores[1])
    words = result.describe(1.0)
    chrf = sacrebleu.corpus_chrf(AFTER, [list(REFERENCES)]).score
    assert f"BLEU {scores[0]:.2f} before, {scores[1]:.2f} after" in words
    assert f"{chrf:.2f} after; 1 outputs differ; at most 1 BLEU may be lost" in words
    assert "3 sentences say little" in words
    assert "tok:13a" in words


def test_quality_refuses_more_than_the_limit_only():
    result = measure(BEFORE, AFTER)
    quality.check(result, result.loss)
    with pytest.raises(UserError, match=r"int8 loses .* BLEU on 3 sentences, more than `max_bleu"):
        quality.check(result, result.loss - 0.01)
    quality.check(measure(AFTER, BEFORE), 0.0)  # it is better


def test_quality_is_judged_by_chrf_where_bleu_is_zero():
    result = measure(["xyz a", "b"], ["qqq", "b"], ["xyz", "c"])
    assert result.before.bleu == 0
    with pytest.raises(UserError, match="chrF"):
        quality.check(result, 1.0)


def test_quality_without_references_compares_with_the_outputs_before():
    result = measure(BEFORE, AFTER, ())
    bleu = sacrebleu.corpus_bleu(AFTER, [BEFORE]).score
    assert f"BLEU {bleu:.2f}" in result.describe(100.0)
    assert "there are no references" in result.describe(100.0)
    quality.check(result, 0.0)  # nothing to judge by
