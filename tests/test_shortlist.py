"""Shortlists: learned from links by hand, and searched as a search that suppresses the others."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from tests.conftest import DIGITS, ZIFFERN, copy_run, digit_pairs, run_command, write_pairs
from transformer_jax import Translator
from transformer_jax.commands.translation_job import Job
from transformer_jax.data import shortlist, token_links
from transformer_jax.data.shortlist import Shortlist
from transformer_jax.data.token_links import TokenLinks
from transformer_jax.errors import UserError
from transformer_jax.extras.documents.sentence_translator import RETRIES
from transformer_jax.translator import phrases, vocabulary_subset
from transformer_jax.translator.batching import Batch
from transformer_jax.translator.pretrained import Pretrained
from transformer_jax.translator.requests import Request

TEXTS = ["one two three", "four five", "six", "seven eight nine one", "two two"]
ROOM = {"max_decode_len": 12}


def random_shortlist(tokenizers, seed=0):
    """Of each source token some target tokens: itself, a few of digits, and others."""
    rng = np.random.default_rng(seed)
    digits = [i for word in ZIFFERN for i in tokenizers.target.encode(word)]
    size = tokenizers.source.vocab_size
    by_source = [[i, *rng.choice(digits, 4), *rng.integers(4, size, 5)] for i in range(size)]
    return Shortlist.of_lists(rng.choice(digits, 3), by_source)


def with_shortlist(translator, learned):
    return Translator(
        translator.config, translator.tokenizers, translator.params, shortlist=lambda: learned
    )


def forbidden(translator, learned, text, wanted=()):
    """All tokens that an output of `text` must not have, by the definition."""
    source, target = translator.tokenizers.source, translator.tokenizers.target
    allowed = {target.eos_id, *learned.always.tolist(), *wanted}
    for i in [*source.encode(text), source.eos_id]:
        allowed |= {*learned.ids[learned.offsets[i] : learned.offsets[i + 1]].tolist()}
    return tuple(i for i in range(target.vocab_size) if i not in allowed)


SEARCHES = [
    {"beam_size": 1},
    {"beam_size": 4, "beam_groups": 2},
    {
        "no_repeat_ngram_size": 2,
        "repetition_penalty": 1.3,
        "min_decode_len": 4,
        "coverage_penalty": 0.2,
        "stopping": "first_k",
        "at_limit": "free_end",
    },
]


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: "-".join(search))
def test_shortlist_search_is_one_that_suppresses_all_other_tokens(translator, search):
    learned = random_shortlist(translator.tokenizers)
    subject = with_shortlist(translator, learned)
    search = {"beam_size": 3, "renormalize": "min_decode_len" in search} | search
    number = search["beam_size"]
    together = subject.translate(TEXTS, n_best=number, shortlist=True, **search, **ROOM)
    for text, got in zip(TEXTS, together, strict=True):
        others = forbidden(translator, learned, text)
        # Suppressed tokens keep their share of the probability; renormalised, they have none.
        want = translator.translate(
            text, n_best=number, suppressed_ids=others, **search | {"renormalize": True}, **ROOM
        )
        assert [one.ids for one in got] == [one.ids for one in want]
        np.testing.assert_allclose(
            [(one.score, one.log_prob) for one in got],
            [(one.score, one.log_prob) for one in want],
            atol=1e-4,
        )
    free = translator.translate(TEXTS, n_best=number, **search | {"renormalize": True}, **ROOM)
    assert [[one.ids for one in row] for row in free] != [
        [one.ids for one in row] for row in together
    ]


def test_shortlist_search_keeps_suppressed_ids_prefixes_and_phrases(translator):
    learned = random_shortlist(translator.tokenizers, seed=1)
    subject = with_shortlist(translator, learned)
    target = translator.tokenizers.target
    requests = [
        Request("one two three", prefix="sieben"),
        Request("four five", phrases=("neun",)),
        Request("six"),
    ]
    forms = phrases.encode(target, "neun").forms
    given = [*target.encode("sieben"), *(i for form in forms for i in form.ids)]
    banned = tuple(target.encode("sechs")[:1])  # what "six" is else
    outputs = subject.translate(
        requests, beam_size=3, suppressed_ids=banned, shortlist=True, **ROOM
    )
    assert outputs[0].text.startswith("sieben")
    assert "neun" in outputs[1].text
    for request, got in zip(requests, outputs, strict=True):
        wanted = given if request.prefix or request.phrases else ()
        others = forbidden(translator, learned, request.text, wanted)
        assert not {*got.ids} & {*others, *banned}
    # The scores are those of the search that suppresses the others.
    others = forbidden(translator, learned, "six")
    want = translator.translate(
        "six", beam_size=3, suppressed_ids=(*others, *banned), renormalize=True, **ROOM
    )
    assert outputs[2].ids == want.ids


def test_shortlist_search_of_all_tokens_is_the_usual_one_on_any_devices(translator):
    config, tokenizers = translator.config, translator.tokenizers
    size = tokenizers.target.vocab_size
    texts = [source for source, _ in digit_pairs(40, seed=5)]
    several = dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, data=8))
    assert len(jax.devices()) == 8

    def translate(on, learned, **settings):
        subject = Translator(on, tokenizers, translator.params, shortlist=lambda: learned)
        return subject.translate(texts, attention=subject.alignment, **settings, **ROOM)

    def check_same(got, want):
        assert [one.ids for one in got] == [one.ids for one in want]
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one.score, other.score, atol=1e-5)
            np.testing.assert_allclose(one.token_log_probs, other.token_log_probs, atol=1e-4)

    everything = Shortlist.of_lists(range(size), [[]] * size)
    want = translate(config, everything)
    for on in (config, several):
        check_same(translate(on, everything, shortlist=True), want)
    few = random_shortlist(tokenizers, seed=6)
    check_same(translate(several, few, shortlist=True), translate(config, few, shortlist=True))


def test_shortlist_of_an_ensemble_is_that_of_each_model(translator):
    """Each model's probabilities sum to 1 over the tokens of a row, whatever the others have."""
    config, tokenizers = translator.config, translator.tokenizers
    learned = random_shortlist(tokenizers, seed=4)
    other = jax.tree.map(lambda x: 0.8 * x, translator.params)
    member = Pretrained(config, tokenizers, other, 0)
    ensemble = Translator(
        config, tokenizers, translator.params, others=[member], shortlist=lambda: learned
    )
    together = ensemble.translate(TEXTS, beam_size=3, shortlist=True, **ROOM)
    num_checked = 0
    for text, got in zip(TEXTS, together, strict=True):
        alone = ensemble.translate(text, beam_size=3, shortlist=True, **ROOM)
        assert alone.ids == got.ids
        assert alone.score == pytest.approx(got.score, abs=1e-5)
        # The first token, by hand: each model among the allowed tokens, then their mean.
        banned = forbidden(translator, learned, text)
        first = [
            Translator(config, tokenizers, params).translate(
                Request(text, prefix=""),
                n_best=1,
                beam_size=1,
                suppressed_ids=banned,
                renormalize=True,
                max_decode_len=1,
                at_limit="cut",
            )[0]
            for params in (translator.params, other)
        ]
        one = ensemble.translate(
            text, beam_size=1, shortlist=True, max_decode_len=1, at_limit="cut"
        )
        if first[0].ids == first[1].ids == one.ids:
            want = np.logaddexp(first[0].log_prob, first[1].log_prob) - np.log(2)
            assert one.log_prob == pytest.approx(want, abs=1e-4)
            num_checked += 1
    assert num_checked


def test_shortlist_outputs_do_not_depend_on_the_batch(translator):
    subject = with_shortlist(translator, random_shortlist(translator.tokenizers, seed=2))
    texts = [source for source, _ in digit_pairs(60, seed=3)]
    together = subject.translate(texts, shortlist=True, **ROOM)
    for text, one in [*zip(texts, together, strict=True)][::7]:
        alone = subject.translate(text, shortlist=True, **ROOM)
        assert alone.ids == one.ids
        assert alone.score == pytest.approx(one.score, abs=1e-5)


def test_vocabulary_subset_has_few_sizes_and_the_special_tokens_first():
    assert vocabulary_subset.sizes(16_000) == [2048, 4096, 8064, 12032, 16000]
    assert vocabulary_subset.sizes(295) == [128, 256, 295]
    assert vocabulary_subset.sizes(100) == [100]
    ids = types.SimpleNamespace(target_eos=7, target_pad=9, decoder_start=9)
    learned = Shortlist.of_lists([3], [[5, 8], [], [3, 299]])
    text = types.SimpleNamespace(source=(0, 1), prefix=(6,))
    other = types.SimpleNamespace(source=(2, 2), prefix=())
    subset = vocabulary_subset.of_batch(
        learned, [text, other], [(), ()], ids, 300, Batch([0, 1], 3, 8), 2
    )
    assert subset.ids.shape == (2, 128)
    assert subset.ids[1].tolist() == [7, 9, 3, 5, 6, 8, 299, *[7] * 121]
    assert [np.flatnonzero(row).tolist() for row in subset.is_allowed] == [
        [0, 2, 3, 4, 5],
        [0, 2, 6],
        [0],
    ]
    batch = Batch([0], 1, 8, least_tokens=129)
    larger = vocabulary_subset.of_batch(learned, [text], [()], ids, 300, batch, 1)
    assert larger.ids.shape[1] == 256


def test_warmup_compiles_every_size_that_a_shortlist_may_need(translator):
    size = translator.tokenizers.source.vocab_size
    # Of "six" few tokens, of "nine" all.
    many = translator.tokenizers.source.encode("nine")
    by_source = [[*range(size)] if i in many else [i] for i in range(size)]
    subject = with_shortlist(translator, Shortlist.of_lists([], by_source))
    subject.warmup([8], num_texts=1, shortlist=True, beam_size=2)
    subject.engine.freeze()
    assert np.isfinite(subject.translate("six", shortlist=True, beam_size=2).score)
    all_tokens = subject.translate("nine", shortlist=True, beam_size=2)
    assert all_tokens.ids == translator.translate("nine", beam_size=2).ids


def test_shortlist_is_refused_where_it_cannot_be_used(translator):
    with pytest.raises(UserError, match="has none: run `transformer-jax shortlist"):
        translator.translate("one", shortlist=True)
    learned = random_shortlist(translator.tokenizers)
    subject = with_shortlist(translator, learned)
    with pytest.raises(UserError, match="`shortlist` is for `method=beam`"):
        subject.translate("one", shortlist=True, method="sample")
    for retry in RETRIES:  # of sentences that a guard has caught
        subject.settings(settings={"shortlist": True, **retry})
    subject = Translator(
        translator.config,
        translator.tokenizers,
        translator.params,
        processors=[lambda log_probs, prefixes: log_probs],
        shortlist=lambda: learned,
    )
    with pytest.raises(UserError, match="`processors` get those of the entire vocabulary"):
        subject.translate("one", shortlist=True)


def test_shortlist_has_the_most_frequent_links_and_equal_tokens(tokenizers, monkeypatch):
    source, target = tokenizers.source, tokenizers.target
    one, two, eins, zwei, neun = (
        side.encode(word)[0]
        for side, word in [
            (source, "one"),
            (source, "two"),
            (target, "eins"),
            (target, "zwei"),
            (target, "neun"),
        ]
    )
    pairs = [("one two", "zwei eins"), ("one", "eins"), ("one", "neun"), ("", "")]

    def align(sources, targets, pair):
        assert pair is tokenizers
        first = [0, sources[0].tolist().index(two)]
        second = [targets[0].tolist().index(eins), 0]
        links = [*zip(first, second, strict=True), (0, 0), (0, 0)]
        return TokenLinks(np.array(links, np.uint16), np.array([0, 2, 3, 4, 4]))

    monkeypatch.setattr(token_links, "align", align)
    monkeypatch.setattr(token_links, "require", lambda: None)
    learned = shortlist.learn(pairs, tokenizers, num_tokens=1, num_frequent=2)

    def of(i):
        return learned.ids[learned.offsets[i] : learned.offsets[i + 1]].tolist()

    assert of(one) == [eins, one]  # twice eins, once neun; and the token itself
    assert of(two) == [zwei, two]
    assert neun not in of(one)
    assert of(200) == [200]
    counts = np.bincount([i for _, text in pairs for i in target.encode(text)], minlength=295)
    assert [*counts[learned.always]] == sorted(counts)[-1:-3:-1]
    mean, share = shortlist.coverage(learned, [("one two", "zwei eins")], tokenizers)
    allowed = {*learned.always.tolist()}
    for i in source.encode("one two"):
        allowed |= {*of(i)}
    wanted = target.encode("zwei eins")
    assert mean == len(allowed)
    assert share == pytest.approx(sum(i in allowed for i in wanted) / len(wanted))


def test_shortlist_is_written_read_and_goes_with_its_model(tiny_run, translator, tmp_path):
    run = copy_run(tiny_run[1], tmp_path / "run")
    tokenizers = translator.tokenizers
    learned = random_shortlist(tokenizers)
    shortlist.write(learned, tokenizers, run / shortlist.NAME)

    def same(other):
        return all(
            np.array_equal(getattr(learned, name), getattr(other, name))
            for name in ("always", "ids", "offsets")
        )

    loaded = Translator.load(run)
    assert same(loaded.shortlist())
    assert Translator.load(tiny_run[1]).shortlist is None
    done = run_command("bundle", f"--workdir={run}", f"--output={tmp_path / 'one.bundle'}")
    assert not done.returncode, done.stderr
    bundled = Translator.load(tmp_path / "one.bundle")
    assert same(bundled.shortlist())
    want = loaded.translate(TEXTS, shortlist=True, **ROOM)
    got = bundled.translate(TEXTS, shortlist=True, **ROOM)
    assert [one.ids for one in got] == [one.ids for one in want]
    path = run / shortlist.NAME
    text = path.read_text()
    for damaged in (text + "▁unknownword\t▁one\n", text + "no tab\n", text + "▁one\tunknownword\n"):
        path.write_text(damaged)
        number = damaged.count("\n")
        loaded = Translator.load(run)
        assert np.isfinite(loaded.translate("one").score)  # only who wants it reads it
        with pytest.raises(UserError, match=f"{path}, line {number}, is not of this model"):
            loaded.translate("one", shortlist=True)
    path.write_bytes(b"\xff\t\n")
    with pytest.raises(UserError, match="is not UTF-8"):
        Translator.load(run).translate("one", shortlist=True)


def test_shortlist_writes_a_name_once_where_rows_have_no_token():
    """Rows beyond the tokens of a padded embedding are all called `<unk>`."""

    def side(*names):
        return types.SimpleNamespace(
            vocab_size=len(names), tokens=lambda ids: [names[i] for i in ids]
        )

    pair = types.SimpleNamespace(
        source=side("<unk>", "a", "b c", "<unk>"), target=side("<unk>", "x", "y", "<unk>", "<unk>")
    )
    learned = Shortlist.of_lists([0, 2], [[0, 1], [2, 4], [1], [1]])
    text = shortlist.to_text(learned, pair)
    assert text == "\t<unk> y\n<unk>\t<unk> x\na\ty\n"
    back = shortlist.from_text(text, pair, "file")
    assert back.always.tolist() == [0, 2]
    assert np.split(back.ids, back.offsets[1:-1])[0].tolist() == [0, 1]
    assert back.offsets.tolist() == [0, 2, 3, 3, 3]


@pytest.mark.parametrize(("total", "most"), [(10, 4), (10, 9), (10, 10), (10, 99), (7, 1)])
def test_shortlist_reads_as_many_pairs_as_asked_for(total, most):
    corpora = [
        types.SimpleNamespace(count=lambda n=n: n, read=lambda n=n: iter([(str(n), "")] * n))
        for n in (total - 3, 3)
    ]
    pairs = shortlist.sample(corpora, most)
    assert len(pairs) == min(total, most)
    if most > 1:
        assert {source for source, _ in pairs} == {str(total - 3), "3"}


def test_shortlist_is_part_of_what_resumes_only_where_it_is_used(tiny_run, translator, tmp_path):
    run = copy_run(tiny_run[1], tmp_path / "run")

    def described():
        loaded = Translator.load(run)
        jobs = [
            Job.of_models([(str(run), "best")], settings).description()
            for settings in ({"shortlist": True}, {"shortlist": None})
        ]
        runner = loaded.engine.runner
        return [runner.describe(loaded.params, True), jobs[0]], [
            runner.describe(loaded.params),
            jobs[1],
        ]

    records = []
    for seed in (0, 1):
        learned = random_shortlist(translator.tokenizers, seed)
        shortlist.write(learned, translator.tokenizers, run / shortlist.NAME)
        records.append(described())
    (used, unused), (used_later, unused_later) = records
    assert unused == unused_later
    for one, other in zip(used, used_later, strict=True):
        assert one["shortlist"] != other["shortlist"]
        assert one | {"shortlist": ""} == other | {"shortlist": ""}


@pytest.mark.slow
def test_shortlist_command_learns_what_digits_mean(tiny_run, tmp_path):
    pytest.importorskip("eflomal")
    run = copy_run(tiny_run[1], tmp_path / "run")
    train = write_pairs(tmp_path, "more", digit_pairs(3000, seed=9))
    options = [f"--workdir={run}", f"--config.data.train={train}", "--tokens=3", "--frequent=0"]
    done = run_command("shortlist", *options, "--pairs=1500")
    assert not done.returncode, done.stderr
    assert "aligning the tokens of 1,486 pairs" in done.stdout
    assert "(14 other pairs)" in done.stdout
    assert f"wrote {run / shortlist.NAME}; search with --shortlist" in done.stdout
    translator = Translator.load(run)
    source, target = translator.tokenizers.source, translator.tokenizers.target
    is_allowed = np.zeros((len(DIGITS), target.vocab_size), bool)
    for row, digit in zip(is_allowed, DIGITS, strict=True):
        translator.shortlist().mark(source.encode(digit), row)
    shares = [
        row[target.encode(word)].mean() for row, word in zip(is_allowed, ZIFFERN, strict=True)
    ]
    assert np.mean(shares) > 0.9
    assert is_allowed.sum(axis=1).max() < 30
    decoded = run_command("decode", f"--workdir={run}", "--shortlist", stdin="one two\n")
    assert decoded.stdout == f"{translator.translate('one two', shortlist=True).text}\n"
    none = run_command("shortlist", f"--workdir={tmp_path / 'one.bundle'}")
    assert none.returncode == 2
