"""Page 8: the whole job, trained; and its recipe."""

from pathlib import Path

import numpy as np
import pytest

from transformer_jax.validation import validate


def test_the_recipe_is_the_job():
    from configs import guide_multi30k

    config = validate(guide_multi30k.get_config())
    model, data, optimizer = config.model, config.data, config.optimizer
    assert (model.num_encoder_layers, model.num_decoder_layers, model.d_model) == (4, 4, 128)
    assert (model.num_heads, model.d_ff, model.dropout_rate) == (8, 512, 0.1)
    assert data.vocab_size <= 10_000
    assert (data.shared_vocab, data.lowercase, data.max_len) == (False, True, 41)  # and the end
    assert (data.batching, data.batch_sentences) == ("bucket", 64)
    assert (optimizer.name, optimizer.schedule, optimizer.learning_rate) == (
        "adam", "constant", 1e-4)  # fmt: skip
    assert (optimizer.b1, optimizer.b2, optimizer.eps) == (0.9, 0.98, 1e-9)
    assert config.train.label_smoothing == 0.0


@pytest.mark.slow
def test_it_translates_and_leaves_the_notebook(page, tmp_path, monkeypatch):
    """In a folder of its own, where nothing is trained yet."""
    root = Path(__file__).parent.parent.parent
    for name in ("export.py", "examples"):
        (tmp_path / name).symlink_to(root / name)
    monkeypatch.chdir(tmp_path)
    found = page("8_")
    assert found["written"]["es"][0] == "trescientos cuarenta y siete"
    assert found["written"]["de"][0] == "dreihundertsiebenundvierzig"
    assert found["scores"]["es"].bleu > 90
    assert found["scores"]["de"].exact_match > 90
    assert found["scores"]["es"].num_sentences == 1000
    assert found["deployed"] == found["written"]["es"]
    np.testing.assert_allclose(found["weights"].sum(axis=-1), 1.0, atol=1e-5)
