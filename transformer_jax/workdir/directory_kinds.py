"""Recognises what a path holds that is not a work directory, for messages."""

import itertools
import json
from typing import Any

from etils import epath

from transformer_jax import paths
from transformer_jax.errors import but_there_is

_CTRANSLATE2 = "a CTranslate2 model, which only translates and scores, and no work directory"
# Of a CTranslate2 model, where its parameters are needed.
NO_PARAMETERS = (
    "is a CTranslate2 model: it translates and scores, but its parameters cannot be read; name the "
    "model that it was made from"
)
VOCABULARIES = tuple(
    f"{name}_vocabulary.{ending}" for name in ("shared", "source") for ending in ("json", "txt")
)
JOEYNMT_CONFIG = "config.yaml"
JOEYNMT_VOCABULARIES = "src_vocab.txt", "trg_vocab.txt"
MARIAN_DECODER = "decoder.yml"  # the end of the name; Marian writes model.npz.decoder.yml
# Files that all have to be present -> what the folder is, and what to name instead. The first entry
# that fits counts.
KINDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("decode_step.jax", "manifest.json"),
        "a StableHLO export, which cannot be read back; its README.md shows how to use it. Name "
        "the work directory that it was made from",
    ),
    *((("model.bin", name), _CTRANSLATE2) for name in VOCABULARIES),
    (
        ("adapter_config.json",),
        "an adapter for another model; merge it into that model first, by peft's merge_and_unload",
    ),
    (
        ("encoder_model.onnx",),
        "an ONNX export; name the Hugging Face directory that it was made from",
    ),
    (
        ("tokenizer.json", "shared.model"),
        "the tokenizer of a run; name the work directory, which is the folder above it",
    ),
    (
        ("_CHECKPOINT_METADATA",),
        "a checkpoint of a run; name the work directory, two folders above it, and give its number "
        "as `checkpoint`",
    ),
    (
        ("source.spm", "target.spm"),
        "the tokenizer of a Marian model without its config.json; copy all files of the model",
    ),
)
# Suffixes of files that users take for a model -> what is wrong.
FILES = {
    (".bin", ".safetensors"): "holds weights only; name the folder that it is in",
    (".spm", ".model"): "is a tokenizer; name the folder of the model",
    (".pt", ".pth", ".ckpt"): "is a checkpoint of PyTorch; name the folder, of Hugging Face or "
    "JoeyNMT",
    (".gz", ".tar", ".tgz", ".zip"): "is an archive; unpack it first",
    (".bundle",): "is damaged, or no bundle of this package; copy it again from the original",
}
# A bundle is a safetensors file with one entry of metadata. After the length of its header, in 8
# bytes, it begins with these, and the digest is next.
HEADER_START = 8
BUNDLE_KEY = "transformer_jax bundle"
BUNDLE_BEGIN = rb'{"__metadata__":{"transformer_jax bundle":"{\"sha256\": \"'


def is_bundle(path: epath.PathLike) -> bool:
    """Whether a path is a file that begins as a bundle does, whatever its name is."""
    path = epath.Path(path)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(HEADER_START + len(BUNDLE_BEGIN))[HEADER_START:] == BUNDLE_BEGIN


def is_ctranslate2(path: epath.PathLike) -> bool:
    """Whether a folder has a model of CTranslate2's."""
    folder = epath.Path(path)
    return (folder / "model.bin").is_file() and any(
        (folder / name).exists() for name in VOCABULARIES
    )


def is_hugging_face(path: epath.PathLike) -> bool:
    """Whether a folder has a config.json of Hugging Face's."""
    return "model_type" in (_read_config(path) or {})


def is_marian(path: epath.PathLike) -> bool:
    """Whether a path is a model of Marian itself: a folder with its `decoder.yml`, or that file."""
    path = epath.Path(path)
    if path.is_file():
        return path.name.endswith(MARIAN_DECODER)
    return bool(paths.matching(path, f"*{MARIAN_DECODER}"))


def is_joeynmt(path: epath.PathLike) -> bool:
    """Whether a folder has a model of JoeyNMT: its config, and a vocabulary that training wrote."""
    folder = epath.Path(path)
    return (folder / JOEYNMT_CONFIG).is_file() and any(
        (folder / name).is_file() for name in JOEYNMT_VOCABULARIES
    )


def is_run(path: epath.PathLike) -> bool:
    """Whether a folder has the `config.json` of a run, damaged or not.

    Published models have a file of that name too; in that of a run are the sections of `Config`.
    """
    config = _read_config(path)
    if config is None:
        return any((epath.Path(path) / name).exists() for name in ("data.json", "checkpoints"))
    return isinstance(config.get("train"), dict)


def describe_other_tools(path: epath.PathLike) -> str | None:
    """What a folder of another tool is; None: it is not recognised.

    Returns:
      The rest of a sentence that begins with the path, without a full stop.
    """
    config = _read_config(path)
    if config is None:
        return None  # the damage is reported
    if "model_type" in config:
        return "is a Hugging Face model, and no work directory"
    if is_marian(path):
        return "is a model of Marian itself, and no work directory"
    if is_joeynmt(path):
        return "is a model of JoeyNMT, and no work directory"
    if paths.matching(path, "*.intgemm*.bin*"):
        return (
            "is a model of Bergamot, as in Firefox, whose weights are rounded for that engine; "
            "name the Marian model that it was made from"
        )
    for names, what in KINDS:
        if all((epath.Path(path) / name).exists() for name in names):
            return f"is {what}"
    return None


def describe(path: epath.PathLike) -> str:
    """What a path is that is no work directory.

    Returns:
      The rest of a sentence that begins with the path, without a full stop.
    """
    path = epath.Path(path)
    if is_bundle(path):
        return "is a bundle, which holds the model only; name the work directory"
    if path.is_file():
        known = (what for suffixes, what in FILES.items() if path.suffix in suffixes)
        return next(known, "is a file; name the folder of a model, or a bundle")
    if not path.exists():
        hint = but_there_is(path)
        if not hint and (models := _models_in(path.parent)):
            hint = f"; {path.parent} has {models}"
        return f"is no work directory: there is no such folder{hint}"
    other = describe_other_tools(path)
    if other:
        return other
    if path.name == "checkpoints" and is_run(path.parent):
        return f"has the checkpoints of a run; name {path.parent}"
    if models := _models_in(path):
        return f"has models in it ({models}); name one of them"
    if (path / "recipe.py").exists():
        return (
            "has a recipe and no model yet; train it first: transformer-jax train "
            f"--config={path / 'recipe.py'} --workdir={path}"
        )
    return "is no work directory: it has no config.json"


def _models_in(folder: epath.Path) -> str:
    """The names of the first models in a folder; empty if there are none."""
    children = sorted(folder.iterdir(), key=str) if folder.is_dir() else []
    return ", ".join(itertools.islice((one.name for one in children if _is_model(one)), 3))


def _is_model(path: epath.Path) -> bool:
    """Whether a path is a model that can be read."""
    try:
        kinds = (is_run, is_hugging_face, is_bundle, is_ctranslate2, is_marian, is_joeynmt)
        return any(is_kind(path) for is_kind in kinds)
    except OSError:
        return False


def _read_config(path: epath.PathLike) -> dict[str, Any] | None:
    """The folder's config.json; empty if there is none, None if it is damaged."""
    try:
        config = json.loads((epath.Path(path) / "config.json").read_text(encoding="utf-8"))
    except OSError:
        return {}
    except ValueError:
        return None
    return config if isinstance(config, dict) else {}
