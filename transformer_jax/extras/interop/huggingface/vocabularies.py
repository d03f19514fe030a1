"""Ids of tokens by the files of a Hugging Face directory: SentencePiece's with others around them.

A `tokenizer.json` has all of them; these are the files of slow tokenizers.
"""

import dataclasses
from typing import Any

import sentencepiece
from etils import epath

from transformer_jax.data.foreign_tokenizers import import_tokenizers
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface.settings import read_json

# M2M-100's lists of languages: its directories only name the list.
LANGUAGE_CODES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga "
    "gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
    "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn "
    "tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
# mBART-50's, in the order of their ids.
MBART_50_CODES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL "
    "hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN "
    "th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
PEGASUS_OFFSET = 103  # ids before those of SentencePiece's tokens


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A SentencePiece model and ids.

    Attributes:
      model: that splits text into tokens.
      ids: of each token.
      marks: tokens that are no text, besides the special ones.
    """

    model: bytes
    ids: dict[str, int]
    marks: list[str]


def t5(
    folder: epath.Path, options: dict[str, Any], special: dict[str, str], vocab_size: int
) -> Vocabulary:
    """`spiece.model`, then the marks of T5's first training, the last one with the lowest id."""
    del special  # tokens of the model
    model = read_bytes(folder / "spiece.model")
    tokens = _tokens(folder / "spiece.model", model)
    extra = options.get("extra_ids", 100)
    marks = [f"<extra_id_{i}>" for i in reversed(range(extra))]
    ids = {token: i for i, token in enumerate([*tokens, *marks])}
    if len(ids) > vocab_size:
        raise UserError(
            f"{folder}/spiece.model has {len(tokens)} tokens, and {extra} marks follow, but "
            f"config.json says {vocab_size}."
        )
    return Vocabulary(model, ids, marks)


def pegasus(
    folder: epath.Path, options: dict[str, Any], special: dict[str, str], vocab_size: int
) -> Vocabulary:
    """Padding, end symbol and marks of the first training, then `spiece.model`."""
    model = read_bytes(folder / "spiece.model")
    # Its first two are padding and end symbol too, which have other ids.
    tokens = _tokens(folder / "spiece.model", model)[2:]
    offset = options.get("offset", PEGASUS_OFFSET)
    marks = ["<mask_1>", "<mask_2>", *(f"<unk_{i}>" for i in range(2, offset))]
    ids = {token: i for i, token in enumerate([special["pad"], special["eos"], *marks])}
    ids |= {token: i for i, token in enumerate(tokens, start=offset + 2)}
    if offset + 2 + len(tokens) > vocab_size:
        raise UserError(
            f"{folder}/spiece.model has {len(tokens)} tokens after {offset + 2} others, but "
            f"config.json says {vocab_size}."
        )
    return Vocabulary(model, ids, marks)


def mbart_50(
    folder: epath.Path, options: dict[str, Any], special: dict[str, str], vocab_size: int
) -> Vocabulary:
    """fairseq's ids: its special tokens, SentencePiece's from the fourth on, languages."""
    del options
    model = read_bytes(folder / "sentencepiece.bpe.model")
    first = [special[name] for name in ("bos", "pad", "eos", "unk")]
    tokens = _tokens(folder / "sentencepiece.bpe.model", model)[3:]
    codes = [*MBART_50_CODES.split(), "<mask>"]
    ids = {token: i for i, token in enumerate([*first, *tokens, *codes])}
    if len(ids) > vocab_size:
        raise UserError(
            f"{folder}/sentencepiece.bpe.model and {len(codes)} further tokens are "
            f"{len(ids)} tokens, but config.json says {vocab_size}."
        )
    return Vocabulary(model, ids, codes)


def byte_level_bpe(folder: epath.Path, special: dict[str, str]) -> bytes:
    """A `tokenizer.json` of `vocab.json` and `merges.txt`, as older versions saved them."""
    tokenizers = import_tokenizers()
    vocabulary = read_ids(folder / "vocab.json")
    lines = read_bytes(folder / "merges.txt").decode().splitlines()
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    try:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    except Exception as error:  # the package raises plain Exceptions
        raise UserError(f"{folder}/merges.txt does not fit vocab.json ({error}).") from error
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    names = dict.fromkeys([*special.values(), "<mask>"])
    tokenizer.add_special_tokens([name for name in names if name in vocabulary])
    return tokenizer.to_str().encode()


def read_bytes(path: epath.Path) -> bytes:
    """The content of a file; a `UserError` where there is none."""
    if not path.exists():
        raise UserError(f"{path.parent} has no {path.name}.")
    return path.read_bytes()


def read_ids(path: epath.Path) -> dict[str, int]:
    """The ids of a `vocab.json`.

    Raises:
      UserError: it does not map each token to a different id.
    """
    tokens = read_json(path)
    ids = list(tokens.values())
    if (
        not ids
        or not all(type(i) is int for i in ids)
        or len(set(ids)) != len(ids)
        or min(ids, default=0) < 0
    ):
        raise UserError(f"{path} must map each token to a different id.")
    return tokens


def _tokens(path: epath.Path, model: bytes) -> list[str]:
    """The tokens of a SentencePiece model."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise UserError(f"{path} is damaged ({error}); copy it again.") from error
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
