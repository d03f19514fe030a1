"""Times translation and compares it with CTranslate2 and Hugging Face, on the same weights.

    python benchmarks/decode.py --peers=ctranslate2,transformers --workdir=runs/m30k \
        --sentences=test.en --json=decode.json
    python benchmarks/decode.py --peers=transformers --dtypes=bfloat16 --batches=1,32,256 \
        --json=docs/benchmarks/decode_gpu.json                                 # on a GPU
    python benchmarks/decode.py --peers=ctranslate2 --data=multi30k            # shortlists
    python benchmarks/decode.py --peers= --batches= --samples=16,256           # only samples

First every engine translates with the trained model in `--workdir`; outputs and times are compared.
Then a model of size `--size` with random weights generates exactly `--num_tokens` tokens per
sentence in every engine. With `--data`, its vocabulary and the sentences are of a corpus, and it is
timed with the shortlist of that corpus too. Each engine runs in a separate process with its fastest
thread setting, which is measured first. Engines take turns, and times are medians over the turns.
"""

import dataclasses
import importlib.util
import itertools
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import decode_workers
import jax
import numpy as np
from absl import app, flags, logging
from decode_workers import Setting, Task
from etils import epath
from processes import Worker
from timing import write_json

from transformer_jax.config import Config, DataConfig, ModelConfig
from transformer_jax.data import shortlist, sources
from transformer_jax.data.tokenizer_training import make_tokenizers
from transformer_jax.extras.interop import bundle
from transformer_jax.extras.interop.ctranslate2 import writing as ctranslate2_writing
from transformer_jax.extras.interop.huggingface import writing
from transformer_jax.extras.interop.model_facts import ModelFacts
from transformer_jax.model.transformer import init_params
from transformer_jax.translator import pretrained
from transformer_jax.translator.pretrained import Pretrained
from transformer_jax.workdir import machine

PEERS: dict[str, type[decode_workers.CTranslate2 | decode_workers.Transformers]] = {
    "ctranslate2": decode_workers.CTranslate2,
    "transformers": decode_workers.Transformers,
}
SIZES = {
    "base": ModelConfig(),
    "big": ModelConfig(d_model=1024, num_heads=16, d_ff=4096),
    "tiny": ModelConfig(
        num_encoder_layers=1, num_decoder_layers=1, d_model=32, num_heads=2, d_ff=64
    ),
}


def random_model(size: str, vocab_size: int) -> Pretrained:
    """A model with random weights."""
    tokenizers, model = decode_workers.random_tokenizers(vocab_size), SIZES[size]
    model.source_vocab_size = model.target_vocab_size = tokenizers.source.vocab_size
    model.decoder_start_id = tokenizers.target.bos_id
    return Pretrained(Config(model=model), tokenizers, init_params(model, jax.random.key(0)), 0)


def corpus_model(
    size: str, vocab_size: int, folder: str
) -> tuple[Pretrained, tuple[tuple[str, ...], ...]]:
    """A model with random weights, tokenizer and shortlist of a corpus; and its validation set.

    Args:
      size: name in `SIZES`.
      vocab_size: of both sides together.
      folder: with `train.LANG` and `val.LANG`.
    """
    data = DataConfig(
        source="files",
        train=f"{folder}/train",
        validation=f"{folder}/val",
        vocab_size=vocab_size,
    )
    corpora = sources.open_corpora(data, "train")
    tokenizers, model = make_tokenizers(data, corpora), SIZES[size]
    model.source_vocab_size = model.target_vocab_size = tokenizers.source.vocab_size
    model.decoder_start_id = tokenizers.target.bos_id
    learned = shortlist.learn(shortlist.sample(corpora, 1_000_000), tokenizers, 100, 300)
    texts = [source for source, _ in sources.open_corpora(data, "validation")[0].read()]
    encode, tokens = tokenizers.source.encode_batch, tokenizers.source.tokens
    sentences = tuple(tuple(tokens(ids)) for ids in encode(texts))
    params = init_params(model, jax.random.key(0))
    config = Config(model=model, data=data)
    return Pretrained(config, tokenizers, params, 0, shortlist=lambda: learned), sentences


def export(model: Pretrained, folder: Path, peers: list[str]) -> None:
    """Writes the model for every engine."""
    params = jax.device_get(model.params)
    bundle.write(
        Path(decode_workers.exported(folder, "ours")),
        model.config,
        model.tokenizers,
        params,
        ModelFacts("benchmark", "a benchmark", model.step),
        shortlist=model.shortlist,
    )
    if "transformers" in peers:
        target = epath.Path(decode_workers.exported(folder, "transformers"))
        plan = writing.plan_export(model.config, model.tokenizers, params)
        writing.write_directory(target, model.config, model.tokenizers, params, plan)
    if "ctranslate2" in peers:
        target = epath.Path(decode_workers.exported(folder, "ctranslate2"))
        ctranslate2_writing.write_directory(target, model.config, model.tokenizers, params)
        if model.shortlist:
            name = shortlist.VOCABULARY_MAP
            shortlist.write(model.shortlist(), model.tokenizers, target / name)


def start(folder: Path, peers: list[str], dtypes: list[str]) -> dict[str, Worker]:
    """A worker for each engine."""
    workers = {}
    for dtype in dtypes:
        name = "ours" if dtype == dtypes[0] else f"ours {dtype}"
        model = decode_workers.exported(folder, "ours")
        workers[name] = Worker(decode_workers.Ours, model, dtype, keep_memory=True)
    for peer in peers:
        model = decode_workers.exported(folder, peer)
        workers[peer] = Worker(PEERS[peer], model, dtypes[0], keep_memory=True)
    return workers


def check_identity(
    workdir: str,
    path: str,
    count: int,
    peers: list[str],
    turns: int,
    dtype: str,
    batches: list[int],
) -> list[dict]:
    """Compares outputs and times of all engines for a trained model, greedy and with beam size 4.

    All engines stop when as many hypotheses as beams have ended.

    Args:
      workdir: the trained model, `DIR` or `DIR@CHECKPOINT`.
      path: source text, one sentence per line.
      count: number of its sentences.
      peers: engines to compare with.
      turns: of each engine.
      dtype: of the computation; 16 bits for peers too.
      batches: numbers of sentences in a batch; 0: each engine's default for real text.
    """
    name, _, checkpoint = workdir.rpartition("@")
    model = pretrained.load(name, checkpoint) if name else pretrained.load(workdir)
    lines = epath.Path(path).read_text().splitlines()[:count]
    tokenizer = model.tokenizers.source
    sentences = tuple(tuple(tokenizer.tokens(ids)) for ids in tokenizer.encode_batch(lines))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        export(model, Path(name), peers)
        workers = start(Path(name), peers, [dtype])
        for batch, beam_size in itertools.product(batches, (1, 4)):
            task = Task(sentences, beam_size, rows=batch)
            outputs = {engine: worker.call("translate", task) for engine, worker in workers.items()}
            speeds = measure(workers, task, turns)
            seconds = {row["engine"]: statistics.median(row["seconds"]) for row in speeds}
            for peer in peers:
                same = sum(a == b for a, b in zip(outputs["ours"], outputs[peer], strict=True))
                rows.append(
                    {
                        "batch": batch,
                        "beam_size": beam_size,
                        "peer": peer,
                        "identical": same,
                        "total": len(sentences),
                        "seconds": seconds["ours"],
                        "peer_seconds": seconds[peer],
                    }
                )
                print(
                    f"trained weights, {f'batches of {batch}, ' * (batch > 0)}beam {beam_size}: "
                    f"{same} of {len(sentences)} outputs "
                    f"are {peer}'s; {seconds['ours']:.2f} s, ours is "
                    f"{seconds[peer] / seconds['ours']:.2f} times as fast",
                    flush=True,
                )
        for worker in workers.values():
            worker.close()
    return rows


def measure(workers: dict[str, Worker], task: Task, turns: int) -> list[dict]:
    """Tokens per second of every engine, each with its fastest setting."""
    fastest = {name: fastest_setting(name, worker, task) for name, worker in workers.items()}
    times: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(turns):
        for name, worker in workers.items():
            times[name].append(worker.call("time", task, fastest[name]))
    tokens = len(task.sentences) * (task.num_tokens or 0)
    return [
        {
            "engine": name,
            "beam_size": task.beam_size,
            "sentences": len(task.sentences),
            "setting": fastest[name],
            "seconds": times[name],
            "tokens_per_second": tokens / statistics.median(times[name]),
        }
        for name in workers
    ]


def fastest_setting(name: str, worker: Worker, task: Task) -> Setting:
    """The fastest of the engine's thread settings; each runs once before it is timed."""
    engine = decode_workers.Ours if name.startswith("ours") else PEERS[name]
    times: dict[Setting, float] = {}
    for setting in engine.settings:
        worker.call("time", task, setting)
        times[setting] = min(worker.call("time", task, setting) for _ in range(2))
    return min(times, key=lambda setting: times[setting])


def measure_latency(workers: dict[str, Worker], task: Task, turns: int) -> list[dict]:
    """Milliseconds per sentence, when sentences are translated one at a time."""
    rows = []
    for name, worker in workers.items():
        one = dataclasses.replace(task, sentences=task.sentences[:1])
        setting = fastest_setting(name, worker, one)
        sentences = task.sentences[: 4 * turns]
        # The first pass compiles every shape.
        decode_workers.latencies(worker, sentences, task, setting)
        seconds = decode_workers.latencies(worker, sentences, task, setting)
        p50, p95 = 1000 * np.percentile(seconds, (50, 95))
        rows.append(
            {
                "engine": name,
                "beam_size": task.beam_size,
                "setting": setting,
                "p50_ms": p50,
                "p95_ms": p95,
            }
        )
    return rows


def measure_samples(worker: Worker, task: Task, counts: list[int], turns: int) -> list[dict]:
    """Milliseconds per sample, for each number of samples of one sentence."""
    times: dict[int, list[float]] = {count: [] for count in counts}
    for turn in range(turns + 1):
        for count in counts:
            seconds = worker.call("time_samples", task, count)
            if turn:  # the first compiles
                times[count].append(seconds)
    rows: list[dict[str, Any]] = [
        {
            "samples": count,
            "seconds": times[count],
            "ms_per_sample": 1000 * statistics.median(times[count]) / count,
        }
        for count in counts
    ]
    for row in rows:
        ratio = row["ms_per_sample"] / rows[0]["ms_per_sample"]
        print(
            f"{row['samples']} samples of a sentence: {row['ms_per_sample']:.1f} ms per sample, "
            f"{ratio:.2f} times that of {rows[0]['samples']}",
            flush=True,
        )
    return rows


def print_rows(rows: list[dict], how: str) -> None:
    ours = rows[0]
    for row in rows:
        if "p50_ms" in row:
            what = f"{row['p50_ms']:.0f} ms p50, {row['p95_ms']:.0f} ms p95"
            ratio = row["p50_ms"] / ours["p50_ms"]
        else:
            what = f"{row['tokens_per_second']:,.0f} tokens/s"
            ratio = ours["tokens_per_second"] / row["tokens_per_second"]
        print(
            f"beam {row['beam_size']}, {row.get('sentences', 1)} sentences{how}: "
            f"{row['engine']:<14} {what} (setting {row['setting']}); "
            f"ours is {ratio:.2f} times as fast",
            flush=True,
        )


def measure_case(
    workers: dict[str, Worker],
    sentences: tuple[tuple[str, ...], ...],
    batch: int,
    beam_size: int,
    has_shortlist: bool,
) -> list[dict]:
    """Times and prints one number of sentences in a batch; 1 measures latency."""
    options = flags.FLAGS
    task = Task(
        sentences if batch == 1 else sentences[:batch],
        beam_size,
        options.num_tokens,
        shortlist=has_shortlist,
    )
    how = measure_latency if batch == 1 else measure
    rows = how(workers, task, options.turns)
    print_rows(rows, ", with a shortlist" if has_shortlist else "")
    return [row | {"shortlist": has_shortlist} for row in rows]


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    options = flags.FLAGS
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # engines share the GPU
    jax.config.update("jax_platforms", "cpu")  # accelerators are reserved for the engines
    missing = [p for p in options.peers if not importlib.util.find_spec(p)]
    if missing:
        raise app.UsageError(f"not installed: {', '.join(missing)} (--peers)")
    sizes = [int(batch) for batch in options.batches]
    result: dict[str, Any] = {
        "machine": machine.host(),
        "size": options.size,
        "num_tokens": options.num_tokens,
    }
    if options.workdir:
        result["identity"] = check_identity(
            options.workdir,
            options.sentences,
            options.num_sentences,
            options.peers,
            options.turns,
            options.trained_dtype,
            [int(batch) for batch in options.trained_batches],
        )
        write_json(options.json, result)
    if not sizes and not options.samples:
        return
    with tempfile.TemporaryDirectory() as name:
        most = max([*sizes, 4 * options.turns])
        if options.data:
            model, sentences = corpus_model(options.size, options.vocab_size, options.data)
            sentences = sentences[:most]
        else:
            model = random_model(options.size, options.vocab_size)
            sentences = decode_workers.random_sentences(model.tokenizers, most, options.length)
        export(model, Path(name), options.peers)
        workers = start(Path(name), options.peers, options.dtypes)
        result["engines"] = {name: worker.call("describe") for name, worker in workers.items()}
        print(json.dumps(result, indent=1), flush=True)
        result["rows"] = []
        if options.samples:
            task = Task(sentences[:1], 1, options.num_tokens)
            result["samples"] = measure_samples(
                workers["ours"], task, [int(n) for n in options.samples], options.turns
            )
        searches = (False, True) if options.data else (False,)
        for case in itertools.product(sizes, map(int, options.beams), searches):
            result["rows"] += measure_case(workers, sentences, *case)
            write_json(options.json, result)  # so that a run that is cut off is not lost
        for worker in workers.values():
            worker.close()
    write_json(options.json, result)


if __name__ == "__main__":
    flags.DEFINE_list("peers", list(PEERS), "Engines to compare with.")
    flags.DEFINE_string(
        "workdir", "", "Folder of a trained model, DIR or DIR@CHECKPOINT, to compare outputs first."
    )
    flags.DEFINE_string("sentences", "", "Source text for this comparison, one sentence per line.")
    flags.DEFINE_integer("num_sentences", 100, "Number of these sentences.")
    flags.DEFINE_string("trained_dtype", "float32", "Type of the trained model's computation.")
    flags.DEFINE_list(
        "trained_batches", ["0"], "Its sentences in a batch; 0: each engine's default."
    )
    flags.DEFINE_enum("size", "base", list(SIZES), "Size of the model that is timed.")
    flags.DEFINE_integer("vocab_size", 16_000, "Vocabulary size of that model.")
    flags.DEFINE_string(
        "data", "", "Folder with train.LANG and val.LANG, for shortlists; else random words."
    )
    flags.DEFINE_integer("length", 24, "Mean tokens of a source sentence.")
    flags.DEFINE_integer("num_tokens", 32, "Number of tokens of every output.")
    flags.DEFINE_list("batches", ["64", "1"], "Sentences per batch; 1 measures latency.")
    flags.DEFINE_list("beams", ["1", "4"], "Beam sizes; 1 is greedy.")
    flags.DEFINE_list(
        "samples", [], "Also time these numbers of samples of one sentence, such as 16,256."
    )
    flags.DEFINE_list("dtypes", ["float32"], "Types of our computation; peers use the first.")
    flags.DEFINE_integer("turns", 5, "Turns of each engine.")
    flags.DEFINE_string("json", "", "Also write the result to this file.")
    app.run(main)
