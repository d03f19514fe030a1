"""Writes `v<version>.tar.gz`: a work directory and an export that every later version must read.

    python tests/golden/make.py          # in the checkout of a release, once

The archive has the run (parameters, their average, optimizer state), its StableHLO export, the text
it was trained on, and `expected.json`: what this version translates with the run as it is, and
after it was resumed for `MORE_STEPS`. `tests/test_golden.py` compares.
"""

import dataclasses
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import sentencepiece

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import transformer_jax  # noqa: E402
from configs import tiny  # noqa: E402
from tests.conftest import digit_pairs, write_pairs  # noqa: E402
from transformer_jax import Translator  # noqa: E402
from transformer_jax.training.loop import train  # noqa: E402
from transformer_jax.workdir import folder as workdir_lib  # noqa: E402

NUM_STEPS, MORE_STEPS = 1500, 40
# Of one to three digits, written in reverse order.
SOURCES = [
    "nine eight seven",
    "four four",
    "zero one two",
    "six",
    "five three",
    "two nine one",
    "eight zero",
    "three three three",
    "seven",
    "one five nine",
]


def write_tokenizer(path: str) -> None:
    """A SentencePiece model without normalisation, whose tables would be most of the archive."""
    text = Path("train.en").read_text() + Path("train.de").read_text()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()),
        model_writer=model,
        vocab_size=46,
        character_coverage=1.0,
        normalization_rule_name="identity",
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    Path(path).write_bytes(model.getvalue())


def make_config():
    config, replace = tiny.get_config(), dataclasses.replace
    return replace(
        config,
        model=replace(config.model, dropout_rate=0.1, max_len=16),
        data=replace(
            config.data,
            source="files",
            train="train",
            validation="validation",
            test="validation",
            tokenizer_model="words.model",
            max_len=16,
            cache_dir="cache",
        ),
        train=replace(
            config.train,
            num_steps=NUM_STEPS,
            eval_every_steps=NUM_STEPS,
            log_every_steps=100,
            checkpoint_every_steps=NUM_STEPS,
            ema_decay=0.99,
        ),
        optimizer=replace(config.optimizer, warmup_steps=20, clip_norm=1.0),
        decode=replace(config.decode, max_decode_len=16),
        parallel=replace(config.parallel, data=1),
        checkpoint=replace(config.checkpoint, max_to_keep=1),
    )


def translations(workdir: str) -> dict:
    """What the newest checkpoint of a run makes of `SOURCES`, and how likely its test set is."""
    translator = Translator.load(workdir, "latest")
    pairs = [Path(f"validation.{lang}").read_text().splitlines() for lang in ("en", "de")]
    return {
        "greedy": [out.text for out in translator.translate(SOURCES, beam_size=1)],
        "beam": [out.text for out in translator.translate(SOURCES, beam_size=4)],
        "scores": translator.score(*pairs),
    }


def resume(workdir: str) -> float:
    """Resumes a run; returns the loss of its last steps."""
    config = workdir_lib.read_config(workdir)
    more = dataclasses.replace(
        config.train, num_steps=NUM_STEPS + MORE_STEPS, eval_every_steps=0, log_every_steps=20
    )
    train(dataclasses.replace(config, train=more), workdir)
    return json.loads(Path(workdir, "metrics.jsonl").read_text().splitlines()[-1])["train_loss"]


def main() -> None:
    archive = Path(__file__).parent / f"v{transformer_jax.__version__}.tar.gz"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_pairs(Path(), "train", digit_pairs(250, seed=0, longest=3))
        write_pairs(Path(), "validation", digit_pairs(20, seed=1, longest=3))
        write_tokenizer("words.model")
        train(make_config(), "run")
        subprocess.run(
            [
                sys.executable,
                ROOT / "export.py",
                "--workdir=run",
                "--format=stablehlo",
                "--output=exported",
                "--checkpoint=latest",
                "--sentences=validation.en",
            ],
            check=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        as_written = translations("run")
        texts = [f"{name}.{lang}" for name in ("train", "validation") for lang in ("en", "de")]
        with tarfile.open(archive, "w:gz") as tar:
            for name in ("run", "exported", *texts):
                tar.add(name, filter=lambda entry: None if ".lock" in entry.name else entry)
            loss = resume("run")
            expected = {
                "sources": SOURCES,
                "num_steps": NUM_STEPS + MORE_STEPS,
                "as_written": as_written,
                "resumed": {**translations("run"), "train_loss": loss},
            }
            Path("expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1))
            tar.add("expected.json")
        os.chdir(ROOT)
    print(f"wrote {archive}: {archive.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
