"""Directories as Hugging Face writes them: random weights, real SentencePiece models."""

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from num2words import num2words

from transformer_jax.workdir import machine

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)

LANGUAGES = ("en", "de")
SENTENCES = {
    language: [num2words(n, lang=language) for n in random.Random(1).sample(range(1_000_000), 400)]
    for language in LANGUAGES
}
INIT_STD = 0.15
# ctranslate2 4.8.5 multiplies int8 through oneDNN there, and a small model lost 89 of 100 BLEU.
HOST = machine.host()
NEEDS_VNNI = pytest.mark.skipif(
    "x86_64" in HOST["system"] and not any("vnni" in name for name in HOST["cpu_features"]),
    reason="int8 loses most BLEU on processors without VNNI instructions",
)


def train_spm_models() -> dict[str, bytes]:
    """One unigram model a language, as OPUS-MT has them: ids 0 .. 2 are <unk>, <s>, </s>."""
    models = {}
    for language, sentences in SENTENCES.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=90,
            minloglevel=2,
            character_coverage=1.0,
            hard_vocab_limit=False,
        )
        models[language] = model.getvalue()
    return models


def pieces_of(*models: bytes) -> list[str]:
    """Ordinary tokens of the models, in an order unlike that of their ids."""
    letters = set()
    for model in models:
        spm = sentencepiece.SentencePieceProcessor(model_proto=model)
        size = spm.get_piece_size()
        letters |= {
            spm.id_to_piece(i) for i in range(size) if not (spm.is_control(i) or spm.is_unknown(i))
        }
    tokens = sorted(letters)
    random.Random(2).shuffle(tokens)
    return tokens


def marian_vocabulary(tokens: list[str], codes: tuple[str, ...] = ()) -> dict[str, int]:
    """`</s>` first, `<pad>` last, as in OPUS-MT."""
    return {p: i for i, p in enumerate(["</s>", "<unk>", *codes, *tokens, "<pad>"])}


def randomise(model: torch.nn.Module, seed: int = 0, std: float = INIT_STD) -> None:
    """Gives every tensor, norms, biases and buffers included, values that matter."""
    rng = np.random.default_rng(seed)
    positions = [name for name, _ in model.named_parameters() if "embed_positions" in name]
    with torch.no_grad():
        named = dict(model.named_parameters()) | {
            n: b for n, b in model.named_buffers() if n == "final_logits_bias"
        }
        for name, tensor in named.items():
            if name in positions:
                continue
            values = rng.normal(0.0, std, tuple(tensor.shape))
            if "layer_norm.weight" in name:
                values += 1.0
            if name == "final_logits_bias":
                values *= 10
            tensor.copy_(torch.tensor(values, dtype=tensor.dtype))


def write_spm_files(folder: Path, models: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "source.spm").write_bytes(models["en"])
    (folder / "target.spm").write_bytes(models["de"])


SIZES = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
}


def make_marian(
    folder: Path,
    models: dict[str, bytes],
    seed: int = 0,
    codes: tuple[str, ...] = (),
    generation: dict[str, Any] | None = None,
    **config: Any,
) -> transformers.MarianMTModel:
    """A Marian directory, model and tokenizer, as `save_pretrained` writes it."""
    shared = config.get("share_encoder_decoder_embeddings", True)
    raw = folder.parent / f"{folder.name}.files"
    write_spm_files(raw, models)
    if shared:
        vocabularies = [marian_vocabulary(pieces_of(models["en"], models["de"]), codes)]
    else:
        vocabularies = [marian_vocabulary(pieces_of(models[lang]), codes) for lang in LANGUAGES]
    for name, vocabulary in zip(("vocab.json", "target_vocab.json"), vocabularies, strict=False):
        (raw / name).write_text(json.dumps(vocabulary), encoding="utf-8")
    tokenizer = transformers.MarianTokenizer(
        str(raw / "source.spm"),
        str(raw / "target.spm"),
        str(raw / "vocab.json"),
        target_vocab_file=None if shared else str(raw / "target_vocab.json"),
        separate_vocabs=not shared,
        source_lang="en",
        target_lang="de",
    )
    settings = {
        **SIZES,
        "vocab_size": len(vocabularies[0]),
        "decoder_vocab_size": len(vocabularies[-1]),
        "pad_token_id": vocabularies[0]["<pad>"],
        "decoder_start_token_id": vocabularies[-1]["<pad>"],
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "activation_function": "swish",
        "scale_embedding": True,
        "dropout": 0.1,
        **config,
    }
    model = transformers.MarianMTModel(transformers.MarianConfig(**settings)).eval()
    randomise(model, seed)
    model.generation_config = transformers.GenerationConfig(
        num_beams=4,
        max_length=40,
        pad_token_id=settings["pad_token_id"],
        eos_token_id=0,
        decoder_start_token_id=settings["decoder_start_token_id"],
        forced_eos_token_id=0,
        bad_words_ids=[[vocabularies[-1]["<pad>"]]],
        renormalize_logits=True,
        **(generation or {}),
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def make_pre_norm(
    folder: Path, models: dict[str, bytes], architecture: str, seed: int = 0, **config: Any
) -> transformers.PreTrainedModel:
    """An M2M-100 or Pegasus model's directory, without tokenizer files."""
    settings = {
        **SIZES,
        "vocab_size": 140,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        **config,
    }
    model_class = getattr(transformers, architecture)
    model = model_class(model_class.config_class(**settings)).eval()
    randomise(model, seed)
    model.generation_config.update(num_beams=3, max_length=30)
    model.save_pretrained(folder)
    return model


def make_m2m_100(folder: Path, models: dict[str, bytes], **config: Any) -> Any:
    """An M2M-100 directory: a vocabulary, then its hundred language tags and made-up words."""
    raw = folder.parent / f"{folder.name}.files"
    raw.mkdir(parents=True, exist_ok=True)
    (raw / "spm.model").write_bytes(models["en"])
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(models["en"])]
    (raw / "vocab.json").write_text(json.dumps({p: i for i, p in enumerate(vocabulary)}))
    tokenizer = transformers.M2M100Tokenizer(
        str(raw / "vocab.json"), str(raw / "spm.model"), src_lang="en", tgt_lang="de"
    )
    size = len(vocabulary) + len(tokenizer.lang_code_to_id) + 8
    model = make_pre_norm(
        folder, models, "M2M100ForConditionalGeneration", vocab_size=size, **config
    )
    tokenizer.save_pretrained(folder)
    return model


def make_nllb(folder: Path, models: dict[str, bytes], **config: Any) -> Any:
    """An NLLB directory: M2M-100's class with a `tokenizer.json`."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁", *"abcdefghijklmnopqrstuvwxyz-,", "▁t", "en"]
    merges = [("▁", "t"), ("e", "n")]
    tokenizer = transformers.NllbTokenizer(
        vocab={p: i for i, p in enumerate(tokens)},
        merges=merges,
        src_lang="eng_Latn",
        tgt_lang="deu_Latn",
    )
    model = make_pre_norm(
        folder, models, "M2M100ForConditionalGeneration", vocab_size=len(tokenizer), **config
    )
    tokenizer.save_pretrained(folder)
    return model
