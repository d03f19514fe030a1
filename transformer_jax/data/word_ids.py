"""Token ids of words that are kept, where a text is segmented word by word.

SentencePiece segments a text by byte-pair encoding in about 150 ns a character. Most words have
occurred before, so with a table of them it is several times as fast.
"""

from typing import Any

import sentencepiece

SPACE = "▁"  # SentencePiece's mark of a space
MAX_WORDS = 500_000  # of which ids are kept


class WordIds(dict[str, tuple[int, ...]]):
    """Words and their token ids; a word that is missing is segmented and added.

    Args:
      processor: of a model for which `separates_words` is true.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor):
        super().__init__()
        self._processor = processor

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple(self._processor.encode(word))
        if len(self) >= MAX_WORDS:
            self.clear()
        self[word] = ids
        return ids

    def __reduce__(self) -> tuple[Any, ...]:
        return WordIds, (self._processor,)


def separates_words(model: bytes) -> bool:
    """Whether a model segments each word by itself, whatever is before and after it.

    So it is in byte-pair encoding if no token has a space inside, as pairs of symbols are merged by
    rank, and those of two words never are. (A unigram model adds scores over the text, whose
    rounding may decide between two segmentations of a word.)

    Args:
      model: a serialised SentencePiece model.
    """
    from sentencepiece import sentencepiece_model_pb2  # transformers may install another one

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    entries = proto.pieces  # of the SentencePiece model
    tokens = [entry.piece for entry in entries]  # as SentencePiece writes them
    return (
        trainer.model_type == sentencepiece_model_pb2.TrainerSpec.BPE
        and not trainer.treat_whitespace_as_suffix
        and not normalizer.precompiled_charsmap  # which might look across a space
        and normalizer.add_dummy_prefix
        and normalizer.remove_extra_whitespaces
        and normalizer.escape_whitespaces
        and SPACE in tokens
        and not any(SPACE in token[1:] for token in tokens)
        and kinds.USER_DEFINED not in [entry.type for entry in entries]
    )
