"""Models of Marian itself, read by us and by CTranslate2's converter: the same numbers and text."""

import ctranslate2
import numpy as np
import pytest

from tests import marian_models
from tests.marian_models import PRE_NORM, SETTINGS
from tests.peers import builders
from transformer_jax import Translator
from transformer_jax.extras.interop.marian import reading

SOURCES, TARGETS = builders.SENTENCES["en"][:60], builders.SENTENCES["de"][:60]
# Settings, whether source and target have a vocabulary each, and a seed that gives many outputs.
CONFIGURATIONS = {
    "post-norm": (SETTINGS, False, 0),
    "pre-norm, norms of embeddings": (
        {**SETTINGS, **PRE_NORM, "transformer-postprocess-emb": "nd"},
        False,
        6,
    ),
    "two vocabularies, nothing tied": (
        {**SETTINGS, "tied-embeddings-all": False, "transformer-decoder-dim-ffn": 20},
        True,
        7,
    ),
    "two vocabularies, tied output, pre-norm, swish": (
        {
            **SETTINGS,
            **PRE_NORM,
            "tied-embeddings-all": False,
            "tied-embeddings": True,
            "transformer-ffn-activation": "swish",
        },
        True,
        0,
    ),
    "tied inputs": (
        {**SETTINGS, "tied-embeddings-all": False, "tied-embeddings-src": True},
        False,
        0,
    ),
}


def positions(length, dim):
    """Marian's, by its source: `SinusoidalPositionEmbeddings` of its CPU operators."""
    rates = np.exp(np.arange(dim // 2) * -np.log(1e4) / (dim // 2 - 1))
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


class Converter(ctranslate2.converters.MarianConverter):
    """CTranslate2's, with the epsilon of Marian's norms."""

    def _load(self):
        spec = super()._load()
        spec.config.layer_norm_epsilon = 1e-6
        return spec


def convert(folder, settings, tensors):
    """The model by CTranslate2's converter, with Marian's positions, which it lacks."""
    tensors = {**tensors, "Wpos": positions(512, settings["dim-emb"])}
    marian_models.write_npz(folder / "with_positions.npz", settings, tensors)
    vocabularies = [folder / f"{side}.vocab.yml" for side in ("source", "target")]
    if not vocabularies[0].exists():
        tokens = marian_models.tokens_of((folder / "vocab.spm").read_bytes())
        for path in vocabularies:
            marian_models.write_vocabulary(path, tokens)
    converter = Converter(str(folder / "with_positions.npz"), list(map(str, vocabularies)))
    converter.convert(str(folder / "ctranslate2"))
    return ctranslate2.Translator(str(folder / "ctranslate2"))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_marian_models_equal_those_of_ctranslate2s_converter(name, tmp_path):
    settings, has_two, seed = CONFIGURATIONS[name]
    texts = [SOURCES, TARGETS] if has_two else [SOURCES + TARGETS]
    models = [marian_models.spm_model(part) for part in texts]
    tensors = marian_models.write_marian(tmp_path / "m", models, settings, seed=seed)
    peer = convert(tmp_path / "m", settings, tensors)
    translator = Translator.load(tmp_path / "m")
    source, target = translator.tokenizers.source, translator.tokenizers.target
    sources = [source.tokens(source.encode(text)) for text in SOURCES]
    scored = peer.score_batch(sources, [target.tokens(target.encode(text)) for text in TARGETS])
    ours = translator.score_tokens(SOURCES, TARGETS)
    for pair, theirs in zip(ours, scored, strict=True):
        np.testing.assert_allclose(pair.log_probs, theirs.log_probs, atol=2e-4)
    for beam_size in (1, 4):
        results = peer.translate_batch(
            sources,
            beam_size=beam_size,
            max_decoding_length=12,
            min_decoding_length=0,
            disable_unk=True,
            length_penalty=0.7,
        )
        outputs = translator.translate(
            SOURCES, beam_size=beam_size, max_decode_len=12, max_decode_ratio=100.0
        )
        assert len({output.ids for output in outputs}) > 5
        for output, theirs in zip(outputs, results, strict=True):
            assert target.tokens(output.ids) == theirs.hypotheses[0]


def test_marians_settings_of_search_and_tags_are_followed(tmp_path):
    models = [marian_models.spm_model(SOURCES + TARGETS)]
    marian_models.write_marian(tmp_path / "m", models, SETTINGS)
    config = reading.read_config(tmp_path / "m")
    decode = config.decode
    assert (decode.beam_size, decode.length_penalty, decode.max_decode_ratio) == (3, 0.7, 2.0)
    assert (decode.length_penalty_kind, decode.stopping) == ("power", "first_k")
    translator = Translator.load(tmp_path / "m")
    assert decode.suppressed_ids == (1, translator.tokenizers.target.pad_id)
    assert translator.tokenizers.languages == ["de"]
    with_tag = translator.engine.encoder(target_lang="de").source_ids(["ten"])[0]
    assert translator.tokenizers.source.tokens(with_tag)[0] == ">>de<<"
