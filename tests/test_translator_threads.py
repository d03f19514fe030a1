"""A translator from several threads, warmed up, and on the device that the caller names."""

import asyncio
import collections
import concurrent.futures
import copy
import dataclasses
import pickle
import threading

import jax
import numpy as np
import pytest

from transformer_jax import Translator
from transformer_jax.config import ModelConfig
from transformer_jax.errors import UserError
from transformer_jax.model.choices import compute_dtype
from transformer_jax.ops import platforms
from transformer_jax.translator import batching, scheduler
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.batch_translator import BatchTranslator
from transformer_jax.translator.jax_batch_runner import JaxBatchRunner
from transformer_jax.translator.programs import Programs
from transformer_jax.translator.requests import Request
from transformer_jax.translator.text_queue import DeadlineError, QueueFullError
from transformer_jax.workdir.folder import committed_steps

TEXTS = ["one two", "three", "four five six", "seven", "eight nine", "one", "two", "three four"]


def fresh(translator):
    return Translator(translator.config, translator.tokenizers, translator.params)


def test_translator_threads_share_two_workers_and_give_the_same(translator, monkeypatch):
    want = [translator.translate([text], beam_size=2)[0] for text in TEXTS]
    scores = translator.score(TEXTS[:1], ["zwei eins"])
    running, most, seen = [], [], set()
    run = Programs.run

    def count(*args, **kwargs):
        running.append(1)
        most.append(len(running))
        seen.add(threading.current_thread().name)
        try:
            return run(*args, **kwargs)
        finally:
            running.pop()

    monkeypatch.setattr(Programs, "run", count)
    translators = [translator, fresh(translator)]
    barrier = threading.Barrier(8)

    def call(number):
        t = translators[number % 2]
        barrier.wait()
        result = t.translate([TEXTS[number]], beam_size=2)[0]
        return result, t.score(TEXTS[:1], ["zwei eins"])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        result = list(pool.map(call, range(8)))
    for (one, score), alone in zip(result, want, strict=True):
        assert one.ids == alone.ids
        assert one.score == pytest.approx(alone.score, abs=1e-5)
        assert score == pytest.approx(scores)
    assert max(most) <= scheduler.NUM_WORKERS
    assert len(seen) <= scheduler.NUM_WORKERS
    assert all(name.startswith("transformer_jax_batch") for name in seen)
    names = [thread.name for thread in threading.enumerate()]
    assert sum(name.startswith("transformer_jax_batch") for name in names) <= scheduler.NUM_WORKERS


def test_translator_is_read_again_where_it_was_read_and_says_what_it_is(tiny_run, translator):
    assert repr(translator).startswith("<Translator en -> de, 1 + 1 layers of 16, step ")
    assert str(tiny_run[1]) in repr(translator)
    again = pickle.loads(pickle.dumps(translator))
    assert repr(copy.copy(again)) == repr(again) == repr(translator)
    assert again.translate(TEXTS[0], beam_size=2) == translator.translate(TEXTS[0], beam_size=2)
    other = next(
        step for step in committed_steps(tiny_run[1]) if f"step {step} " not in repr(again)
    )
    other = Translator.load(tiny_run[1], checkpoint=str(other))
    assert repr(pickle.loads(pickle.dumps(other))) == repr(other) != repr(again)
    with pytest.raises(UserError, match="made from parameters> has no file"):
        pickle.dumps(fresh(translator))


def test_translator_refuses_the_parameters_of_another_model(translator):
    other = dataclasses.replace(translator.config.model, d_ff=8, num_decoder_layers=2)
    config = dataclasses.replace(translator.config, model=other)
    with pytest.raises(UserError, match=r"decoder_layers_0/feed_forward/\w+/\w+ is \[.*needs \["):
        Translator(config, translator.tokenizers, translator.params)
    params = translator.params | {"a": np.zeros(3)}
    with pytest.raises(UserError, match="needs none"):
        Translator(translator.config, translator.tokenizers, params)


@pytest.mark.all_programs
def test_warmup_leaves_nothing_to_compile(translator, monkeypatch):
    t = fresh(translator)
    settings = {"beam_size": 2, "batch_tokens": 64, "n_best": 2}
    attention = AttentionChoice()
    ran = collections.Counter()
    translate = BatchTranslator.translate_batch

    def count(translator, batch, texts):
        ran[batch.rows, batch.length] += 1
        return translate(translator, batch, texts)

    monkeypatch.setattr(BatchTranslator, "translate_batch", count)
    # 64 positions by 2 beams are 4 rows of 8; there are batches of one row and of 4.
    assert t.warmup([3, 8], num_texts=3, attention=attention, **settings) == 2
    assert set(ran) == {(1, 8), (4, 8)}
    compiled = t.engine.num_compiled
    assert compiled == 4  # a search and its attention
    for texts in (["one"], ["one two"], ["one", "two", "six"]):
        t.translate(texts, attention=attention, **settings)
    assert set(ran) == {(1, 8), (4, 8)}
    assert t.engine.num_compiled == compiled
    for lengths, message in (([0], r"lengths\[0\]=0"), ([99], "No text has 99 tokens")):
        with pytest.raises(UserError, match=message):
            t.warmup(lengths)
    with pytest.raises(UserError, match="num_texts=0"):
        t.warmup([8], num_texts=0)


# --- Single texts ---------------------------------------------------------------------------------


def test_submitted_texts_of_other_settings_share_a_batch_and_give_the_same(translator, monkeypatch):
    """Numbers differ from row to row; what the search is compiled for separates batches."""
    t = fresh(translator)
    settings = [
        {"length_penalty": 0.0},
        {"length_penalty": 2.0, "n_best": 2},
        {"max_decode_ratio": 0.2, "max_decode_len": 3},
        {"beam_size": 1},
        {"method": "sample", "temperature": 0.3, "n_best": 2},
        {"method": "sample", "temperature": 3.0, "top_k": 4, "seed": 7, "n_best": 2},
        {"suppressed_ids": [5]},
    ]
    settings = [{"beam_size": 3, **one} for one in settings]
    text = "four five six"
    want = [t.translate(text, **one) for one in settings]
    sizes, original = [], BatchTranslator.translate_batch

    def count(translator, batch, texts):
        sizes.append(len(texts))
        return original(translator, batch, texts)

    monkeypatch.setattr(BatchTranslator, "translate_batch", count)
    # One thread, for which a step is costly: all that can share a batch do.
    monkeypatch.setattr(scheduler._process, "scheduler", scheduler.Scheduler(num_workers=1))
    monkeypatch.setattr(JaxBatchRunner, "step_rows", 100.0)
    release = occupy_workers(num_threads=1)
    submitted = [t.submit(text, **one) for one in settings]
    release()
    for future, expected in zip(submitted, want, strict=True):
        got = future.result(120)
        pairs = zip(got, expected, strict=True) if isinstance(got, list) else [(got, expected)]
        for one, other in pairs:
            assert one.ids == other.ids
            assert one.score == pytest.approx(other.score, abs=1e-5)
    assert sorted(sizes) == [1, 1, 2, 3]


def occupy_workers(num_threads=scheduler.NUM_WORKERS):
    """Keeps the scheduler's threads; what is submitted waits. Returns what ends that."""
    begun, end = threading.Semaphore(0), threading.Event()

    def hold():
        begun.release()
        assert end.wait(120)

    for _ in range(num_threads):
        scheduler.of_process()._submit_call(object(), hold, ())
        assert begun.acquire(timeout=120)
    return end.set


def test_submitted_long_text_is_joined_and_an_empty_one_is_empty(translator):
    t = fresh(translator)
    text = " ".join(TEXTS * 8)
    assert t.submit(text, beam_size=1).result(120).ids == t.translate(text, beam_size=1).ids
    assert t.submit("", n_best=2).result(120) == t.translate("", n_best=2)
    for bad, message in (
        (None, "the text is None, not a string"),
        ("\ud800", "the text: no valid"),
    ):
        with pytest.raises(UserError, match=message):
            t.submit(bad)
    with pytest.raises(UserError, match="phrases need beam search"):
        t.submit(Request("one", phrases=["eins"]), method="sample")


def test_awaited_texts_give_the_same_and_are_cancelled_with_their_task(translator):
    t = fresh(translator)

    async def both():
        one = await t.atranslate("one two", beam_size=2)
        several = await t.atranslate(iter(TEXTS), beam_size=2, n_best=2)
        release = occupy_workers()
        task = asyncio.create_task(t.atranslate(TEXTS, beam_size=2))
        await asyncio.sleep(0)
        waiting = scheduler.of_process().num_waiting
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = scheduler.of_process().num_waiting
        with pytest.raises(UserError, match=r"the text is an int \(5\)"):
            await t.atranslate(["one", 5])
        after = scheduler.of_process().num_waiting
        release()
        return one, several, (waiting, left, after)

    one, several, counts = asyncio.run(both())
    assert one.ids == t.translate("one two", beam_size=2).ids
    want = t.translate(TEXTS, beam_size=2, n_best=2)
    assert [[h.ids for h in best] for best in several] == [[h.ids for h in best] for best in want]
    assert counts == (len(TEXTS), 0, 0)


def test_submitted_text_is_refused_where_too_many_wait_or_its_time_is_over(translator):
    t = fresh(translator)
    release = occupy_workers()
    expired = t.submit("one", timeout_ms=0)
    with pytest.raises(QueueFullError):
        t.submit("two", max_waiting=1)
    release()
    with pytest.raises(DeadlineError, match="not begun within"):
        expired.result(120)


@pytest.mark.parametrize("num_devices", [1, 4])
def test_warmup_shapes_are_all_that_calls_can_form(num_devices):
    rng = np.random.default_rng(0)
    for _ in range(300):
        most, longest = int(rng.integers(1, 40)), int(rng.integers(1, 41))
        declared = set()
        for length in range(1, longest + 1):
            declared |= set(batching.shapes(length, most, 40, 320, num_devices))
        lengths = rng.integers(1, longest + 1, rng.integers(1, most + 1))
        groups = batching.group_by_length(lengths, 40, 320, num_devices)
        assert {(g.rows, g.length) for g in groups} <= declared


# --- Devices -------------------------------------------------------------------------------------


def test_translator_computes_on_the_default_device(translator):
    device = jax.devices()[3]
    with jax.default_device(device):
        t = fresh(translator)
    assert t.engine.runner.programs.num_devices == 1
    (best,) = t.translate([Request("one two")], beam_size=2)  # outside, where another is default
    assert best.ids == translator.translate(["one two"], beam_size=2)[0].ids
    device_params = t.engine.runner.programs.put_on_devices(t.params)
    assert {d for leaf in jax.tree.leaves(device_params) for d in leaf.devices()} == {device}


class Device:
    def __init__(self, platform):
        self.platform = platform


@pytest.mark.parametrize(
    ("default_device", "backend", "platform", "dtype"),
    [
        (None, "cpu", "cpu", "float32"),
        (None, "gpu", "gpu", "bfloat16"),
        (None, "cuda", "gpu", "bfloat16"),
        (None, "tpu", "tpu", "bfloat16"),
        (None, "rocm", "rocm", "bfloat16"),
        (None, "METAL", "metal", "float32"),
        ("cpu", "gpu", "cpu", "float32"),
        (Device("cpu"), "tpu", "cpu", "float32"),
        (Device("gpu"), "cpu", "gpu", "bfloat16"),
    ],
)
def test_compute_dtype_follows_the_platform(monkeypatch, default_device, backend, platform, dtype):
    monkeypatch.setattr(platforms, "_default_device", lambda: default_device)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert platforms.current() == platform
    assert compute_dtype(ModelConfig()) == dtype
    assert compute_dtype(ModelConfig(dtype="bfloat16")) == "bfloat16"


def test_platforms_distinguish_amd_and_nvidia_gpus(monkeypatch):
    class Client:
        platform_version = "PJRT C API\nrocm 60300"

    class Gpu(Device):
        client = Client()

    monkeypatch.setattr(jax, "devices", lambda *_: [Gpu("gpu")])
    assert platforms.of(Gpu("gpu")) == "rocm"
    Client.platform_version = "PJRT C API\ncuda 13000"
    assert platforms.of(Gpu("gpu")) == "gpu"


def test_platforms_default_device_is_for_engines_only():
    assert platforms.local_devices() == platforms.all_devices() == jax.devices()
    with jax.default_device(jax.devices()[2]):
        assert platforms.local_devices() == [jax.devices()[2]]
        assert platforms.all_devices() == jax.devices()
    with jax.default_device("cpu"):
        assert platforms.local_devices() == jax.devices()[:1]
