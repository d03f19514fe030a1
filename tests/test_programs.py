"""Compiled programs: how many there are, who waits for whom."""

import threading

import jax
import pytest

from transformer_jax.decoding import programs
from transformer_jax.decoding.engine import Engine


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


def test_threads_share_one_prepared_copy(translator, monkeypatch):
    calls = []
    prepare = programs._prepare

    def counted(*args):
        calls.append(1)
        return prepare(*args)

    monkeypatch.setattr(programs, "_prepare", counted)
    own = Engine(translator.config, translator.tokenizers).programs
    first, *others = in_threads(8, lambda: own.place(translator.params))
    assert len(calls) == 1
    assert all(other is first for other in others)
    own.release()
    assert own.place(translator.params) is not first
    assert own.place(jax.tree.map(lambda x: x, translator.params)) is not first
    assert len(calls) == 3


def test_another_number_of_parameter_trees_is_refused(translator):
    own = Engine(translator.config, translator.tokenizers).programs
    with pytest.raises(ValueError, match="2 parameter trees for 1 models"):
        own.place((translator.params, translator.params))
