"""Guided alignment: links of tokens, their place in a batch, the loss, and a head that learns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import digit_pairs, tiny_config
from tests.test_batch_plan import IDS, side
from transformer_jax import Translator
from transformer_jax.config import validate
from transformer_jax.data import loader, token_cache, token_links
from transformer_jax.data.plans.batch_shapes import BatchLayout, BatchShape
from transformer_jax.data.token_links import TokenLinks, symmetrize
from transformer_jax.errors import UserError
from transformer_jax.ops import losses
from transformer_jax.training.loop import train
from transformer_jax.translator.alignment import AttentionChoice


@pytest.mark.parametrize(
    ("forward", "reverse", "wanted"),
    [
        ({(0, 0), (1, 1)}, {(0, 0), (1, 1)}, {(0, 0), (1, 1)}),
        # Next to a link that both have: one whose token has no link yet is added.
        ({(0, 0), (1, 0)}, {(0, 0)}, {(0, 0), (1, 0)}),
        ({(0, 0), (1, 1)}, {(0, 0), (1, 0), (1, 1)}, {(0, 0), (1, 1)}),
        # Far from all others: added only where both tokens have none.
        ({(0, 0), (3, 3)}, {(0, 0)}, {(0, 0), (3, 3)}),
        ({(0, 0), (0, 3)}, {(0, 0)}, {(0, 0)}),
        ({(0, 2)}, {(0, 1)}, {(0, 2)}),
        (set(), set(), set()),
    ],
)
def test_directions_are_symmetrized_by_hand(forward, reverse, wanted):
    assert symmetrize(forward, reverse) == wanted


def test_batches_have_the_linked_positions_of_what_the_decoder_reads():
    links = TokenLinks(
        np.array([[1, 0], [0, 1], [0, 0], [1, 0], [2, 0], [1, 1]], np.uint16),
        np.array([0, 2, 2, 6]),
    )
    corpus = token_cache.TokenizedCorpus(
        side([[1, 2], [3], [4, 5, 6]]), side([[11, 12], [13], [14, 15]]), (3,), "", links
    )
    layout = BatchLayout(
        shape=BatchShape(2, 7, 6),
        pairs=np.array([2, 1, 0]),
        rows=np.array([0, 0, 1]),
        source_starts=np.array([0, 4, 0]),
        target_starts=np.array([0, 3, 0]),
        segments=np.array([1, 2, 1]),
    )
    alignment = loader.make_batch(corpus, layout, IDS)["alignment"]
    assert alignment.shape == (2, 6, loader.MAX_LINKS)
    linked = {
        (row, place): [int(s) for s in alignment[row, place] if s >= 0]
        for row, place in np.argwhere(alignment[:, :, 0] >= 0).tolist()
    }
    # The token of position 0 is read at position 1, after the start symbol.
    assert linked == {(0, 1): [0, 1, 2], (0, 2): [1], (1, 1): [1], (1, 2): [0]}
    no_links = dataclasses.replace(corpus, links=None)
    assert "alignment" not in loader.make_batch(no_links, layout, IDS)


def test_alignment_loss_is_that_of_numpy():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 5, 8)), rng.normal(size=(2, 6, 8))
    mask = rng.random((2, 5, 6)) < 0.7
    mask[..., 2] = True
    alignment = np.full((2, 5, 3), -1)
    alignment[0, 1, 0], alignment[0, 3] = 2, [2, 4, -1]
    alignment[1, 0] = [2, 0, 5]
    mask[0, 3, 4] = mask[1, 0, 0] = mask[1, 0, 5] = True
    wanted = 0.0
    for b in range(2):
        for t in range(5):
            scores = np.where(mask[b, t], query[b, t] @ key[b].T / np.sqrt(8), -np.inf)
            log_weights = scores - np.log(np.exp(scores).sum())
            links = [s for s in alignment[b, t] if s >= 0]
            wanted -= sum(log_weights[s] / len(links) for s in links)
    got = losses.alignment_loss(*map(jnp.asarray, (query, key, alignment, mask)))
    assert float(got) == pytest.approx(wanted, rel=1e-5)
    # A row that may attend to nothing, and links to nothing, changes nothing.
    empty = jnp.zeros((1, 2, 3), bool)
    none = jnp.full((1, 2, 3), -1)
    grad = jax.grad(losses.alignment_loss)(jnp.ones((1, 2, 8)), jnp.ones((1, 3, 8)), none, empty)
    assert float(jnp.abs(grad).max()) == 0.0


def reversed_links(sources, targets, tokenizers):
    """What is true of `digit_pairs`: words are translated one by one, in reverse order."""
    tokens, counts = [], []
    for source, target in zip(sources, targets, strict=True):
        sides = [
            np.cumsum([one.startswith("▁") for one in tokenizer.tokens(ids)]) - 1
            for tokenizer, ids in ((tokenizers.source, source), (tokenizers.target, target))
        ]
        last = sides[0][-1] if len(source) else 0
        links = [
            (s, t)
            for t, word in enumerate(sides[1])
            for s in np.flatnonzero(sides[0] == last - word)
        ]
        tokens += links
        counts.append(len(links))
    return TokenLinks(np.array(tokens, np.uint16), np.concatenate([[0], np.cumsum(counts)]))


@pytest.fixture(scope="module")
def guided(tmp_path_factory):
    """A run that was given the links; its data folder is that of a run without."""
    folder = tmp_path_factory.mktemp("guided")
    steps = {"num_steps": 120, "eval_every_steps": 0, "checkpoint_every_steps": 120}
    config = tiny_config(folder, alignment_weight=0.5, **steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_links, "align", reversed_links)
        train(config, folder / "run")
    return folder, config


def share_of_right_links(translator, choice, pairs):
    """Share of target tokens whose most attended source token is linked to them."""
    ids, tokenizers, right = translator.engine.ids, translator.tokenizers, []
    for source, target in pairs:
        sides = tokenizers.source.encode(source), tokenizers.target.encode(target)
        weights = translator.engine.runner.cross_attention(
            translator.params, [*sides[0], ids.source_eos], [*sides[1], ids.target_eos]
        )[choice.layer]
        weights = weights.mean(axis=0) if choice.head is None else weights[choice.head]
        rows = weights[int(choice.shift) :][: len(sides[1]), : len(sides[0])]
        links = reversed_links([sides[0]], [sides[1]], tokenizers).tokens.tolist()
        right += [[int(s), t] in links for t, s in enumerate(rows.argmax(axis=1))]
    return np.mean(right)


def test_a_guided_head_learns_to_align(guided):
    translator = Translator.load(guided[0] / "run", "latest")
    assert translator.alignment == AttentionChoice(0, 0, shift=True)
    pairs = digit_pairs(40, seed=5)
    guided_share = share_of_right_links(translator, translator.alignment, pairs)
    assert guided_share > 0.8
    assert guided_share > share_of_right_links(translator, AttentionChoice(0), pairs) + 0.2
    # Translations come with the attention of the step that reads each of their tokens.
    text = "one two three four"
    best = translator.translate(text, attention=translator.alignment)
    weights = translator.engine.runner.cross_attention(
        translator.params,
        [*translator.tokenizers.source.encode(text), translator.engine.ids.source_eos],
        [*best.ids, translator.engine.ids.target_eos],
    )
    wanted = weights[0, 0, 1 : 1 + len(best.ids), : len(best.source_tokens)]
    np.testing.assert_allclose(best.attention, wanted, atol=1e-5)
    # And with the log-probability of each, and of the end.
    (scores,) = translator.score_tokens([text], [best.text])
    if scores.tokens[:-1] == best.tokens:
        np.testing.assert_allclose(best.token_log_probs, scores.log_probs, atol=1e-4)
    assert sum(best.token_log_probs) == pytest.approx(best.log_prob, abs=1e-3)


def test_guidance_resumes_and_keeps_its_cache(guided, monkeypatch):
    folder, config = guided
    monkeypatch.setattr(token_links, "align", None)  # the links are in the cache
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, num_steps=121))
    train(longer, folder / "run")


def test_guidance_with_changing_tokens_is_refused(guided):
    config = guided[1]
    data = dataclasses.replace(config.data, subword_sampling=0.1)
    with pytest.raises(UserError, match="aligns the tokens of a corpus once"):
        validate(dataclasses.replace(config, data=data))


def test_a_missing_aligner_is_said_in_a_sentence(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "eflomal", None)
    with pytest.raises(UserError, match=r"eflomal is missing; the extra \[align\]"):
        train(tiny_config(tmp_path, alignment_weight=0.1), tmp_path / "run")


@pytest.mark.peers
def test_eflomal_links_digits_that_are_in_reverse_order(tmp_path):
    pytest.importorskip("eflomal")
    from transformer_jax.data import sources
    from transformer_jax.data.tokenizer_training import make_tokenizers

    config = tiny_config(tmp_path)
    corpora = sources.open_corpora(config.data, "train")
    tokenizers = make_tokenizers(config.data, corpora)
    corpus = token_cache.tokenize_corpora(corpora, tokenizers, config.data, has_links=True)
    assert corpus.links is not None
    count = 50
    ids = [[one[i] for i in range(count)] for one in (corpus.source, corpus.target)]
    truth = reversed_links(*ids, tokenizers)
    right = total = 0
    for i in range(count):
        want, got = (
            {tuple(pair) for pair in one.tokens[one.offsets[i] : one.offsets[i + 1]].tolist()}
            for one in (truth, corpus.links)
        )
        right += len(want & got)
        total += len(got)
    assert right / total > 0.9
