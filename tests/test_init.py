"""`init`: the look at a corpus, the choice of settings, the share set aside, the recipe."""

import dataclasses
import gzip
import itertools
import math
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

from tests.conftest import digit_pairs, write_pairs
from transformer_jax.commands import command_help, init
from transformer_jax.config import Config, DataConfig, sizing, validate
from transformer_jax.config.recipe_file import recipe_text
from transformer_jax.data import corpus_survey, set_aside, sources
from transformer_jax.data.writing_systems import script_shares
from transformer_jax.errors import UserError
from transformer_jax.training.optimizer import make_schedule

ROOT = Path(__file__).parent.parent


def open_pairs(folder, pairs, name="corpus"):
    return sources.open_text(write_pairs(folder, name, pairs), "en", "de", "train")


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
    survey = corpus_survey.survey_corpus(open_pairs(tmp_path, pairs))
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
    surveys = [corpus_survey.survey_corpus(corpus, sample_size=1000) for _ in range(2)]
    assert surveys[0].sample == surveys[1].sample
    assert surveys[0].num_pairs == 5000
    assert surveys[0].is_sampled
    numbers = [int(source.split()[1]) for source, _ in surveys[0].sample]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 1000
    # The mean of 1,000 of 0 .. 4,999 has a standard deviation of 41.
    assert abs(np.mean(numbers) - 2499.5) < 4 * 41


def test_survey_warns_of_lines_that_are_no_translations(tmp_path):
    pairs = digit_pairs(600, longest=12)
    shifted = list(zip([s for s, _ in pairs], [t for _, t in pairs[1:] + pairs[:1]], strict=True))
    good = corpus_survey.survey_corpus(open_pairs(tmp_path, pairs))
    bad = corpus_survey.survey_corpus(open_pairs(tmp_path, shifted, "shifted"))
    assert good.correlation > 0.9
    assert not good.looks_misaligned
    assert abs(bad.correlation) < 0.2
    assert bad.looks_misaligned
    assert "WARNING" in "".join(corpus_survey.describe_survey(bad))
    assert "WARNING" not in "".join(corpus_survey.describe_survey(good))


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
    sizes = {"validation": 30, "test": 20}
    written = set_aside.set_aside(open_pairs(tmp_path, pairs), sizes, tmp_path / "a")
    random.Random(2).shuffle(pairs)
    set_aside.set_aside(open_pairs(tmp_path, pairs, "again"), sizes, tmp_path / "b")
    parts = {part: read_pairs(tmp_path / "a" / part) for part in ("train", "validation", "test")}
    assert {part: len(lines) for part, lines in parts.items()} == written.num_pairs
    for part, lines in parts.items():
        again = read_pairs(tmp_path / "b" / part)
        assert {source.strip() for source, _ in again} == {source.strip() for source, _ in lines}
    # No source of one part is in another, and each is set aside once.
    texts = {part: [source.strip() for source, _ in lines] for part, lines in parts.items()}
    chosen = {*texts["validation"], *texts["test"]}
    assert len(texts["validation"]) == 30
    assert len(texts["test"]) == 20
    assert len(chosen) == 50
    assert not chosen & {*texts["train"]}
    # Every pair of the corpus is in a part, or was left out for its source.
    kept = Counter(itertools.chain(*parts.values()))
    dropped = Counter(pairs) - kept
    assert not kept - Counter(pairs)
    assert dropped.total() == written.num_dropped > 0
    assert {source.strip() for source, _ in dropped} <= chosen
    # What is set aside can measure a translator.
    for source, target in parts["validation"] + parts["test"]:
        assert source.strip() != target.strip()
        assert source.strip()
        assert target.strip()


def test_share_that_is_set_aside_has_its_limits():
    sizes = {500: 100, 2000: 100, 3000: 150, 29_000: 1450, 10**7: 2000}
    assert {count: set_aside.share_size(count) for count in sizes} == sizes


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
    for name in ("vocab_size", "num_layers", "d_model", "batch_tokens", "num_steps"):
        values = [getattr(row, name) for row in rows]
        assert values == sorted(values), name
    rates = [row.dropout_rate for row in rows]
    assert rates == sorted(rates, reverse=True)


def test_the_table_in_the_documents_is_the_one_that_is_used():
    text = (ROOT / "docs" / "train_your_own.md").read_text()
    lines = [line for line in text.splitlines() if re.match(r"\| ([\d,]+|more) \| [\d,]+ \|", line)]
    rows = [*sizing.SIZES["cpu"], *sizing.SIZES["accelerator"][2:]]
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        cells = [cell.strip().replace(",", "") for cell in line.strip("|").split("|")]
        numbers = (row.vocab_size, row.d_model, row.num_heads, row.d_ff, row.dropout_rate)
        assert [*map(float, (cells[1], *cells[3:6], cells[7]))] == [*map(float, numbers)]
        assert cells[0] == ("more" if math.isinf(row.up_to) else f"{row.up_to:.0f}")
        assert cells[2] == f"{row.num_layers} + {row.num_layers}"
        assert cells[6] == row.norm_position
        assert cells[10] == f"{row.schedule} {row.peak_rate:g}"
        numbers = (row.label_smoothing, row.batch_tokens, row.warmup_steps, row.num_steps)
        assert [*map(float, (*cells[8:10], *cells[11:13]))] == [*map(float, numbers)]
        assert [*map(float, cells[13:15])] == [row.ema_decay, row.patience]


def test_tokenizer_depends_on_characters_and_writing_systems():
    sizes = sizing.choose_sizes(3000, "cpu")
    data, reasons = sizing.choose_tokenizer(sizes, sizing.TextFacts(3000, True, 90))
    assert (data.vocab_size, data.shared_vocab, data.character_coverage) == (3000, True, 1.0)
    assert "3,000 pairs" in reasons["data.vocab_size"]
    # 260 tokens for bytes and special ones, and two for each of 0.7 * 4,000 characters.
    data, reasons = sizing.choose_tokenizer(sizes, sizing.TextFacts(3000, False, 4000))
    assert (data.vocab_size, data.shared_vocab, data.character_coverage) == (5900, False, 0.9995)
    assert "2,800 characters" in reasons["data.vocab_size"]
    assert "writing systems" in reasons["data.shared_vocab"]


@pytest.mark.parametrize(
    ("most", "longest", "max_len"),
    [(20, 30, 64), (64, 64, 64), (65, 70, 80), (65, 99, 112), (65, 101, 80), (400, 900, 256)],
)
def test_max_len_holds_nearly_all_pairs(most, longest, max_len):
    sizes = sizing.choose_sizes(3000, "cpu")
    tokens = sizing.TokenFacts(20, most, longest, 60_000)
    config, reasons = sizing.make_config(sizes, DataConfig(), tokens, 100, "cpu")
    assert config.data.max_len == max_len
    assert config.model.max_len >= 2 * max_len
    assert f"at most {most} tokens" in reasons["data.max_len"]


@pytest.mark.parametrize("row", [row for rows in sizing.SIZES.values() for row in rows])
def test_every_row_gives_a_config_that_can_work(row):
    tokens = sizing.TokenFacts(20, 300, 500, 1e6)
    config, _ = sizing.make_config(row, DataConfig(tokenizer="bpe"), tokens, 2000, "cpu")
    validate(config)
    schedule = make_schedule(config.optimizer, row.d_model, row.num_steps)
    rates = [float(schedule(row.warmup_steps + step)) for step in (-2, -1, 0)]
    assert max(rates) == pytest.approx(row.peak_rate, rel=0.01)


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
MAIN = "from transformer_jax.commands.main import main; main()"


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
        (LANGUAGES, "--train is missing"),
        (("--train={}/nothing", *LANGUAGES), "no file {}/nothing.en"),
        (("--train={}/uneven", *LANGUAGES), "ends after line 600, but"),
        (("--train={}/empty", *LANGUAGES), "empty.en is empty"),
        (("--train={}/few", *LANGUAGES), "has 50 different pairs"),
        (("--train={}/good", "--source_lang=en", "--target_lang=en"), "are both 'en'"),
        (("--train={}/good", "--test={}/nothing", *LANGUAGES), "no file {}/nothing.en"),
        (("--train={}/good", *LANGUAGES, "--workdir={}/used"), "recipe.py exists"),
        (("--train={}/good", *LANGUAGES, "--workdir={}/data_only"), "train.en exists"),
    ],
)
def test_init_refuses_what_it_cannot_use(tmp_path, arguments, message):
    pairs = digit_pairs(600, longest=9)
    for name, count in (("good", 600), ("uneven", 600), ("empty", 0)):
        write_pairs(tmp_path, name, pairs[:count])
    write_pairs(tmp_path, "few", [(f"{n}", f"Nr. {n}") for n in range(50)] * 20)
    with (tmp_path / "uneven.en").open("a") as file:
        file.write("one more\n")
    for name in ("used/recipe.py", "data_only/data/train.en"):
        (tmp_path / name).parent.mkdir(parents=True)
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
    assert "not measured here" in output
    config = validate(load_recipe(tmp_path / "run" / "recipe.py"))
    assert config.data.train == f"{tmp_path}/all.tsv.gz"
    assert config.data.validation == config.data.test == dev
    assert not (tmp_path / "run" / "data").exists()
    # The text has only 11 words on each side, and a vocabulary has to fit it.
    assert config.data.vocab_size < 450
    assert "The text is so uniform" in (tmp_path / "run" / "recipe.py").read_text()


@pytest.mark.parametrize(
    ("test", "files", "command"),
    [
        ("a", ["a.en"], ("", "a.en")),
        ("a", ["a.en.gz"], ("", "a.en.gz")),
        ("a b.tsv", ["a b.tsv"], ("cat 'a b.tsv' | cut -f 1 | ", "")),
        ("a.tsv.gz", ["a.tsv.gz"], ("gzip -dc a.tsv.gz | cut -f 1 | ", "")),
    ],
)
def test_init_prints_how_to_read_the_test_set(tmp_path, monkeypatch, test, files, command):
    monkeypatch.chdir(tmp_path)
    for name in files:
        Path(name).touch()
    with command_help.defined_flags("init"):
        flags.FLAGS(["init", "--source_lang=en"])
        assert init._how_to_read(test) == command


@pytest.mark.slow
def test_init_prints_commands_that_train_evaluate_and_translate(tmp_path):
    corpus = write_pairs(tmp_path, "corpus", [*dict(digit_pairs(3000, longest=5)).items()])
    workdir = tmp_path / "my run"
    done = transformer_jax("init", f"--train={corpus}", *LANGUAGES, f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"time: about \S+ (s|min|h) for all", done.stdout)
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
    assert len(references) == 100
    assert len((workdir / "test.de").read_text().splitlines()) == 100
