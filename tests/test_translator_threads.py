"""A translator from several threads, warmed up, and on the device that the caller names."""

import collections
import concurrent.futures
import threading

import jax
import numpy as np
import pytest

from transformer_jax import Translator
from transformer_jax.config import ModelConfig
from transformer_jax.decoding import batching, workers
from transformer_jax.decoding.alignment import AttentionChoice
from transformer_jax.decoding.batch_translator import BatchTranslator
from transformer_jax.decoding.programs import Programs
from transformer_jax.decoding.requests import Request
from transformer_jax.errors import UserError
from transformer_jax.ops import platforms
from transformer_jax.ops.platforms import compute_dtype

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
    assert max(most) <= workers.NUM_WORKERS
    assert len(seen) <= workers.NUM_WORKERS
    assert all(name.startswith("transformer_jax_batch") for name in seen)
    names = [thread.name for thread in threading.enumerate()]
    assert sum(name.startswith("transformer_jax_batch") for name in names) <= workers.NUM_WORKERS


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
    compiled = t.engine.programs.num_compiled
    assert compiled == 4  # a search and its attention
    for texts in (["one"], ["one two"], ["one", "two", "six"]):
        t.translate(texts, attention=attention, **settings)
    assert set(ran) == {(1, 8), (4, 8)}
    assert t.engine.programs.num_compiled == compiled
    for lengths, message in (([0], r"lengths\[0\]=0"), ([99], "No text has 99 tokens")):
        with pytest.raises(UserError, match=message):
            t.warmup(lengths)
    with pytest.raises(UserError, match="num_texts=0"):
        t.warmup([8], num_texts=0)


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
    assert t.engine.programs.num_devices == 1
    (best,) = t.translate([Request("one two")], beam_size=2)  # outside, where another is default
    assert best.ids == translator.translate(["one two"], beam_size=2)[0].ids
    device_params = t.engine.programs.put_on_devices(t.params)
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
