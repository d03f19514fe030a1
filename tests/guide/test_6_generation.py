"""Page 6: generation from a model of random weights."""

import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(page):
    return page("6_")


def test_generation_ends_with_the_end_token_or_at_twenty(results):
    config = results["config"]
    assert (config.num_encoder_layers, config.num_decoder_layers, config.num_heads) == (3, 3, 4)
    lengths = []
    for seed in range(12):
        tokens, distributions = results["generate"](results["source"], seed)
        assert len(tokens) <= 20
        assert results["END"] not in tokens
        assert len(distributions) == min(len(tokens) + 1, 20)
        np.testing.assert_allclose(distributions.sum(axis=1), 1.0, atol=1e-5)
        lengths.append(len(tokens))
    assert min(lengths) < 20


def test_sampled_tokens_follow_the_softmax(results):
    """The first token of many draws has the frequencies of its distribution."""
    _, distributions = results["generate"](results["source"], 0, max_len=1)
    counts = np.zeros(10)
    for seed in range(300):
        tokens, _ = results["generate"](results["source"], seed, max_len=1)
        counts[tokens[0] if tokens else results["END"]] += 1
    np.testing.assert_allclose(counts / 300, distributions[0], atol=0.09)


def test_distribution_depends_on_the_source(results):
    _, one = results["generate"](results["source"], 0, max_len=1)
    _, other = results["generate"](results["jnp"].array([[9, 9, 9]]), 0, max_len=1)
    assert np.abs(one - other).max() > 1e-3


def test_cached_decoding_gives_the_same_distributions(results):
    np.testing.assert_allclose(results["cached"], results["distributions"], atol=1e-5)
