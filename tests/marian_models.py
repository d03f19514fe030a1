"""Random models as Marian writes them: parameters, settings, vocabularies and `decoder.yml`."""

import io
import json

import numpy as np
import sentencepiece
import yaml

SETTINGS = {
    "type": "transformer",
    "dim-emb": 24,
    "enc-depth": 2,
    "dec-depth": 3,
    "transformer-heads": 3,
    "transformer-dim-ffn": 36,
    "transformer-ffn-activation": "relu",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-ffn-depth": 2,
    "transformer-guided-alignment-layer": "last",
    "transformer-no-projection": False,
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "tied-embeddings": False,
    "tied-embeddings-all": True,
    "tied-embeddings-src": False,
}
PRE_NORM = {
    "transformer-preprocess": "n",
    "transformer-postprocess": "da",
    "transformer-postprocess-top": "n",
}
SEARCH = {"beam-size": 3, "normalize": 0.7, "word-penalty": 0, "max-length-factor": 2}


def spm_model(texts, size=80):
    """A SentencePiece model with the special ids of Marian's."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=size,
        bos_id=-1,
        eos_id=0,
        unk_id=1,
        user_defined_symbols=[">>de<<"],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def tokens_of(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def write_vocabulary(path, tokens):
    """TOKEN: ID in each line, as Marian writes it."""
    lines = (f"{json.dumps(t, ensure_ascii=False)}: {i}\n" for i, t in enumerate(tokens))
    path.write_text("".join(lines), encoding="utf-8")


def random_tensors(settings, sizes, seed=0):
    """Every tensor of a model with these vocabularies, all random."""
    rng = np.random.default_rng(seed)
    tensors = {}
    dim, ffn = settings["dim-emb"], settings["transformer-dim-ffn"]
    is_pre = settings["transformer-preprocess"] == "n"

    def add(name, *shape, mean=0.0, std=0.4):
        tensors[name] = rng.normal(mean, std, shape).astype(np.float32)

    def norm(prefix, suffix=""):
        add(f"{prefix}_ln_scale{suffix}", 1, dim, mean=1.0)
        add(f"{prefix}_ln_bias{suffix}", 1, dim)

    if settings["tied-embeddings-all"] or settings["tied-embeddings-src"]:
        add("Wemb", sizes[0], dim, std=0.5)
    else:
        add("encoder_Wemb", sizes[0], dim, std=0.5)
        add("decoder_Wemb", sizes[1], dim, std=0.5)
    if not (settings["tied-embeddings-all"] or settings["tied-embeddings"]):
        add("decoder_ff_logit_out_W", dim, sizes[1])
    add("decoder_ff_logit_out_b", 1, sizes[1], std=0.2)
    for stack, depth in (("encoder", "enc-depth"), ("decoder", "dec-depth")):
        if "n" in settings["transformer-postprocess-emb"]:
            norm(f"{stack}_emb", "_pre")
        if is_pre:
            norm(f"{stack}_top")
        width = (stack == "decoder" and settings.get("transformer-decoder-dim-ffn")) or ffn
        for layer in range(1, settings[depth] + 1):
            for module in ("self", "context")[: 1 + (stack == "decoder")]:
                prefix = f"{stack}_l{layer}_{module}"
                for letter in "qkvo":
                    add(f"{prefix}_W{letter}", dim, dim)
                    add(f"{prefix}_b{letter}", 1, dim)
                norm(f"{prefix}_Wo", "_pre" if is_pre else "")
            prefix = f"{stack}_l{layer}_ffn"
            for number, (ins, outs) in enumerate(((dim, width), (width, dim)), start=1):
                add(f"{prefix}_W{number}", ins, outs)
                add(f"{prefix}_b{number}", 1, outs)
            norm(f"{prefix}_ffn", "_pre" if is_pre else "")
    return tensors


def write_npz(path, settings, tensors):
    text = np.frombuffer(yaml.safe_dump(settings).encode() + b"\0", np.int8)
    np.savez(path, **{**tensors, "special:model.yml": text})


def write_marian(folder, spm_models, settings, search=SEARCH, seed=0):
    """A folder with `decoder.yml`, `model.npz` and the vocabularies; returns its tensors.

    Args:
      folder: to write.
      spm_models: one of both sides, whose ids are the model's; or two, whose tokens
        `SIDE.vocab.yml` gives other ids.
      settings: of the model.
      search: settings of `decoder.yml`.
      seed: of the parameters.
    """
    folder.mkdir()
    if len(spm_models) == 1:
        (folder / "vocab.spm").write_bytes(spm_models[0])
        vocabs, sizes = ["vocab.spm"] * 2, [len(tokens_of(spm_models[0]))] * 2
    else:
        vocabs, sizes = ["source.vocab.yml", "target.vocab.yml"], []
        for side, model in zip(("source", "target"), spm_models, strict=True):
            (folder / f"{side}.spm").write_bytes(model)
            special, tokens = tokens_of(model)[:2], tokens_of(model)[2:]
            write_vocabulary(folder / f"{side}.vocab.yml", [*special, *reversed(tokens), "no", "1"])
            sizes.append(len(tokens) + 4)
    tensors = random_tensors(settings, sizes, seed)
    write_npz(folder / "model.npz", settings, tensors)
    options = {"models": ["model.npz"], "vocabs": vocabs, **search}
    (folder / "decoder.yml").write_text(yaml.safe_dump(options))
    return tensors
