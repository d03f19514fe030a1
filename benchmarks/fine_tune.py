"""Fine-tunes random mT5 and mBART models on number words, and translates with three engines.

    python benchmarks/fine_tune.py --folder=runs/fine_tune --json=fine_tune.json

The models are made by transformers, with its initialization, and have a SentencePiece tokenizer of
their family. Training starts from their directory. The result is exported for Hugging Face and
CTranslate2, which translate the test set from what was exported. The same command again continues.
Needs torch, transformers and ctranslate2: `pip install -c constraints.txt -e '.[interop]'`.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import jax
import sentencepiece
import torch
import transformers
from absl import app, flags
from timing import write_json

from transformer_jax import Translator
from transformer_jax.workdir import machine

FLAGS = flags.FLAGS
ROOT = Path(__file__).parent.parent
LENGTH = 64


def train_spm(corpus: Path, **ids: Any) -> bytes:
    """A unigram model of both languages, of few tokens, so that parts of numbers are separate."""
    model_file = corpus / "spm"
    sentencepiece.SentencePieceTrainer.train(
        input=f"{corpus}/train.en,{corpus}/train.de",
        model_prefix=str(model_file),
        vocab_size=380,
        character_coverage=1.0,
        minloglevel=2,
        hard_vocab_limit=False,
        **ids,
    )
    return model_file.with_suffix(".model").read_bytes()


def make_mt5(corpus: Path, folder: Path) -> None:
    """An mT5 directory."""
    folder.mkdir(parents=True)
    (folder / "spiece.model").write_bytes(
        train_spm(corpus, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    )
    tokenizer = transformers.T5Tokenizer.from_pretrained(folder, extra_ids=0)
    config = transformers.MT5Config(
        vocab_size=len(tokenizer),
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        dropout_rate=0.0,
    )
    model = transformers.MT5ForConditionalGeneration(config)
    with torch.no_grad():
        # Drawn with a standard deviation of 1, which is also that of its inputs.
        model.lm_head.weight.mul_(config.d_model**-0.5)
    save(model, tokenizer, folder)


def make_mbart(corpus: Path, folder: Path) -> None:
    """An mBART-50 directory, from English to German."""
    folder.mkdir(parents=True)
    (folder / "sentencepiece.bpe.model").write_bytes(train_spm(corpus))
    tokenizer = transformers.MBart50Tokenizer.from_pretrained(
        folder, src_lang="en_XX", tgt_lang="de_DE"
    )
    config = transformers.MBartConfig(
        vocab_size=len(tokenizer),
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_position_embeddings=LENGTH,
        decoder_start_token_id=2,
        init_std=128**-0.5,  # 0.02 is for a width of 1,024
    )
    save(transformers.MBartForConditionalGeneration(config), tokenizer, folder)


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Writes a directory."""
    model.generation_config.update(num_beams=1, max_length=LENGTH, forced_eos_token_id=None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# Family -> function that makes it, names of the languages.
FAMILIES: dict[str, tuple[Callable[[Path, Path], None], tuple[str, str]]] = {
    "mt5": (make_mt5, ("en", "de")),
    "mbart": (make_mbart, ("en_XX", "de_DE")),
}


def run(script: str, *arguments: str) -> None:
    """Runs one of our commands.

    Raises:
      SystemExit: it failed.
    """
    command = [sys.executable, str(ROOT / f"{script}.py"), *arguments]
    print("+", *command[1:], flush=True)
    if subprocess.run(command).returncode:
        raise SystemExit(f"{script} failed")


def make_corpus(folder: Path) -> Path:
    """Number words; languages are named as each family names them."""
    corpus = folder / "numbers"
    if not (corpus / "test.de_DE").exists():
        command = [sys.executable, "-m", "transformer_jax", "data", "number_words"]
        subprocess.run([*command, f"--output={corpus}"], check=True, cwd=ROOT)
        for split in ("train", "validation", "test"):
            for language, code in (("en", "en_XX"), ("de", "de_DE")):
                text = (corpus / f"{split}.{language}").read_bytes()
                (corpus / f"{split}.{code}").write_bytes(text)
    return corpus


def huggingface_texts(folder: Path, texts: list[str], target: str) -> list[str]:
    """Greedy translations by transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    forced = {}
    if "_" in target:
        forced = {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(target)}
    outputs = []
    for start in range(0, len(texts), 100):
        batch = tokenizer(texts[start : start + 100], return_tensors="pt", padding=True)
        ids = model.generate(**batch, num_beams=1, max_length=LENGTH, **forced)
        outputs += tokenizer.batch_decode(ids, skip_special_tokens=True)
    return outputs


def ctranslate2_texts(folder: Path, tokenizer: Any, texts: list[str], target: str) -> list[str]:
    """Greedy translations by ctranslate2, with transformers' tokenizer."""
    translator = ctranslate2.Translator(str(folder), device="cpu")
    # Without the end symbol: ctranslate2 adds it.
    sources = [tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids[:-1]) for text in texts]
    prefix = [[target]] * len(texts) if "_" in target else None
    results = translator.translate_batch(
        sources, target_prefix=prefix, beam_size=1, max_decoding_length=LENGTH
    )
    ids = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def measure(family: str, corpus: Path) -> dict[str, Any]:
    """Trains, exports and translates; one row."""
    make, (source, target) = FAMILIES[family]
    folder = Path(FLAGS.folder) / f"{family}_{FLAGS.steps}_{FLAGS.learning_rate:g}"
    started, workdir = folder / "random", folder / "run"
    if not (started / "config.json").exists():
        torch.manual_seed(0)
        make(corpus, started)
    run(
        "train",
        "--config=quickstart",
        f"--workdir={workdir}",
        f"--config.train.init_from={started}",
        "--config.data.source=files",
        *(f"--config.data.{s}={corpus}/{s}" for s in ("train", "validation", "test")),
        f"--config.data.source_lang={source}",
        f"--config.data.target_lang={target}",
        f"--config.train.num_steps={FLAGS.steps}",
        f"--config.optimizer.learning_rate={FLAGS.learning_rate}",
    )
    exports = {"marian": folder / "huggingface", "ctranslate2": folder / "ctranslate2"}
    for kind, output in exports.items():
        shutil.rmtree(output, ignore_errors=True)
        run("export", f"--workdir={workdir}", f"--format={kind}", f"--output={output}")
    texts = (corpus / "test.en").read_text(encoding="utf-8").splitlines()
    want = (corpus / "test.de").read_text(encoding="utf-8").splitlines()
    translator = Translator.load(workdir)
    ours = [out.text for out in translator.translate(texts, beam_size=1)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(exports["marian"])
    peers = {
        "huggingface": huggingface_texts(exports["marian"], texts, target),
        "ctranslate2": ctranslate2_texts(exports["ctranslate2"], tokenizer, texts, target),
    }
    return {
        "family": family,
        "steps": FLAGS.steps,
        "learning_rate": FLAGS.learning_rate,
        "sentences": len(texts),
        "exact_match": percent(ours, want),
        **{f"same_text_{peer}": percent(ours, outputs) for peer, outputs in peers.items()},
    }


def percent(texts: list[str], others: list[str]) -> float:
    """Percent of texts that are equal."""
    return 100 * sum(a == b for a, b in zip(texts, others, strict=True)) / len(texts)


def main(argv: list[str]) -> None:
    del argv
    corpus = make_corpus(Path(FLAGS.folder))
    versions = {m.__name__: m.__version__ for m in (torch, transformers, ctranslate2)}
    results: dict[str, Any] = {
        "machine": machine.describe(jax.local_devices()),
        "versions": versions,
        "rows": [],
    }
    for family in FLAGS.families:
        results["rows"].append(measure(family, corpus))
        print(json.dumps(results["rows"][-1]), flush=True)
        write_json(FLAGS.json, results)


if __name__ == "__main__":
    flags.DEFINE_string("folder", "runs/fine_tune", "Folder of corpus, models and runs.")
    flags.DEFINE_string("json", "", "File of the results.")
    flags.DEFINE_list("families", list(FAMILIES), "Families to train.")
    flags.DEFINE_integer("steps", 1500, "Steps of each training.")
    flags.DEFINE_float("learning_rate", 0.002, "Largest learning rate.")
    app.run(main)
