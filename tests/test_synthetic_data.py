"""Pairs of a text and its translations, and `distill`, which trains on them."""

import dataclasses
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import digit_pairs, run_command, write_pairs
from tests.huggingface_models import edit_tensors, small_model, write
from transformer_jax import Translator
from transformer_jax.commands import distillation
from transformer_jax.commands.translation_job import Job
from transformer_jax.config import DataConfig
from transformer_jax.data.sources import open_corpora
from transformer_jax.extras.documents.training_pairs import PairRules
from transformer_jax.translator.translation import Translation
from transformer_jax.workdir import folder as workdir_lib


def translation(text, log_prob=-1.0, num_tokens=3):
    return Translation(text, log_prob, log_prob, ("x",) * num_tokens, (5,) * num_tokens)


N_BEST = [translation("Ein Hund."), translation("Ein Hund."), translation("Der\tHund\n.", -8.0)]


@pytest.mark.parametrize(
    ("rules", "lines"),
    [
        (PairRules(), ["A dog.\tEin Hund."]),
        (PairRules(is_back=True, tag="<BT>"), ["<BT> Ein Hund.\tA dog."]),
        # The second is equal to the first; there is no fourth.
        (PairRules(n_best=4), ["A dog.\tEin Hund.", "", "A dog.\tDer Hund .", ""]),
        # -8 over three tokens and the end symbol is -2 a token.
        (PairRules(n_best=3, min_log_prob=-2.0), ["A dog.\tEin Hund.", "", "A dog.\tDer Hund ."]),
        (PairRules(n_best=3, min_log_prob=-1.9), ["A dog.\tEin Hund.", "", ""]),
    ],
)
def test_translations_become_pairs(rules, lines):
    assert rules.lines("A\tdog.", N_BEST, "en", "de") == lines


def test_translations_that_are_wrong_become_no_pairs():
    loop = [translation("Hund Hund Hund Hund Hund Hund")]
    assert PairRules().lines("A dog.", loop, "en", "de") == [""]
    assert PairRules(guards=False).lines("A dog.", loop, "en", "de") == [
        "A dog.\tHund Hund Hund Hund Hund Hund"
    ]
    assert PairRules(guards=False).lines("", [translation("Hund")], "en", "de") == [""]
    assert PairRules().lines("A \0 dog.", [translation("Ein Hund.")], "en", "de") == [""]
    assert PairRules(guards=False).lines("A dog.", [translation("")], "en", "de") == [""]


def test_translate_corpus_writes_pairs_that_training_reads(tiny_run, translator, tmp_path):
    texts = [source for source, _ in digit_pairs(12, seed=3)] + [""]
    (tmp_path / "mono.en").write_text("".join(text + "\n" for text in texts))
    arguments = ["translate-corpus", f"--model={tiny_run[1]}", f"--input={tmp_path}/mono.en"]
    arguments += [f"--output={tmp_path / 'out'}", "--beam_size=2", "--chunk=5", "--noguards"]
    back = ["--write=back_pairs", "--tag=<BT>", "--n_best=2", f"--ensemble={tiny_run[1]}@latest"]
    mistake = run_command(*arguments, "--write=pairs", "--n_best=5")  # of a beam of 2
    assert (mistake.returncode, "needs --beam_size" in mistake.stderr) == (2, True)
    done = run_command(*arguments, *back)
    assert done.returncode == 0, done.stderr
    assert "mono.en.tsv: 13 lines, 24 pairs, 2 blank" in done.stdout
    lines = (tmp_path / "out" / "mono.en.tsv").read_text().split("\n")
    both = Translator.load(tiny_run[1], ensemble=[(tiny_run[1], "latest")])
    n_best = both.translate(texts[:-1], n_best=2, beam_size=2)
    want = [
        f"<BT> {one.text.strip()}\t{text}"
        for text, of_text in zip(texts[:-1], n_best, strict=True)
        for one in of_text
    ]
    assert lines == [*want, "", "", ""]  # two for the last text, which is empty
    data = DataConfig(source="files", train=str(tmp_path / "out" / "*.tsv"), source_lang="de")
    (corpus,) = open_corpora(dataclasses.replace(data, target_lang="en"), "train")
    assert [pair for pair in corpus.read() if pair[0]] == [tuple(x.split("\t")) for x in want]
    for wrong, message in (
        (["--write=pairs", "--tag=a b"], "--tag='a b' must be one word"),
        (["--n_best=2"], "--n_best is for pairs: add --write=pairs"),
        (["--noguards"], "--guards is for pairs: add --write=pairs"),
        (["--write=pairs", f"--output={tmp_path}"], "has the sources, so its pairs would be"),
        (["--write=pairs"], "has translations by another model, checkpoint or settings"),
    ):
        done = run_command(*arguments, *wrong)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_data_of_the_student_are_its_pairs_with_or_without_the_corpora():
    data = DataConfig(train="a,b", train_weights=(2.0, 1.0), train_languages=("en-de", "en-fr"))
    alone = distillation.student_data(data, ["1.tsv", "2.tsv"], keep_corpus=False)
    assert (alone.train, alone.train_weights) == ("1.tsv,2.tsv", (2.0, 1.0))
    with_corpora = distillation.student_data(data, ["1.tsv", "2.tsv"], keep_corpus=True)
    assert with_corpora.train == "1.tsv,2.tsv,a,b"
    assert with_corpora.train_weights == (2.0, 1.0) * 2
    assert with_corpora.train_languages == ("en-de", "en-fr") * 2


@pytest.fixture(scope="module")
def task(tiny_run, tmp_path_factory):
    """What a student of two teachers is trained on: command, arguments, folder, pairs, names."""
    tmp_path = tmp_path_factory.mktemp("distilled")
    pairs = digit_pairs(40, seed=5)
    names = {
        split: write_pairs(tmp_path, split, some)
        for split, some in (("train", pairs[:30]), ("val", pairs[30:]))
    }
    student = tmp_path / "student"
    data = {"source": "files", "train": names["train"], "vocab_size": 295}
    data |= {"validation": names["val"], "test": names["val"]}
    arguments = [f"--config.data.{name}={value}" for name, value in data.items()]
    arguments += ["--config.model.num_decoder_layers=1", "--config.train.num_steps=3"]
    # One device, as `tiny_run`, whose programs it shares.
    arguments += ["--config.parallel.data=1", f"--workdir={student}"]
    teachers = f"--teacher={tiny_run[1]},{tiny_run[1]}@latest"
    distill = ["distill", "--config=tiny", teachers, *arguments, "--beam_size=2", "--noguards"]
    return SimpleNamespace(
        command=distill,
        arguments=[teachers, *arguments],
        student=student,
        pairs=pairs[:30],
        names=names,
    )


@pytest.fixture(scope="module")
def distilled(task):
    """The task, after a training; tests leave the student as it is."""
    done = run_command(*task.command, "--keep_corpus")
    assert done.returncode == 0, done.stderr
    return task


def test_distill_translates_once_and_trains_on_the_translations(tiny_run, translator, distilled):
    distill, student = distilled.command, distilled.student
    written = student / "distilled" / "1.en-de" / "1.en.tsv"
    both = Translator.load(tiny_run[1], ensemble=[(tiny_run[1], "latest")])
    sources = [source for source, _ in distilled.pairs]
    texts = [out.text for out in both.translate(sources, beam_size=2)]
    assert written.read_text().splitlines() == [
        f"{source}\t{text.strip()}" for source, text in zip(sources, texts, strict=True)
    ]
    config = workdir_lib.read_config(student)
    assert config.data.train == f"{written},{distilled.names['train']}"
    assert config.model.num_decoder_layers == 1
    assert Translator.load(student, "latest").checkpoint_step == 3
    # Again: nothing is translated, and the run is complete.
    kept = written.stat().st_mtime_ns
    again = run_command(*distill, "--keep_corpus")
    assert again.returncode == 0, again.stderr
    assert written.stat().st_mtime_ns == kept
    record = json.loads((student / "distilled" / "1.en-de" / ".job.json").read_text())
    steps = [Translator.load(tiny_run[1], name).checkpoint_step for name in ("best", "latest")]
    assert record["ensemble"] == [[str(tiny_run[1]), str(steps[1])]]
    assert record["steps"] == [[step] for step in steps]
    # Neither the forms of the folders' names nor the size of batches makes it another job, and the
    # student's folder may be moved.
    teacher = os.path.relpath(tiny_run[1])
    same = [*distill, "--keep_corpus", f"--teacher={teacher},{teacher}@latest", "--batch_tokens=99"]
    shutil.copytree(student, student.with_name("moved"))
    again = run_command(*same, f"--workdir={os.path.relpath(student.with_name('moved'))}")
    assert again.returncode == 0, again.stderr
    assert (student.with_name("moved") / written.relative_to(student)).stat().st_mtime_ns == kept


def test_distill_continues_an_interrupted_file(translator, tiny_run, task, monkeypatch):
    calls, translate = [], Translator.translate

    def interrupted(self, texts, **settings):
        calls.append(len(texts))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return translate(self, texts, **settings)

    monkeypatch.setattr(Translator, "translate", interrupted)
    other = task.student.with_name("other")
    distill = [*task.command, f"--workdir={other}", "--n_best=2", "--chunk=8"]
    assert run_command(*distill).returncode == 130
    written = other / "distilled" / "1.en-de" / "1.en.tsv"
    assert not written.exists()
    done = run_command(*distill)
    assert done.returncode == 0, done.stderr
    assert calls == [8, 8, 8, 8, 6]  # the second one failed
    both = Translator.load(tiny_run[1], ensemble=[(tiny_run[1], "latest")])
    sources = [source for source, _ in task.pairs]
    n_best = translate(both, sources, n_best=2, beam_size=2)
    rules = PairRules(n_best=2, guards=False)
    pairs = [rules.lines(*one, "en", "de") for one in zip(sources, n_best, strict=True)]
    assert written.read_text().splitlines() == [line for lines in pairs for line in lines]


def test_translations_are_those_of_the_lines_of_pairs():
    lines = ["<BT> Ein Hund\tA dog\n<BT> Der\tA", ""]
    assert PairRules(True, "<BT>").translations(lines) == ["Ein Hund", "Der", ""]
    assert PairRules().translations(["A\tEin Hund\n"]) == ["Ein Hund", ""]


def test_a_job_has_the_digest_of_a_model_that_is_no_run(tokenizers, tmp_path):
    folder = write(tmp_path / "m", small_model(tokenizers))

    def description(path):
        return Job.of_models([(str(path), "best")], {}).description()

    first = description(folder)
    (folder / "README.md").write_text("notes")
    assert description(os.path.relpath(folder)) == first
    edit_tensors(lambda tensors: tensors["model.shared.weight"].fill(1))(folder)
    assert description(folder) == first | {"contents": description(folder)["contents"]} != first


def test_distill_refuses_what_is_another_job(distilled, tmp_path):
    distill = distilled.command
    for more, message in (
        (["--keep_corpus", "--min_log_prob=-9"], "by another model, checkpoint or settings"),
        ([], "has a run on other training data"),  # the run has the corpus too
        (
            [f"--workdir={tmp_path / 'other'}", "--target_lang=fr"],
            "this model translates from en to de only",
        ),
    ):
        done = run_command(*distill, *more)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    sources = Path(f"{distilled.names['train']}.en")
    kept = sources.read_text()
    sources.write_text("one\n" * 30)
    refused = run_command(*distill, "--keep_corpus")
    sources.write_text(kept)
    assert refused.returncode == 2
    assert "has changed since" in refused.stderr
    for wrong, message in (
        (["distill", *distilled.arguments], "--config=RECIPE is missing"),
        ([*distill, "--config.data.source=tfds"], "config.data.source=tfds: `distill` reads"),
        ([*distill, "--config.data.context_sentences=1"], "single sentences"),
        ([*distill, "--keep_corpus", "--config.data.stages=('0:1',)"], "--keep_corpus has twice"),
        ([*distill, f"--workdir={tmp_path}/a,b"], "may have none of"),
    ):
        done = run_command(*wrong)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
