"""`init`: the look at a corpus, the choice of settings, the share set aside, the recipe."""

import contextlib
import dataclasses
import gzip
import itertools
import math
import os
import random
import re
import runpy
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from absl import flags

from tests.conftest import digit_pairs, tiny_config, write_pairs
from transformer_jax.commands import command_help, init
from transformer_jax.config import Config, DataConfig, validate
from transformer_jax.data import text_corpora
from transformer_jax.data.writing_systems import script_shares
from transformer_jax.errors import UserError
from transformer_jax.evaluation import bleu_tokenizers
from transformer_jax.extras.recipes import recipe, run_estimate, set_aside, settings, sizing
from transformer_jax.extras.recipes import survey as survey_lib
from transformer_jax.extras.recipes.device import Device
from transformer_jax.extras.recipes.reasons import make_reasons
from transformer_jax.extras.recipes.recipe import recipe_text, write_recipe
from transformer_jax.training.optimizer import make_schedule

ROOT = Path(__file__).parent.parent


CPU = Device("cpu", "two cores", True, 2)


def open_pairs(folder, pairs, name="corpus"):
    return text_corpora.open_text(write_pairs(folder, name, pairs), "en", "de", "train")


def odd_pairs():
    """Pairs with every oddity that a survey counts, in no order."""
    pairs = digit_pairs(600, longest=9)
    pairs += pairs[:40] + pairs[:15]  # 55 copies, besides those that chance has made
    pairs += [("", "leer"), ("empty ", " "), ("  ", "")]
    pairs += [("same text", "same text"), (" same text too", "same text too ")]
    pairs += [("short", "ein sehr langer Satz, der keine Übersetzung sein kann, so lang ist er")]
    random.Random(1).shuffle(pairs)
    return pairs


def test_survey_counts_as_brute_force_does(tmp_path):
    pairs = odd_pairs()
    survey = survey_lib.survey_corpus(open_pairs(tmp_path, pairs))
    stripped = [(source.strip(), target.strip()) for source, target in pairs]
    filled = [pair for pair in stripped if all(pair)]
    assert survey.num_pairs == len(pairs) == 661
    assert survey.num_empty == 3
    assert survey.num_identical == 2
    assert survey.num_duplicates == len(filled) - len(set(filled)) >= 55
    assert survey.num_usable == len(set(filled))
    assert survey.num_doubtful == 1
    assert survey.sample == filled
    assert not survey.is_sampled
    words = sorted(len(source.split()) for source, _ in filled)
    assert survey.source.words.longest == words[-1]
    assert survey.source.words.median == words[round((len(words) - 1) / 2)]
    assert survey.target.characters.longest == max(len(target) for _, target in filled)
    assert survey.source.character_counts == Counter("".join(source for source, _ in filled))


def test_survey_of_a_large_corpus_samples_evenly_and_always_the_same(tmp_path):
    corpus = open_pairs(tmp_path, [(f"number {n}", f"Nummer {n}") for n in range(5000)])
    surveys = [survey_lib.survey_corpus(corpus, sample_size=1000) for _ in range(2)]
    assert surveys[0].sample == surveys[1].sample
    assert surveys[0].num_pairs == 5000
    assert surveys[0].is_sampled
    numbers = [int(source.split()[1]) for source, _ in surveys[0].sample]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 1000
    # The mean of 1,000 of 0 .. 4,999 has a standard deviation of 41.
    assert abs(np.mean(numbers) - 2499.5) < 4 * 41


def test_survey_warns_of_many_copies_and_finds_wanted_sources(tmp_path):
    pairs = digit_pairs(600, longest=12)
    corpus = open_pairs(tmp_path, pairs + pairs[:100])
    wanted = {survey_lib.text_digest(text) for text in (pairs[5][0], "not there")}
    survey = survey_lib.survey_corpus(corpus, wanted)
    assert survey.seen == {survey_lib.text_digest(pairs[5][0])}
    assert survey.num_filled == 700
    assert "WARNING: many pairs are copies" in "".join(survey_lib.describe_survey(survey))


def test_survey_warns_of_lines_that_are_no_translations(tmp_path):
    pairs = digit_pairs(600, longest=12)
    shifted = list(zip([s for s, _ in pairs], [t for _, t in pairs[1:] + pairs[:1]], strict=True))
    good = survey_lib.survey_corpus(open_pairs(tmp_path, pairs))
    bad = survey_lib.survey_corpus(open_pairs(tmp_path, shifted, "shifted"))
    assert good.correlation > 0.9
    assert not good.looks_misaligned
    assert abs(bad.correlation) < 0.2
    assert bad.looks_misaligned
    assert "WARNING" in "".join(survey_lib.describe_survey(bad))
    assert "WARNING" not in "".join(survey_lib.describe_survey(good))


def test_survey_warns_of_text_that_is_cut_into_pieces(tmp_path):
    pairs = digit_pairs(600, longest=12)
    cut = [(f"▁{source}", target) for source, target in pairs[:30]]
    some = survey_lib.survey_corpus(open_pairs(tmp_path, [*cut, *pairs[30:]]))
    few = survey_lib.survey_corpus(open_pairs(tmp_path, [*cut[:3], *pairs[3:]], "few"))
    assert "WARNING: 30 (5.0%) have ▁ (U+2581)" in "".join(survey_lib.describe_survey(some))
    assert "WARNING" not in "".join(survey_lib.describe_survey(few))


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("Hello, 123!", {"Latin": 1.0}),
        ("да нет ok", {"Cyrillic": 5 / 7, "Latin": 2 / 7}),
        ("漢字かな", {"Han": 0.5, "Hiragana": 0.5}),
        ("한국어", {"Hangul": 1.0}),
        ("12 + 3", {}),
    ],
)
def test_writing_systems_are_shares_of_the_letters(text, shares):
    assert script_shares(Counter(text)) == pytest.approx(shares)


# --- Setting a share aside ----------------------------------------------------------------------


def read_pairs(prefix):
    sides = (Path(f"{prefix}.{lang}").read_text().splitlines() for lang in ("en", "de"))
    return list(zip(*sides, strict=True))


def test_init_sets_aside_the_same_share_in_any_order_without_leaks(tmp_path):
    pairs = [*odd_pairs(), ("zero one", "andere Übersetzung"), ("zero one", "null eins")]
    shares = {"validation": 0.08, "test": 0.05}
    written = set_aside.write_parts(open_pairs(tmp_path, pairs), shares, tmp_path / "a")
    random.Random(2).shuffle(pairs)
    set_aside.write_parts(open_pairs(tmp_path, pairs, "again"), shares, tmp_path / "b")
    parts = {part: read_pairs(tmp_path / "a" / part) for part in ("train", "validation", "test")}
    assert {part: len(lines) for part, lines in parts.items()} == written.num_pairs
    for part, lines in parts.items():
        again = read_pairs(tmp_path / "b" / part)
        assert {source.strip() for source, _ in again} == {source.strip() for source, _ in lines}
    # No source of one part is in another, and each is set aside once.
    texts = {part: [source.strip() for source, _ in lines] for part, lines in parts.items()}
    chosen = [*texts["validation"], *texts["test"]]
    assert len(chosen) == len({*chosen})
    assert not {*chosen} & {*texts["train"]}
    num_sources = len({source.strip() for source, _ in pairs})
    for part, share in shares.items():  # within four standard deviations
        expected = share * num_sources
        assert abs(len(texts[part]) - expected) < 4 * math.sqrt(expected)
    # Every pair of the corpus is in a part, or was left out for its source.
    kept = Counter(itertools.chain(*parts.values()))
    dropped = Counter(pairs) - kept
    assert not kept - Counter(pairs)
    assert dropped.total() == written.num_dropped > 0
    shared = {source for source in chosen if sum(source == s.strip() for s, _ in pairs) > 1}
    assert shared & {source.strip() for source, _ in dropped}
    # What is set aside can measure a translator.
    for source, target in parts["validation"] + parts["test"]:
        assert source.strip() != target.strip()
        assert source.strip()
        assert target.strip()


def test_share_that_is_set_aside_has_its_limits():
    for num_pairs, size in {500: 100, 2000: 100, 3000: 150, 29_000: 1450, 10**7: 2000}.items():
        shares = set_aside.choose_shares(num_pairs, ["validation", "test"])
        assert {part: share * num_pairs for part, share in shares.items()} == pytest.approx(
            {"validation": size, "test": size}
        )
    assert set_aside.choose_shares(3000, []) == {}


def test_setting_aside_leaves_nothing_if_it_fails(tmp_path, monkeypatch):
    corpus = open_pairs(tmp_path, digit_pairs(600, longest=9))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="fewer than 20 pairs could be set aside"):
        set_aside.write_parts(corpus, {"test": 0.001}, tmp_path / "data")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        set_aside.write_parts(corpus, {"test": 0.1}, tmp_path / "new" / "run" / "data")
    assert sorted(tmp_path.rglob("*")) == before


# --- The choice of settings ---------------------------------------------------------------------


# By hand, from the table in docs/train_your_own.md: layers, width, steps.
@pytest.mark.parametrize(
    ("num_pairs", "machine", "expected"),
    [
        (500, "cpu", (2, 128, 2048)),
        (10_000, "cpu", (2, 128, 2048)),
        (10_001, "cpu", (4, 128, 4096)),
        (29_000, "accelerator", (4, 128, 4096)),
        (160_000, "cpu", (4, 256, 4096)),
        (160_000, "accelerator", (6, 512, 4096)),
        (4_500_000, "cpu", (4, 256, 8192)),
        (4_500_000, "accelerator", (6, 512, 25_088)),
        (100_000_000, "accelerator", (6, 1024, 32_768)),
    ],
)
def test_sizes_are_a_row_of_the_table(num_pairs, machine, expected):
    sizes = sizing.choose_sizes(num_pairs, machine)
    assert (sizes.num_layers, sizes.d_model, sizes.batch_tokens) == expected


@pytest.mark.parametrize("machine", ["cpu", "accelerator"])
def test_sizes_grow_with_the_corpus(machine):
    rows = sizing.SIZES[machine]
    assert [row.up_to for row in rows] == sorted(row.up_to for row in rows)
    for name in ("vocab_size", "num_layers", "d_model", "batch_tokens", "steps", "made_for"):
        values = [getattr(row, name) for row in rows]
        assert values == sorted(values), name
    rates = [row.dropout_rate for row in rows]
    assert rates == sorted(rates, reverse=True)


def test_the_largest_model_needs_several_accelerators():
    sizes = [sizing.choose_sizes(10**8, "accelerator", count) for count in (1, 4, math.inf)]
    assert [row.d_model for row in sizes] == [512, 1024, 1024]


# The first two are the runs of docs/results.md. The others were counted by hand: published runs,
# then corpora that are short, long, or too large for the machine.
@pytest.mark.parametrize(
    ("num_pairs", "length", "machine", "num_units", "num_steps"),
    [
        (3000, 19.13, "cpu", 2, 6000),
        (29_000, 16.86, "cpu", 2, 8000),
        (160_000, 25, "accelerator", 1, 50_000),  # fairseq: 50,000 updates
        (4_500_000, 29, "accelerator", 8, 100_000),  # the paper's base model
        (36_000_000, 30, "accelerator", 8, 300_000),  # the paper's big model
        (500, 10, "cpu", 2, 2000),  # the fewest of the row
        (10_000, 60, "cpu", 2, 20_000),  # 68 epochs; 6,000 steps would be 20
        (250_000, 25, "cpu", 8, 50_000),
        (250_000, 25, "cpu", 2, 20_000),  # enough for a few epochs
        (60_000, 10, "cpu", 1, 12_000),  # the fewest of the row
        (4_500_000, 29, "cpu", 2, 100_000),  # the most of the row: 6 epochs
        (250_000, 25, "cpu", 64, 50_000),
    ],
)
def test_steps_follow_the_tokens_of_the_corpus_and_the_machine(
    num_pairs, length, machine, num_units, num_steps
):
    sizes = sizing.choose_sizes(num_pairs, machine, num_units)
    assert sizing.choose_num_steps(sizes, num_pairs * length, num_units) == num_steps


def test_the_table_in_the_documents_is_the_one_that_is_used():
    text = (ROOT / "docs" / "train_your_own.md").read_text()
    lines = [
        line for line in text.splitlines() if re.match(r"\| ([\d,]+|more) \| [\d,]+ \| \d \+", line)
    ]
    rows = [*sizing.SIZES["cpu"], *sizing.SIZES["accelerator"][2:]]
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        cells = [cell.strip().replace(",", "") for cell in line.strip("|").split("|")]
        numbers = (row.vocab_size, row.d_model, row.num_heads, row.d_ff, row.dropout_rate)
        assert [*map(float, (cells[1], *cells[3:6], cells[7]))] == [*map(float, numbers)]
        assert cells[0] == ("more" if math.isinf(row.up_to) else f"{row.up_to:.0f}")
        assert cells[2] == f"{row.num_layers} + {row.num_layers}"
        assert cells[6] == row.norm_position
        assert cells[9] == f"{row.schedule} {row.peak_rate:g}"
        assert cells[11] == f"{row.steps[0]} to {row.steps[1]}"
        numbers = (row.batch_tokens, row.warmup_steps, row.ema_decay, row.patience)
        assert [*map(float, (cells[8], cells[10], *cells[12:14]))] == [*map(float, numbers)]
        assert cells[14].split()[0] == str(row.made_for)
    # The passes over the corpus.
    for tokens, epochs in sizing.EPOCHS:
        assert f"| {tokens:,.0f} | {epochs:g} |" in text


def choose_tokenizer(source, target, same_script):
    """For 3,000 pairs, from the counts of characters."""
    sizes = sizing.choose_sizes(3000, "cpu")
    return sizing.choose_tokenizer(sizes, 3000, Counter(source), Counter(target), same_script)


def test_tokenizer_depends_on_characters_and_writing_systems():
    alphabet = dict.fromkeys(map(chr, range(97, 97 + 90)), 100)
    data, reasons = choose_tokenizer(alphabet, alphabet, True)
    assert (data.vocab_size, data.shared_vocab, data.character_coverage) == (3000, True, 1.0)
    assert "3,000 pairs" in reasons["data.vocab_size"]
    # 300 stray symbols in a million characters, and 0.9999 of them cover all but 100.
    stray = alphabet | {"a": 990_800} | dict.fromkeys(map(chr, range(9000, 9300)), 1)
    data, _ = choose_tokenizer(stray, alphabet, True)
    assert (data.vocab_size, data.character_coverage) == (3000, 0.9999)
    assert 200 <= sizing.num_covered(Counter(stray), 0.9999) - 90 <= 205
    # 2,800 characters cover 0.9995; 260 tokens are for bytes and special ones, two for each.
    chinese = dict.fromkeys(map(chr, range(20_000, 22_800)), 1000) | dict.fromkeys(
        map(chr, range(30_000, 31_400)), 1
    )
    data, reasons = choose_tokenizer(alphabet, chinese, False)
    assert (data.vocab_size, data.target_vocab_size) == (3000, 5900)
    assert (data.shared_vocab, data.character_coverage) == (False, 0.9995)
    assert "characters that get tokens" in reasons["data.target_vocab_size"]
    assert "3,000 pairs" in reasons["data.vocab_size"]
    assert "writing systems" in reasons["data.shared_vocab"]
    validate(
        dataclasses.replace(
            Config(), data=data, model=dataclasses.replace(Config().model, tie_embeddings="decoder")
        )
    )


@pytest.mark.parametrize(
    ("most", "longest", "max_len"),
    [(20, 30, 64), (64, 64, 64), (65, 70, 80), (65, 99, 112), (65, 101, 80), (400, 900, 256)],
)
def test_max_len_holds_nearly_all_pairs(most, longest, max_len):
    assert sizing.choose_max_len(most, longest) == max_len


@pytest.mark.parametrize("row", [row for rows in sizing.SIZES.values() for row in rows])
def test_every_row_gives_a_config_that_can_work(row):
    tokens = sizing.TokenLengths(20, 300, 500, 256, 0.01, 0.0, 1e6)
    config = settings.make_config(row, DataConfig(tokenizer="bpe"), tokens, 2000, CPU)
    validate(config)
    schedule = make_schedule(config.optimizer, row.d_model, config.train.num_steps)
    rates = [float(schedule(row.warmup_steps + step)) for step in (-2, -1, 0)]
    assert max(rates) == pytest.approx(row.peak_rate, rel=0.01)
    reasons = make_reasons(row, config, tokens, "cpu")
    assert "at most 300 tokens" in reasons["data.max_len"]
    assert "1.0%" in reasons["data.max_len"]


# --- The recipe ---------------------------------------------------------------------------------


def load_recipe(path):
    """What `--config=FILE` gets."""
    return runpy.run_path(str(path))["get_config"]()


def test_recipe_returns_the_config_that_it_was_written_from(tmp_path):
    config = Config(
        seed=7,
        model=dataclasses.replace(Config().model, d_model=96, norm_epsilon=1e-5, num_heads=3),
        data=DataConfig(source="files", train='odd "name"\\x', train_weights=(2.0, 1.0)),
    )
    reasons = {"model.d_model": "because " * 30, "train.num_steps": "the default"}
    code = {"data.test": 'str(HERE / "data" / "test")'}
    path = tmp_path / "recipe.py"
    path.write_text(recipe_text(config, 'A head with """ and \\ in it.', reasons, code))
    text = path.read_text()
    expected = dataclasses.replace(
        config, data=dataclasses.replace(config.data, test=str(tmp_path / "data" / "test"))
    )
    assert load_recipe(path) == expected
    assert "# the default\n            num_steps=100_000," in text
    assert "label_smoothing" not in text
    assert max(map(len, text.splitlines())) <= 100


# --- The command --------------------------------------------------------------------------------


LANGUAGES = ("--source_lang=en", "--target_lang=de")
MAIN = "from transformer_jax.commands.entry import main; main()"


def transformer_jax(*arguments, **kwargs):
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        **kwargs,
    )


def run_init(*arguments):
    """Runs `init` in this process, which is faster than starting one."""
    with command_help.defined_flags("init"):
        flags.FLAGS(["transformer-jax init", *arguments])
        init.run()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--train={}/nothing", *LANGUAGES), "no file {}/nothing.en"),
        (("--train={}/uneven", *LANGUAGES), "ends after line 600, but"),
        (("--train={}/empty", *LANGUAGES), "empty.en is empty"),
        (("--train={}/few", *LANGUAGES), "has 50 different pairs"),
        (("--train={}/good", "--source_lang=en", "--target_lang=en"), "are both 'en'"),
        (("--train={}/good", "--test={}/nothing", *LANGUAGES), "no file {}/nothing.en"),
        (("--train={}/good", *LANGUAGES, "--workdir={}/used"), "rm -r {}/used/recipe.py"),
        (("--train={}/good", *LANGUAGES, "--workdir={}/data_only"), "rm -r {}/data_only/data"),
        (("--train={}/good", *LANGUAGES, "--workdir={}/good.en/run"), "{}/good.en is a file"),
        (("--train={}/good", *LANGUAGES, "--workdir={}/run"), "{}/run has a run, which needs"),
        (("--train={0}/good.en,{0}/good.de", *LANGUAGES), "names {}/good twice"),
        (("--train={}/half_empty", *LANGUAGES), "half_empty.de is empty"),
        (("--train={}/utf16", *LANGUAGES), "utf16.en is UTF-16; convert it: iconv -f UTF-16"),
        (("--train={}/mac", *LANGUAGES), "mac.en has the line ends of old Macs"),
    ],
)
def test_init_refuses_what_it_cannot_use(tmp_path, arguments, message):
    pairs = digit_pairs(600, longest=9)
    for name, count in (("good", 600), ("uneven", 600), ("empty", 0)):
        write_pairs(tmp_path, name, pairs[:count])
    write_pairs(tmp_path, "few", [(f"{n}", f"Nr. {n}") for n in range(50)] * 20)
    (tmp_path / "half_empty.en").write_text("one\n")
    (tmp_path / "half_empty.de").write_text("")
    for language in ("en", "de"):
        (tmp_path / f"utf16.{language}").write_text("a\n" * 600, "utf-16")
        (tmp_path / f"mac.{language}").write_bytes(b"a\r" * 600)
    with (tmp_path / "uneven.en").open("a") as file:
        file.write("one more\n")
    for name in ("used/recipe.py", "data_only/data/train.en", "run/config.json", "run/data.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("kept")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    arguments = [argument.format(tmp_path) for argument in arguments]
    if not any(argument.startswith("--workdir") for argument in arguments):
        arguments.append(f"--workdir={tmp_path}/new")
    with pytest.raises(UserError) as error:
        run_init(*arguments)
    assert message.format(tmp_path) in str(error.value)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert not (tmp_path / "new").exists()


def test_init_writes_a_recipe_for_given_sets_and_another_device(tmp_path, capsys):
    pairs = digit_pairs(700, longest=9)
    text = "".join(f"{source}\t{target}\n" for source, target in pairs)
    (tmp_path / "all.tsv.gz").write_bytes(gzip.compress(text.encode()))
    dev = write_pairs(tmp_path, "dev", pairs[:3] + digit_pairs(20, seed=9, longest=12))
    run_init(
        *(f"--train={tmp_path}/all.tsv.gz", f"--validation={dev}", f"--test={dev}"),
        *(*LANGUAGES, f"--workdir={tmp_path}/run", "--device=gpu"),
    )
    output = capsys.readouterr().out
    assert f"  transformer-jax decode --workdir={tmp_path}/run --input={dev}.en --out" in output
    leaked = sum(source in dict(pairs) for source, _ in read_pairs(dev))
    assert f"has the sources of {leaked} of them too" in output
    assert leaked >= 3
    assert "not measured; train --dry_run" in output
    config = validate(load_recipe(tmp_path / "run" / "recipe.py"))
    assert config.data.train == f"{tmp_path}/all.tsv.gz"
    assert config.data.validation == config.data.test == dev
    assert not (tmp_path / "run" / "data").exists()
    # The text has only 11 words on each side, and a vocabulary has to fit it.
    assert config.data.vocab_size < 450
    assert "The text is so uniform" in (tmp_path / "run" / "recipe.py").read_text()


@pytest.mark.parametrize(
    ("test", "file", "command"),
    [
        ("a", "a.en", "  {0} --input=a.en --output={1}"),
        ("a.en", "a.en", "  {0} --input=a.en --output={1}"),
        ("a.de.gz", "a.en.gz", "  {0} --input=a.en.gz --output={1}"),
        ("a b.tsv", "a b.tsv", "  cat 'a b.tsv' | cut -f 1 | {0} --output={1}"),
        ("a.tsv.gz", "a.tsv.gz", "  gzip -dc a.tsv.gz | cut -f 1 | {0} --output={1}"),
        ("a.tsv.zst", "a.tsv.zst", "  zstd -dc a.tsv.zst | cut -f 1 | {0} --output={1}"),
        ("*", "a.en", "  {0} --input=a.en --output={1}"),
        ("?.tsv", "a.tsv", "  cat a.tsv | cut -f 1 | {0} --output={1}"),
        ("a.parquet", "a.parquet", "  {0} --input=text.en --output={1}"),  # text of the user
    ],
)
def test_init_prints_how_to_read_the_test_set(tmp_path, monkeypatch, test, file, command):
    monkeypatch.chdir(tmp_path)
    text = gzip.compress(b"x\ty\n") if file.endswith(".gz") else b"x\ty\n"
    if file.endswith(".zst"):
        text = pytest.importorskip("zstandard").compress(text)
    for name in {file, file.replace(".en", ".de")}:
        Path(name).write_bytes(text)
    if file.endswith(".parquet"):
        table = pytest.importorskip("pyarrow").table({"en": ["x"], "de": ["y"]})
        pytest.importorskip("pyarrow.parquet").write_table(table, file)
    corpus = text_corpora.open_text(test, "en", "de", "test")
    data = DataConfig(source_lang="en", target_lang="de")
    commands = recipe._next_commands(Path("run"), {"test": corpus}, data)
    assert commands[2] == command.format("transformer-jax decode --workdir=run", "run/test.de")


def unlike_words(count, seed=0):
    """Pairs of a small English vocabulary and of 1,500 Chinese characters."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefgh", k=5)) for _ in range(250)]
    return [
        (
            " ".join(draw.choices(words, k=6)),
            "".join(map(chr, draw.choices(range(0x4E00, 0x4E00 + 1500), k=12))),
        )
        for _ in range(count)
    ]


def test_init_gives_each_language_a_vocabulary_that_its_text_allows(tmp_path):
    """250 words allow fewer tokens than 1,500 characters need."""
    prefix = write_pairs(tmp_path, "corpus", unlike_words(3000))
    config = write_recipe(prefix, "en", "de", tmp_path / "run", measure=False)
    assert 400 < config.data.vocab_size < 2000
    assert config.data.target_vocab_size == 3300  # 260 and twice 1,500, in hundreds
    assert load_recipe(tmp_path / "run" / "recipe.py") == config


def test_init_reports_long_pairs_and_several_corpora(tmp_path):
    long = [(" ".join("abcdefgh" * 60), " ".join("hgfedcba" * 60))] * 20
    first = write_pairs(tmp_path, "first", digit_pairs(600, longest=9))
    second = write_pairs(tmp_path, "second", digit_pairs(300, seed=3, longest=9) + long)
    lines = []
    config = write_recipe(
        f"{first},{second}",
        "en",
        "de",
        tmp_path / "run",
        validation=first,
        test=second,
        measure=False,
        say=lines.append,
    )
    assert config.data.train == f"{first},{second}"
    assert "920 pairs:" in lines[1]
    (warning,) = [line for line in lines if "WARNING: 2.2% of the pairs are left out" in line]
    assert "more than 256 tokens" in warning
    assert "left out: 2.2%" in (tmp_path / "run" / "recipe.py").read_text()


def test_init_chooses_how_bleu_counts_where_a_dictionary_is_missing(tmp_path, monkeypatch):
    def missing(name):
        if name == "ja-mecab":
            raise UserError("not installed")

    monkeypatch.setattr(bleu_tokenizers, "make_bleu", missing)
    prefix = write_pairs(tmp_path, "corpus", digit_pairs(600, longest=9))
    for suffix in ("en", "de"):
        (tmp_path / f"corpus.{suffix}").rename(tmp_path / f"corpus.{suffix.replace('de', 'ja')}")
    lines = []
    config = write_recipe(prefix, "en", "ja", tmp_path / "run", measure=False, say=lines.append)
    assert config.data.bleu_tokenizer == "char"
    assert "sacrebleu[ja]" in (tmp_path / "run" / "recipe.py").read_text()
    assert any("WARNING" in line and "ja-mecab" in line for line in lines)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_init_keeps_the_recipe_when_the_measurement_ends(tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(recipe, "estimate_run", fail)
    prefix = write_pairs(tmp_path, "corpus", digit_pairs(600, longest=9))
    lines = []
    with contextlib.suppress(RuntimeError):
        write_recipe(prefix, "en", "de", tmp_path / "run", say=lines.append)
    assert f"wrote {tmp_path}/run/recipe.py" in lines
    config = validate(load_recipe(tmp_path / "run" / "recipe.py"))
    assert config.data.train == str(tmp_path / "run" / "data" / "train")
    assert ("next:" in lines) == (error is KeyboardInterrupt)


@pytest.mark.slow
def test_run_estimate_divides_a_step_until_it_fits(tmp_path):
    config = tiny_config(tmp_path)
    config = dataclasses.replace(
        config, data=dataclasses.replace(config.data, batch_tokens=4096, max_len=32)
    )
    pairs = digit_pairs(300)
    free = run_estimate.estimate_run(config, pairs, 100, 8)
    assert free.config == config
    tight = run_estimate.estimate_run(config, pairs, 100, 8, memory=round(0.7 * free.step_bytes))
    assert tight.config.train.accumulate_steps in (2, 4, 8)
    assert tight.step_bytes <= 0.9 * 0.7 * free.step_bytes
    assert "in 2 parts" in run_estimate.describe_estimate(tight, None)[0] or (
        tight.config.train.accumulate_steps > 2
    )
    rest = dataclasses.replace(tight.config.train, accumulate_steps=1)
    assert dataclasses.replace(tight.config, train=rest) == config


@pytest.mark.slow
def test_init_prints_commands_that_train_evaluate_and_translate(tmp_path):
    corpus = write_pairs(tmp_path, "corpus", [*dict(digit_pairs(3000, longest=5)).items()])
    workdir = tmp_path / "my run"
    done = transformer_jax("init", f"--train={corpus}", *LANGUAGES, f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"time: about [\w ]+ for all", done.stdout)
    commands = re.findall(r"^  transformer-jax (.*)$", done.stdout, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["train", "eval", "decode"]
    for command in commands:
        arguments = shlex.split(command)
        if arguments[0] == "train":  # all of it takes minutes
            for setting in ("train.num_steps=20", "train.eval_every_steps=10"):
                arguments.append(f"--config.{setting}")
            arguments += ["--config.optimizer.warmup_steps=5", "--noreport"]
        done = transformer_jax(*arguments)
        assert done.returncode == 0, done.stderr
        if arguments[0] == "eval":
            assert "BLEU" in done.stdout
    references = (workdir / "data" / "test.de").read_text().splitlines()
    assert 100 < len(references) < 200
    assert len((workdir / "test.de").read_text().splitlines()) == len(references)
