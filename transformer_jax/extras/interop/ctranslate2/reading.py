"""Reads what a CTranslate2 directory says of its model: config, tokenizers, languages.

`transformer-jax export` writes our settings into it. Directories that CTranslate2's own converter
makes from Marian models have none; they need the model's SentencePiece files.
"""

import dataclasses
import json
import re
from typing import Any, NoReturn

from etils import epath

from transformer_jax.config import Config, DataConfig, DecodeConfig, ModelConfig, validate
from transformer_jax.config.json_format import from_json
from transformer_jax.data.foreign_tokenizers import VocabularyTokenizer
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import LanguageTags, TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.ctranslate2 import model_file
from transformer_jax.extras.interop.ctranslate2.model_file import Variable
from transformer_jax.translator.pretrained import Shapes
from transformer_jax.workdir.directory_kinds import NO_PARAMETERS

SETTINGS_FILE = "transformer_jax.json"
MARIAN_TAGS = LanguageTags(">>{}<<")
UNLIMITED = 1 << 14  # tokens that a model without tables of positions reads


@dataclasses.dataclass(frozen=True)
class Directory:
    """A CTranslate2 model, without its weights.

    Attributes:
      path: of the directory.
      config: of the model, with search settings that CTranslate2 has.
      tokenizers: of the model.
      source_tokens: CTranslate2's name of each source id.
      target_tokens: of each target id.
      adds_source_eos: whether CTranslate2 adds the end symbol to a source.
      attention_layer: decoder layer whose attention comes with translations, from 0.
      attention_heads: how many of its heads, the first ones, are averaged.
      attention_shift: as of `AttentionChoice`.
    """

    path: epath.Path
    config: Config
    tokenizers: TokenizerPair
    source_tokens: list[str]
    target_tokens: list[str]
    adds_source_eos: bool
    attention_layer: int
    attention_heads: int
    attention_shift: bool = False


def read_config(path: epath.PathLike) -> Config:
    """The config of a directory.

    Raises:
      UserError: naming what is missing, damaged or not supported.
    """
    return read_directory(path).config


def read_model(path: epath.PathLike, allow_pickle: bool, shapes: Shapes) -> NoReturn:
    """Raises a `UserError`: parameters of this format cannot be read."""
    raise UserError(f"{path} {NO_PARAMETERS}.")


def read_directory(path: epath.PathLike) -> Directory:
    """All but the weights of a directory.

    Raises:
      UserError: naming what is missing, damaged or not supported.
    """
    folder = epath.Path(path)
    variables = model_file.read_variables(folder / "model.bin")
    has_config = model_file.has_config(folder / "model.bin")
    options = _read_json(folder / "config.json") if has_config else _old_options(variables)
    source_tokens, target_tokens = _vocabularies(folder)
    attention_shift = False
    if (folder / SETTINGS_FILE).exists():
        config, tokenizers, attention_shift = _read_own(folder)
    else:
        tokenizers = _tokenizers(folder, options, source_tokens, target_tokens)
        config = _config(folder, options, variables, tokenizers)
    for side, tokens in (("source", source_tokens), ("target", target_tokens)):
        rows = variables[
            f"{'encoder' if side == 'source' else 'decoder'}/embeddings"
            f"{'_0' if side == 'source' else ''}/weight"
        ].shape[0]
        if rows != len(tokens):
            raise UserError(
                f"{folder}: the {side} vocabulary has {len(tokens)} tokens, and model.bin {rows}; "
                "copy the directory again."
            )
    decoder = config.model.for_decoder()
    layer = variables["decoder/alignment_layer"].number
    return Directory(
        folder,
        validate(_with_possible_search(config, variables)),
        tokenizers,
        source_tokens,
        target_tokens,
        bool(options.get("add_source_eos")),
        layer % decoder.num_decoder_layers,
        variables["decoder/alignment_heads"].number or decoder.num_heads,
        attention_shift,
    )


def _old_options(variables: dict[str, Variable]) -> dict[str, Any]:
    """What `config.json` says, of a model that is older than this file."""
    names = {"add_source_bos": "with_source_bos", "add_source_eos": "with_source_eos"}
    given = {name: variables[old].number for name, old in names.items() if old in variables}
    return {"bos_token": "<s>", **given}


def _with_possible_search(config: Config, variables: dict[str, Variable]) -> Config:
    """`config` with the sizes of `variables`, and a search that CTranslate2 has."""
    tables = (f"{part}/position_encodings/encodings" for part in ("encoder", "decoder"))
    rows = [variables[name].shape[0] for name in tables if name in variables]
    model = dataclasses.replace(config.model, max_len=min(config.model.max_len, *rows, UNLIMITED))
    data = dataclasses.replace(config.data, max_len=min(config.data.max_len, model.max_len))
    decode = dataclasses.replace(
        config.decode, stopping="first_k", at_limit="cut", renormalize=True
    )
    return dataclasses.replace(config, model=model, data=data, decode=decode)


def _read_own(folder: epath.Path) -> tuple[Config, TokenizerPair, bool]:
    """Config, tokenizers and `attention_shift` of a directory of `transformer-jax export`."""
    path = folder / SETTINGS_FILE
    state = _read_json(path)
    try:
        config = from_json(json.dumps(state["config"]), str(path))
        shift, state = bool(state.get("attention_shift")), state["tokenizers"]
        kinds = {tokenizer["kind"] for tokenizer in state["tokenizers"]}
        sides = ["source"] if state["shared"] else ["source", "target"]
        names = ["tokenizer.json"] if "tokenizers" in kinds else [f"{side}.spm" for side in sides]
        models = [_read_bytes(folder / name) for name in names]
        return config, TokenizerPair.from_state(state, models), shift
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error!r}); export the model again.") from error


def _tokenizers(
    folder: epath.Path,
    options: dict[str, Any],
    source_tokens: list[str],
    target_tokens: list[str],
) -> TokenizerPair:
    """The tokenizers of a directory without our settings: SentencePiece files of Marian's."""
    missing = [name for name in ("source.spm", "target.spm") if not (folder / name).exists()]
    if missing:
        names = " and no ".join(missing)
        raise UserError(
            f"{folder} has no {names}. Copy what is missing from the Marian model, "
            "or name these files as copy_files when you convert it."
        )
    sides = []
    for side, tokens in (("source", source_tokens), ("target", target_tokens)):
        model = _read_bytes(folder / f"{side}.spm")
        plain = Tokenizer(model)
        if plain.tokens(range(plain.vocab_size)) == tokens:  # an earlier export of ours
            sides.append(plain)
            continue
        special = {"pad": "<pad>", "eos": options.get("eos_token", "</s>"), "bos": ""}
        special["unk"] = options.get("unk_token", "<unk>")
        vocabulary = {token: i for i, token in enumerate(tokens)}
        vocabulary.setdefault("<pad>", len(vocabulary))  # the converter leaves it out
        sides.append(VocabularyTokenizer(model, vocabulary, special, len(vocabulary)))
    source, target = sides
    if source.model == target.model and source_tokens == target_tokens:
        target = source
    tags = LanguageTags() if type(source) is Tokenizer else MARIAN_TAGS
    return TokenizerPair(source, target, tags)


def _config(
    folder: epath.Path,
    options: dict[str, Any],
    variables: dict[str, Variable],
    tokenizers: TokenizerPair,
) -> Config:
    """The config of a directory without our settings, from the variables of its model."""
    source, target = tokenizers.source, tokenizers.target
    layers = [re.match(r"(encoder|decoder)/layer_(\d+)/", name) for name in variables]
    depth = {
        part: 1 + max(int(match[2]) for match in layers if match and match[1] == part)
        for part in ("encoder", "decoder")
    }
    start = str(options.get("decoder_start_token") or options.get("bos_token"))
    model = ModelConfig(
        num_encoder_layers=depth["encoder"],
        num_decoder_layers=depth["decoder"],
        d_model=variables["decoder/embeddings/weight"].shape[1],
        num_heads=variables["encoder/num_heads"].number,
        num_decoder_heads=variables["decoder/num_heads"].number,
        d_ff=variables["encoder/layer_0/ffn/linear_0/weight"].shape[0],
        decoder_d_ff=variables["decoder/layer_0/ffn/linear_0/weight"].shape[0],
        source_vocab_size=source.vocab_size,
        target_vocab_size=target.vocab_size,
        max_len=UNLIMITED,
        decoder_start_id=target.token_id(start),
        tie_embeddings="none",
    )
    languages = _read_json(folder / "tokenizer_config.json", missing_ok=True)
    data = DataConfig(
        source="files",
        source_lang=languages.get("source_lang") or "source",
        target_lang=languages.get("target_lang") or "target",
        shared_vocab=tokenizers.shared,
    )
    decode = DecodeConfig(length_penalty=1.0, length_penalty_kind="power")
    return Config(model=model, data=data, decode=decode)


def _vocabularies(folder: epath.Path) -> tuple[list[str], list[str]]:
    """CTranslate2's source and target tokens, in the order of their ids."""
    shared = _vocabulary(folder, "shared")
    if shared:
        return shared, shared
    source, target = _vocabulary(folder, "source"), _vocabulary(folder, "target")
    if not (source and target):
        raise UserError(f"{folder} has no shared_vocabulary.json; copy the directory again.")
    return source, target


def _vocabulary(folder: epath.Path, name: str) -> list[str]:
    """Tokens of a file of JSON, or of one of text, as converters before version 3 wrote it."""
    path = folder / f"{name}_vocabulary.json"
    if path.exists():
        return list(_read_json(path))
    path = folder / f"{name}_vocabulary.txt"
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []


def _read_json(path: epath.Path, missing_ok: bool = False) -> Any:
    if missing_ok and not path.exists():
        return {}
    try:
        return json.loads(_read_bytes(path))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); copy it again.") from error


def _read_bytes(path: epath.Path) -> bytes:
    if not path.exists():
        raise UserError(f"{path.parent} has no {path.name}; copy the directory again.")
    return path.read_bytes()
