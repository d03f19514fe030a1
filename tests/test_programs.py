"""Compiled programs: how many there are, who waits for whom."""

import dataclasses
import functools
import os
import random
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.test_search import IDS, TableDecoder, random_model, table_logits
from transformer_jax.config import DecodeConfig, ModelConfig
from transformer_jax.model import decoder_weights, incremental
from transformer_jax.model.transformer import init_params
from transformer_jax.search.decoder import cache_sizes, decode_loop
from transformer_jax.search.search import search
from transformer_jax.search.search_settings import (
    SearchConstraints,
    SearchValues,
    structure_of,
    values_of,
)
from transformer_jax.translator import batch_functions, batching, programs
from transformer_jax.translator.engine import Engine
from transformer_jax.translator.translation_settings import TranslationSettings
from transformer_jax.workdir import compilation_cache

ROOT = Path(__file__).parent.parent


def in_threads(count, function):
    """Results of `count` calls that begin together."""
    barrier, results = threading.Barrier(count), [None] * count

    def run(number):
        barrier.wait()
        results[number] = function()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_put_on_devices_is_shared_by_threads(translator, monkeypatch):
    calls = []
    lay_out, params = decoder_weights.for_inference, translator.params

    def counted(*args):
        calls.append(1)
        return lay_out(*args)

    monkeypatch.setattr(decoder_weights, "for_inference", counted)
    fresh = Engine(translator.config, translator.tokenizers).runner.programs
    first, *others = in_threads(8, lambda: fresh.put_on_devices(params))
    assert len(calls) == 1
    assert all(other is first for other in others)
    assert fresh.put_on_devices(jax.tree.map(lambda x: x, params)) is not first
    assert len(calls) == 2
    assert jax.tree.leaves(params)  # `put_on_devices` does not empty it
    assert fresh.put_on_devices(first) is first


def test_put_on_devices_refuses_another_number_of_parameter_trees(translator):
    fresh = Engine(translator.config, translator.tokenizers).runner.programs
    with pytest.raises(ValueError, match="2 parameter trees for 1 models"):
        fresh.put_on_devices((translator.params, translator.params))


def settings_of_one_structure(method, number):
    """Search settings that differ in all their numbers."""
    rng = random.Random(number)
    limits = {
        "max_decode_len": rng.randint(2, 200),
        "max_decode_ratio": rng.uniform(1, 4),
        "length_penalty": rng.uniform(0.1, 2),
    }
    if method == "beam":
        return limits | {
            "min_decode_len": rng.randint(1, 3),
            "repetition_penalty": rng.uniform(1.1, 2),
            "coverage_penalty": rng.uniform(0.1, 1),
            "diversity_penalty": rng.uniform(0.1, 1),
            "suppressed_ids": tuple(rng.sample(range(10, 200), rng.randint(1, 9))),
        }
    return limits | {
        "seed": rng.randrange(2**32),
        "temperature": rng.uniform(0.5, 2),
        # Each rule of sampling is off now and then.
        "top_k": rng.choice([0, rng.randint(1, 200)]),
        "top_p": rng.choice([1.0, rng.uniform(0.1, 0.99)]),
        "min_p": rng.choice([0.0, rng.uniform(0, 0.1)]),
    }


def test_programs_of_a_hundred_settings_are_two(translator):
    engine = Engine(translator.config, translator.tokenizers)
    compiled = []

    def listen(event, *_, **__):
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    structures = {"beam": {"beam_size": 2, "beam_groups": 2}, "sample": {"beam_size": 2}}
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for number in range(52):
            if number == 2:
                assert engine.num_compiled == len(structures)
                compiled.clear()
            if number == 40:  # a model that is loaded again finds the programs of the first
                engine = Engine(translator.config, translator.tokenizers)
            for method, structure in structures.items():
                numbers = settings_of_one_structure(method, number)
                decode = dataclasses.replace(DecodeConfig(method=method, **structure), **numbers)
                ((best,),) = engine.translate(
                    translator.params, ["one two"], TranslationSettings(decode)
                )
                assert len(best.ids) < numbers["max_decode_len"]
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert engine.num_compiled == len(structures)
    assert not compiled


def stack(values):
    """Values of several settings as those of one batch."""
    columns = zip(*(dataclasses.astuple(one) for one in values), strict=True)
    return SearchValues(*(None if c[0] is None else np.concatenate(c) for c in columns))


@pytest.mark.parametrize("method", ["beam", "sample"])
def test_search_values_apply_row_by_row(method):
    rows, longest, beams = 4, 4, 4 if method == "beam" else 64
    by_method = {
        "beam": {
            "suppressed_ids": ((0, 1), (1, 2), (0, 2), (1, 0)),
            "min_decode_len": (0,) * 4,
            "coverage_penalty": (0.0,) * 4,
            "beam_groups": (2,) * 4,
        },
        "sample": {"top_k": (0, 3, 0, 2), "top_p": (0.95, 1.0, 0.98, 0.9)},
    }[method]
    configs = [
        DecodeConfig(
            method=method,
            beam_size=beams,
            **settings_of_one_structure(method, row)
            | {name: values[row] for name, values in by_method.items()},
        )
        for row in range(rows)
    ]
    structure = structure_of(configs[-1])  # in which all rules are active
    values = [values_of([config], 1) for config in configs]
    logits = table_logits(random_model(rows, longest, seed=31), longest)

    @jax.jit
    def find(logits, values):
        count = logits.shape[0]
        constraints = SearchConstraints(
            max_lens=jnp.full(count, longest),
            min_lens=jnp.zeros(count, jnp.int32),
            values=values,
            seeds=jnp.full(count, 7, jnp.uint32),
            num_hypotheses=jnp.ones(count, jnp.int32),
        )
        decoder = TableDecoder(logits, beams)
        return search(decoder, decoder.init_cache(), constraints, IDS, structure, longest)

    together = find(logits, stack(values))
    for row in range(rows):
        alone = find(logits[row : row + 1], values[row])
        np.testing.assert_array_equal(together.tokens[row], alone.tokens[0])
        np.testing.assert_allclose(together.scores[row], alone.scores[0], rtol=1e-6)
        other = find(logits[row : row + 1], values[row - 1])
        assert not np.array_equal(alone.scores, other.scores)


def test_program_cache_is_bounded_and_keeps_those_used_last():
    cache, compiled = programs.ProgramCache(2), []
    for key in "abacbbc":  # c pushes b out, then b pushes a out
        if cache.find(key) is None:
            compiled.append(key)
            cache.add(key, print)
    assert compiled == ["a", "b", "c", "b"]
    assert cache.num_added == 4


@pytest.mark.parametrize("method", ["beam", "sample"])
def test_decode_loop_compiles_at_most_three_loops(method):
    model = ModelConfig(
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=8,
        d_ff=8,
        num_heads=2,
        source_vocab_size=20,
        target_vocab_size=20,
        max_len=1024,
    )
    decode = DecodeConfig(method=method, beam_size=2)
    params = jax.eval_shape(
        lambda: decoder_weights.for_inference(model, init_params(model, jax.random.key(0)))
    )
    device_params = batch_functions.DeviceParams((params,), None)
    constraints = SearchConstraints(
        np.full(2, 1024),
        np.zeros(2, np.int32),
        values_of([decode], 2),
        np.ones(2, np.int32),
        seeds=np.zeros(2, np.uint32),
    )
    sources = batching.TokenRows(np.zeros((2, 8), np.int32), np.full(2, 8))
    functions = batch_functions.BatchFunctions((model,), IDS)
    for longest in (16, 48, 128, 512, 1024):
        search = functools.partial(
            functions.search, structure=structure_of(decode), max_decode_len=longest
        )
        lowered = jax.jit(search).lower(device_params, sources, constraints)
        # Loops that carry the decoder's cache; the generator of random numbers has others.
        cached = re.compile(r"stablehlo\.while.*tensor<(\d+x){4}f32>")
        loops = sum(bool(cached.search(line)) for line in lowered.as_text().splitlines())
        assert 1 <= loops <= 3
        assert loops == len(cache_sizes(longest))
    assert cache_sizes(16) == [16]


def small_model(**changes):
    sizes = dict.fromkeys(("d_model", "d_ff"), 16)
    sizes |= dict.fromkeys(("source_vocab_size", "target_vocab_size"), 20)
    return ModelConfig(**{**sizes, "num_encoder_layers": 1, "num_heads": 2, **changes})


def test_decode_step_costs_the_same_for_each_sample():
    model = small_model(num_decoder_layers=1, max_len=512)
    params = init_params(model, jax.random.key(0))
    weights = decoder_weights.prepare(model, params)
    encoded, mask = jnp.zeros((1, 8, 16)), jnp.ones((1, 8), bool)

    def cache_of(samples):
        return incremental.init_cache(model, weights, encoded, mask, samples, 256, independent=True)

    def cost(samples):
        cache = cache_of(samples)
        assert cache.cross_attention[0].key.shape[0] == 1  # not copied for each sample
        step = jax.jit(lambda cache, tokens: incremental.decode_step(model, weights, cache, tokens))
        analysis = step.lower(cache, jnp.zeros(samples, jnp.int32)).compile().cost_analysis()
        return analysis["flops"] / samples, analysis["bytes accessed"] / samples

    few, many = cost(16), cost(256)
    assert many[0] < 1.1 * few[0]
    assert many[1] < 1.1 * few[1]
    with pytest.raises(ValueError, match="cannot be reordered"):
        incremental.reorder_cache(cache_of(1), jnp.zeros((1, 1), jnp.int32))


@flax.struct.dataclass
class Counting:
    """A search that does nothing but count its steps."""

    index: jax.Array
    cache: Any


@pytest.mark.all_programs
@pytest.mark.parametrize(("steps", "grown"), [(16, []), (17, [40]), (40, [40]), (90, [40, 96])])
def test_decode_loop_grows_the_cache_only_if_unfinished(steps, grown):
    sizes = []

    class Decoder:
        def grow(self, cache, size):
            jax.debug.callback(lambda: sizes.append(size))
            return jnp.pad(cache, (0, size - cache.size))

    @jax.jit
    def run():
        return decode_loop(
            lambda state: state.replace(index=state.index + 1),
            lambda state: state.index < steps,
            Counting(jnp.int32(0), jnp.zeros(16)),
            Decoder(),
            96,
        )

    assert int(run().index) == steps
    jax.effects_barrier()
    assert sizes == grown


@pytest.mark.parametrize("length", [8, 16, 48, 96, 256])
def test_output_room_does_not_depend_on_usual_limits(length):
    usual = batching.output_room(length, 1, 1024)
    assert usual >= min(3 * length + 10, 256)
    assert {batching.output_room(length, n, 1024) for n in range(1, usual + 1)} == {usual}
    assert batching.output_room(length, 1024, 1024) == 1024
    assert batching.output_room(length, 20, 20) == 20


# --- Programs on the disk ------------------------------------------------------------------------

CACHE_SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_enable_compilation_cache",
    "jax_persistent_cache_min_compile_time_secs",
)


@pytest.fixture
def cache_settings(tmp_path, monkeypatch):
    """JAX's settings of a process that has just started; a function that reads them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def read():
        return tuple(getattr(jax.config, name) for name in CACHE_SETTINGS)

    before = read()
    for name, value in zip(CACHE_SETTINGS, (None, True, 1.0), strict=True):
        jax.config.update(name, value)
    yield read
    for name, value in zip(CACHE_SETTINGS, before, strict=True):
        jax.config.update(name, value)


def test_programs_are_kept_in_the_users_cache_folder(cache_settings, tmp_path):
    folder = str(tmp_path / "transformer_jax" / "xla")
    for _ in range(2):
        assert compilation_cache.keep_programs()
        assert cache_settings() == (folder, True, 0.1)


@pytest.mark.parametrize(
    ("name", "value", "want"),
    [
        ("jax_compilation_cache_dir", "/mine", ("/mine", True, 0.1)),
        ("jax_compilation_cache_dir", "", ("", True, 1.0)),
        ("jax_enable_compilation_cache", False, (None, False, 1.0)),
    ],
)
def test_programs_are_kept_as_settings_of_jax_say(cache_settings, name, value, want):
    jax.config.update(name, value)
    assert not compilation_cache.keep_programs()
    assert cache_settings() == want


def test_programs_are_kept_from_the_users_compile_time_on(cache_settings, tmp_path):
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 7.0)
    assert compilation_cache.keep_programs()
    assert cache_settings()[2] == 7.0


@pytest.mark.slow
def test_programs_of_a_command_are_read_by_python_and_the_other_way_round(tiny_run, tmp_path):
    """Python compiles nothing that `decode` has compiled, and `decode` nothing more after it."""
    python = f"""
import sys
from transformer_jax import Translator
t = Translator.load({str(tiny_run[1])!r})
for number in sys.argv[1:]:
    assert t.translate("one " * int(number)).text
"""
    hidden = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def kept(*arguments, text=""):
        subprocess.run(
            [sys.executable, *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            env=environment,
            cwd=ROOT,
        )
        return {path.name for path in (tmp_path / "transformer_jax/xla").glob("jit_search-*")}

    decode = ("decode.py", f"--workdir={tiny_run[1]}")
    first = kept(*decode, text="one one\n")
    assert first
    assert kept("-c", python, "2") == first
    second = kept("-c", python, "2", "20")
    assert second > first
    assert kept(*decode, text="one " * 20 + "\n") == second


FAMILIES = {
    "plain": {},
    "learned": {"positional": "learned", "embedding_norm": True, "output_bias": True},
    "modern": {
        "norm": "rms",
        "feed_forward": "gated",
        "num_kv_heads": 1,
        "qk_norm": True,
        "positional": "rotary",
        "tie_embeddings": "none",
    },
    "relative": {"positional": "relative", "norm": "rms", "tie_embeddings": "decoder"},
    "per_layer": {"positional": "relative", "relative_per_layer": True},
}


@pytest.mark.parametrize("changes", FAMILIES.values(), ids=FAMILIES)
def test_parameters_for_inference_are_those_of_the_model_once_rounded(changes):
    model = small_model(num_decoder_layers=2, max_len=16, **changes)
    params = init_params(model, jax.random.key(0))
    given = dict(params)
    laid_out = decoder_weights.for_inference(model, given)
    assert not given  # a part is freed when it is laid out
    restored = decoder_weights.restore(model, laid_out)
    assert jax.tree.structure(restored) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, restored, params)

    rounded = dataclasses.replace(model, dtype="bfloat16")
    in_bfloat16 = decoder_weights.restore(rounded, decoder_weights.for_inference(rounded, params))
    shapes = decoder_weights.inference_shapes(rounded)
    assert jax.tree.map(lambda x: x.dtype, in_bfloat16) == jax.tree.map(lambda x: x.dtype, shapes)
    want = jax.tree.map(lambda x, shape: x.astype(shape.dtype), restored, shapes)
    jax.tree.map(np.testing.assert_array_equal, in_bfloat16, want)
    kernels = [x for path, x in jax.tree.leaves_with_path(shapes) if "kernel" in str(path[-1])]
    assert kernels
    assert {x.dtype for x in kernels} == {jnp.dtype(jnp.bfloat16)}
