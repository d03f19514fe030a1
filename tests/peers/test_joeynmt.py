"""Models of JoeyNMT, read by us and computed by JoeyNMT itself: the same numbers and text."""

import os
import sys
import types
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import sentencepiece
import torch

from tests import joeynmt_models
from tests.joeynmt_models import CONFIG, changed
from tests.peers import builders
from transformer_jax import Translator
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import pickles
from transformer_jax.extras.interop.joeynmt import vocabularies

SOURCES, TARGETS = builders.SENTENCES["en"][:60], builders.SENTENCES["de"][:60]
BOTH = {"layer_norm": "pre", "activation": "gelu"}
# Settings, whether source and target have a vocabulary each, tokens that it does not have, and a
# seed that gives many outputs.
CONFIGURATIONS = {
    "post-norm, all tied": (
        changed(model__tied_embeddings=True, model__tied_softmax=True),
        False,
        (),
        3,
    ),
    "pre-norm, GELU, nothing tied, other heads, plain embeddings, a smaller vocabulary": (
        changed(
            model__encoder={
                **CONFIG["model"]["encoder"],
                **BOTH,
                "embeddings": {"embedding_dim": 24},
            },
            model__decoder={
                **CONFIG["model"]["decoder"],
                **BOTH,
                "embeddings": {"embedding_dim": 24},
                "num_heads": 4,
                "ff_size": 20,
            },
            testing__generate_unk=False,
        ),
        True,
        ("▁hundred", "hundert", "▁t", "ei"),
        0,
    ),
    "swish, tied output": (
        changed(
            model__tied_softmax=True,
            model__encoder__activation="swish",
            model__decoder__activation="swish",
        ),
        True,
        (),
        0,
    ),
    "tied inputs": (changed(model__tied_embeddings=True), False, (), 1),
}


@pytest.fixture(scope="module")
def joeynmt():
    """The package, without TensorBoard, which it imports for training."""
    sys.modules["torch.utils.tensorboard"] = types.ModuleType("torch.utils.tensorboard")
    sys.modules["torch.utils.tensorboard"].SummaryWriter = object
    try:
        import joeynmt.model
        import joeynmt.search
        import joeynmt.tokenizers
        import joeynmt.vocabulary
    finally:
        del sys.modules["torch.utils.tensorboard"]
    return joeynmt


class Peer:
    """A model and its tokenizers in JoeyNMT."""

    def __init__(self, joeynmt, folder, config, tensors):
        special = SimpleNamespace(sep_token=None, sep_id=None, lang_tags=[])
        for number, name in enumerate(("unk", "pad", "bos", "eos")):
            setattr(special, f"{name}_token", joeynmt_models.SPECIAL[number])
            setattr(special, f"{name}_id", number)
        self.joeynmt, self.vocabularies, self.tokenizers = joeynmt, [], []
        for side in ("src", "trg"):
            lines = (folder / f"{side}_vocab.txt").read_text(encoding="utf-8").splitlines()
            self.vocabularies.append(joeynmt.vocabulary.Vocabulary(lines, special))
            settings = config["data"][side]
            tokenizer = joeynmt.tokenizers.SentencePieceTokenizer(
                model_file=str(folder / f"{side}.model"), level=settings["level"]
            )
            # SentencePiece 0.2.3 has no SetVocabulary; tests/test_joeynmt.py has what 0.2.0 does.
            vocabulary = self.vocabularies[-1]
            proto = vocabularies.restricted(folder / f"{side}.model", vocabulary._stoi)
            tokenizer.spm = sentencepiece.SentencePieceProcessor(model_proto=proto)
            tokenizer.spm.SetVocabulary = lambda tokens: None
            tokenizer.set_vocab(vocabulary)
            self.tokenizers.append(tokenizer)
        self.model = joeynmt.model.build_model(config["model"], *self.vocabularies).eval()
        state = {name: torch.from_numpy(value) for name, value in tensors.items()}
        positions = {k: v for k, v in self.model.state_dict().items() if k.endswith(".pe.pe")}
        self.model.load_state_dict({**state, **positions})

    def ids(self, side, text, **symbols):
        tokens = self.tokenizers[side](text)
        return torch.tensor(self.vocabularies[side].sentences_to_ids([tokens], **symbols)[0])

    def encode(self, text):
        source = self.ids(0, text, bos=False, eos=True)
        mask = torch.ones(1, 1, source.shape[1], dtype=torch.bool)
        lengths = torch.tensor([source.shape[1]])
        with torch.no_grad():
            out = self.model(return_type="encode", src=source, src_length=lengths, src_mask=mask)
        return source, out[0], mask

    def log_probs(self, source, target):
        """Of each token of a target, its end symbol included."""
        _, encoded, mask = self.encode(source)
        ids = self.ids(1, target, bos=True, eos=True)
        with torch.no_grad():
            logits = self.model(
                return_type="decode",
                trg_input=ids[:, :-1],
                encoder_output=encoded,
                encoder_hidden=None,
                src_mask=mask,
                unroll_steps=None,
                trg_mask=torch.ones(1, 1, ids.shape[1] - 1, dtype=torch.bool),
            )[0]
        return torch.log_softmax(logits, -1)[0].gather(1, ids[0, 1:, None])[:, 0].numpy()

    def greedy(self, source, generate_unk):
        """Ids of the output, without its end symbol, and its text."""
        _, encoded, mask = self.encode(source)
        ids = self.joeynmt.search.greedy(
            mask, 12, self.model, encoded, None, generate_unk=generate_unk
        )
        tokens = self.vocabularies[1].arrays_to_sentences(ids[0])[0]
        without_end = [t for t in tokens if t != "</s>"]
        text = ""  # which JoeyNMT refuses to write
        if "".join(without_end).strip("▁"):
            text = self.tokenizers[1].post_process(list(without_end), generate_unk=False)
        return [self.vocabularies[1].lookup(t) for t in without_end], text


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_joeynmt_models_compute_what_joeynmt_computes(name, joeynmt, tmp_path):
    config, has_two, left_out, seed = CONFIGURATIONS[name]
    texts = [SOURCES, TARGETS] if has_two else [SOURCES + TARGETS]
    models = [joeynmt_models.spm_model(part) for part in texts]
    tensors = joeynmt_models.write_joeynmt(tmp_path / "m", models, config, left_out, seed)
    peer = Peer(joeynmt, tmp_path / "m", config, tensors)
    translator = Translator.load(tmp_path / "m")
    tokenizers = translator.tokenizers
    for side, tokenizer in enumerate((tokenizers.source, tokenizers.target)):
        for text in (SOURCES, TARGETS)[side]:
            assert tokenizer.encode(text) == peer.ids(side, text, bos=False, eos=False)[0].tolist()
    scored = translator.score_tokens(SOURCES, TARGETS)
    generate_unk = config["testing"].get("generate_unk", True)
    outputs = translator.translate(SOURCES, beam_size=1)
    assert len({output.ids for output in outputs}) > 5
    for source, target, ours, output in zip(SOURCES, TARGETS, scored, outputs, strict=True):
        theirs = peer.log_probs(source, target)
        np.testing.assert_allclose(ours.log_probs, theirs, atol=1e-4)
        ids, text = peer.greedy(source, generate_unk)
        assert list(output.ids) == ids
        if 0 not in ids:  # of an unknown token JoeyNMT writes the name if nothing else is left
            assert output.text == text


def test_checkpoint_of_joeynmt_is_a_pickle_that_is_converted_once(joeynmt, tmp_path):
    folder = tmp_path / "m"
    tensors = joeynmt_models.write_joeynmt(
        folder,
        [joeynmt_models.spm_model(SOURCES + TARGETS)],
        changed(model__tied_embeddings=True, model__tied_softmax=True),
    )
    want = Translator.load(folder)
    (folder / "best.safetensors").unlink()
    state = {name: torch.from_numpy(value) for name, value in tensors.items()}
    # Tied tables are one tensor, as in a model.
    state["trg_embed.lut.weight"] = state["src_embed.lut.weight"]
    state["decoder.output_layer.weight"] = state["src_embed.lut.weight"]
    training = {
        "model_state": state,
        "optimizer_state": {
            "state": {0: {"step": torch.tensor(3.0)}},
            "param_groups": [{"lr": 1.0}],
        },
        "scaler_state": None,
        "train_iter_state": torch.get_rng_state(),
        "stats_state": {"steps": 3, "best_ckpt_score": float("inf")},
    }
    torch.save(training, folder / "3.ckpt")
    (folder / "best.ckpt").symlink_to("3.ckpt")
    with pytest.raises(UserError, match=r"best\.ckpt is a pickle.*transformer-jax convert"):
        Translator.load(folder)

    def check(translator):
        for ours, same in zip(
            jax.tree.leaves(translator.params), jax.tree.leaves(want.params), strict=True
        ):
            np.testing.assert_array_equal(ours, same)

    check(Translator.load(folder, allow_pickle=True))
    said = []
    pickles.convert_directory(folder, said.append)
    assert said == [
        f"wrote {folder / 'best.safetensors'}; transformer-jax does not read best.ckpt any more"
    ]
    check(Translator.load(folder))
    pickles.convert_directory(folder, said.append)
    assert said[1:] == [f"{folder} has best.safetensors: there is nothing to convert"]
    # A checkpoint that training writes later is converted again.
    later = (folder / "best.safetensors").stat().st_mtime + 10
    os.utime(folder / "3.ckpt", (later, later))
    with pytest.raises(UserError, match=r"best\.ckpt is a pickle"):
        Translator.load(folder)
