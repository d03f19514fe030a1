"""Our search compared with the other tools', on a model that is trained and still unsure."""

import dataclasses

import pytest

from benchmarks import parity
from tests.conftest import digit_pairs, tiny_config
from transformer_jax.training.loop import train
from transformer_jax.translator import pretrained


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parity")
    config = tiny_config(folder, num_steps=90, eval_every_steps=0, checkpoint_every_steps=90)
    model = dataclasses.replace(
        config.model, norm_position="post", positional="halves", norm_epsilon=1e-5
    )
    train(dataclasses.replace(config, model=model), folder / "run")
    loaded = pretrained.load(folder / "run", "latest")
    sentences = [source for source, _ in digit_pairs(200, seed=5, longest=9)]
    return parity.compare(loaded, sentences, ["transformers", "ctranslate2"])


def test_parity_benchmark_every_output_equals_the_peers(result):
    assert result["beam_differs_from_greedy"] >= 0.2
    assert len(result["rows"]) == 13 + 5
    for row in result["rows"]:
        assert row["identical"] == row["total"] == 200, row
        assert (row["largest_score_difference"] or 0) < 1e-3, row
        assert (row["largest_forced_difference"] or 0) < 1e-3, row


def test_parity_benchmark_stopping_rules_differ_with_a_strong_penalty(result):
    """Else the comparison would not tell a wrong rule."""
    assert result["rules_differ"]["1.5"] > 0
