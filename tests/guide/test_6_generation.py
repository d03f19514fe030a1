"""Page 6: generation from a model of random weights."""

import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(page):
    return page("6_")


def test_it_ends_with_the_end_token_or_at_twenty(found):
    config = found["config"]
    assert (config.num_encoder_layers, config.num_decoder_layers, config.num_heads) == (3, 3, 4)
    lengths = []
    for seed in range(12):
        tokens, distributions = found["generate"](found["source"], seed)
        assert len(tokens) <= 20
        assert found["END"] not in tokens
        assert len(distributions) == min(len(tokens) + 1, 20)
        np.testing.assert_allclose(distributions.sum(axis=1), 1.0, atol=1e-5)
        lengths.append(len(tokens))
    assert min(lengths) < 20


def test_tokens_are_drawn_as_the_softmax_says(found):
    """The first token of many draws has the frequencies of its distribution."""
    _, distributions = found["generate"](found["source"], 0, longest=1)
    counts = np.zeros(10)
    for seed in range(300):
        tokens, _ = found["generate"](found["source"], seed, longest=1)
        counts[tokens[0] if tokens else found["END"]] += 1
    np.testing.assert_allclose(counts / 300, distributions[0], atol=0.09)


def test_the_source_matters(found):
    _, one = found["generate"](found["source"], 0, longest=1)
    _, other = found["generate"](found["jnp"].array([[9, 9, 9]]), 0, longest=1)
    assert np.abs(one - other).max() > 1e-3


def test_a_cache_gives_the_same_distributions(found):
    np.testing.assert_allclose(found["cached"], found["distributions"], atol=1e-5)
