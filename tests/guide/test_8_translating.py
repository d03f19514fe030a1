"""Page 8: the whole job, trained; and its recipe."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax.config import validate


def test_recipe_has_the_settings_that_the_page_names():
    from configs import guide_multi30k

    config = validate(guide_multi30k.get_config())
    model, data, optimizer = config.model, config.data, config.optimizer
    assert (model.num_encoder_layers, model.num_decoder_layers, model.d_model) == (4, 4, 128)
    assert (model.num_heads, model.d_ff, model.dropout_rate) == (8, 512, 0.1)
    assert data.vocab_size <= 10_000
    assert (data.shared_vocab, data.lowercase, data.max_len) == (False, True, 41)  # and the end
    assert (data.batching, data.batch_sentences) == ("bucket", 64)
    assert (optimizer.name, optimizer.schedule, optimizer.learning_rate) == (
        "adam",
        "constant",
        1e-4,
    )
    assert (optimizer.b1, optimizer.b2, optimizer.eps) == (0.9, 0.98, 1e-9)
    assert config.train.label_smoothing == 0.0


@pytest.mark.slow
def test_page_trains_translates_and_exports():
    """As a separate program. It trains in `runs/guide`, unless `make docs` has done so."""
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, root / "docs" / "guide" / "8_translating.py"],
        # At full speed, and with the programs that `make docs` has compiled.
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root), "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "es: three hundred and forty-seven -> trescientos cuarenta y siete\n" in done.stdout
    assert "de: three hundred and forty-seven -> dreihundertsiebenundvierzig\n" in done.stdout
    scores_of = dict(re.findall(r"en -> (es|de): BLEU (.*)", done.stdout))
    scores = {
        name: [float(x) for x in re.findall(r"[\d.]+\d", text)] for name, text in scores_of.items()
    }
    assert scores["es"][0] > 90  # BLEU
    assert scores["de"][2] > 90  # exact
    deployed = done.stdout.partition("translate.py")[2]
    assert "trescientos cuarenta y siete\n" in deployed
