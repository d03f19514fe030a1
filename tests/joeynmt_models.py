"""Random models as JoeyNMT writes them: config, vocabularies, SentencePiece models, tensors."""

import copy
import io

import numpy as np
import sentencepiece
import yaml
from safetensors.numpy import save_file

STACK = {
    "type": "transformer",
    "num_layers": 2,
    "num_heads": 3,
    "embeddings": {"embedding_dim": 24, "scale": True},
    "hidden_size": 24,
    "ff_size": 36,
    "dropout": 0.1,
    "layer_norm": "post",
    "activation": "relu",
}
SIDE = {
    "level": "bpe",
    "lowercase": False,
    "normalize": False,
    "tokenizer_type": "sentencepiece",
}
CONFIG = {
    "name": "test",
    "joeynmt_version": "2.3.0",
    "model_dir": "models/test",
    "data": {
        "src": {**SIDE, "lang": "en", "tokenizer_cfg": {"model_file": "data/src.model"}},
        "trg": {**SIDE, "lang": "de", "tokenizer_cfg": {"model_file": "data/trg.model"}},
    },
    "testing": {"beam_size": 3, "beam_alpha": 0.7, "max_output_length": 12},
    "training": {},
    "model": {
        "tied_embeddings": False,
        "tied_softmax": False,
        "encoder": STACK,
        "decoder": {**STACK, "num_layers": 3},
    },
}
SPECIAL = ["<unk>", "<pad>", "<s>", "</s>"]


def changed(config=CONFIG, **changes):
    """A copy with other settings; `a__b=1` sets `b` in the section `a`, and None removes it."""
    config = copy.deepcopy(config)
    for name, value in changes.items():
        *sections, last = name.split("__")
        node = config
        for section in sections:
            node = node.setdefault(section, {})
        if value is None:
            node.pop(last, None)
        else:
            node[last] = value
    return config


def spm_model(texts, size=70):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=size,
        model_type="bpe",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def random_tensors(config, sizes, seed=0):
    """Every tensor of a model with these vocabularies, all random."""
    rng = np.random.default_rng(seed)
    tensors = {}

    def add(name, *shape, mean=0.0, std=0.4):
        tensors[name] = rng.normal(mean, std, shape).astype(np.float32)

    def dense(name, ins, outs):
        add(f"{name}.weight", outs, ins)
        add(f"{name}.bias", outs)

    def norm(name):
        add(f"{name}.weight", dim, mean=1.0)
        add(f"{name}.bias", dim)

    model = config["model"]
    for stack, attentions, norms in (
        ("encoder", ["src_src_att"], ["layer_norm"]),
        ("decoder", ["trg_trg_att", "src_trg_att"], ["x_layer_norm", "dec_layer_norm"]),
    ):
        dim, width = model[stack]["hidden_size"], model[stack]["ff_size"]
        for number in range(model[stack]["num_layers"]):
            prefix = f"{stack}.layers.{number}"
            for attention in attentions:
                for layer in ("q_layer", "k_layer", "v_layer", "output_layer"):
                    dense(f"{prefix}.{attention}.{layer}", dim, dim)
            dense(f"{prefix}.feed_forward.pwff_layer.0", dim, width)
            dense(f"{prefix}.feed_forward.pwff_layer.3", width, dim)
            for name in [*norms, "feed_forward.layer_norm"]:
                norm(f"{prefix}.{name}")
        if model[stack]["layer_norm"] == "pre":
            norm(f"{stack}.layer_norm")
        tensors[f"{stack}.pe.pe"] = np.zeros((1, 5000, dim), np.float32)  # JoeyNMT's are sinusoids
    add("src_embed.lut.weight", sizes[0], dim, std=0.5)
    add("trg_embed.lut.weight", sizes[1], dim, std=0.5)
    if model.get("tied_embeddings"):
        tensors["trg_embed.lut.weight"] = tensors["src_embed.lut.weight"].copy()
    add("decoder.output_layer.weight", sizes[1], dim)
    if model.get("tied_softmax"):
        tensors["decoder.output_layer.weight"] = tensors["trg_embed.lut.weight"].copy()
    return tensors


def write_joeynmt(folder, spm_models, config, left_out=(), seed=0):
    """A folder of JoeyNMT with a converted checkpoint; returns its tensors.

    Args:
      folder: to write.
      spm_models: of both sides, or one of each.
      config: of JoeyNMT.
      left_out: tokens of SentencePiece that the vocabularies do not have.
      seed: of the tensors.
    """
    folder.mkdir(parents=True)
    sizes = []
    for side, model in zip(("src", "trg"), spm_models * (3 - len(spm_models)), strict=False):
        (folder / f"{side}.model").write_bytes(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        tokens = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
        tokens = [*SPECIAL, *(t for t in tokens if t not in SPECIAL and t not in left_out)]
        (folder / f"{side}_vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
        sizes.append(len(tokens))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    tensors = random_tensors(config, sizes, seed)
    save_file(tensors, folder / "best.safetensors")
    return tensors
