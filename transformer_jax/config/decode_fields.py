"""The settings of the section `decode`; see `fields`."""

import dataclasses
from typing import Literal

from transformer_jax.config.setting import setting

Stopping = Literal["first_k", "hf_default", "exact"]
AtLimit = Literal["end", "free_end", "cut"]


@dataclasses.dataclass(unsafe_hash=True)
class DecodeConfig:
    """Search and sampling."""

    method: Literal["beam", "sample", "mbr"] = setting(
        "beam", "Beam search, sampling, or mbr: of several samples, the most similar to the others."
    )
    beam_size: int = setting(4, "Live hypotheses; 1 is greedy search.", at_least=1)
    length_penalty: float = setting(
        0.6, "Exponent of the length by which scores are divided.", at_least=0
    )
    length_penalty_kind: Literal["gnmt", "power"] = setting(
        "gnmt", "Length of a hypothesis of L tokens. gnmt: (5 + L) / 6; power: L."
    )
    stopping: Stopping = setting(
        "exact",
        "When beam search ends. first_k: at beam_size finished hypotheses; exact: when no live "
        "one can still win; hf_default: Hugging Face's rule.",
    )
    max_decode_len: int = setting(256, "Most tokens, the end symbol included.", at_least=1)
    max_decode_ratio: float = setting(
        3.0, "Most tokens for each source token, plus 10.", above=0, at_most=1e6
    )
    min_decode_len: int = setting(0, "Fewest tokens, the end symbol included.", at_least=0)
    min_decode_ratio: float = setting(
        0.0, "Fewest tokens for each source token.", at_least=0, at_most=1e6
    )
    at_limit: AtLimit = setting(
        "end",
        "What follows the last allowed token. end: the end symbol with its score; free_end: the "
        "end symbol without a score; cut: nothing.",
    )
    suppressed_ids: tuple[int, ...] = setting((), "Ids of tokens that are never written.")
    shortlist: bool = setting(
        False,
        "Search among the target tokens that belong to those of the source, by the shortlist that "
        "`transformer-jax shortlist` made; for method=beam.",
    )
    renormalize: bool = setting(False, "Probabilities sum to 1 over the tokens that are allowed.")
    coverage_penalty: float = setting(
        0.0, "Weight of the penalty for source positions with little attention.", at_least=0
    )
    no_repeat_ngram_size: int = setting(
        0, "Length of token sequences that are not repeated; 0: off.", at_least=0
    )
    repetition_penalty: float = setting(
        1.0, "CTRL's penalty on logits of tokens that were written already; 1: off.", above=0
    )
    beam_groups: int = setting(1, "Groups of a diverse beam search.", at_least=1)
    diversity_penalty: float = setting(
        0.5, "Subtracted for each earlier group that chose the same token.", at_least=0
    )
    temperature: float = setting(1.0, "Divides the logits before sampling.", above=0)
    top_k: int = setting(0, "Sample from as many likeliest ids; 0: all.", at_least=0, below=2**31)
    top_p: float = setting(
        1.0, "Sample from the likeliest tokens with this total probability.", above=0, at_most=1
    )
    min_p: float = setting(
        0.0, "Least probability of a token, as a share of the likeliest's.", at_least=0, at_most=1
    )
    seed: int = setting(0, "Of sampling; does not depend on the batch.", at_least=0, below=2**32)
    mbr_samples: int = setting(32, "Samples of mbr.", at_least=2)
    mbr_metric: Literal["chrf", "chrf++", "bleu", "ter"] = setting(
        "chrf", "Similarity of samples in mbr."
    )
    batch_tokens: int = setting(
        4096, "Source positions times beams that are decoded at once.", at_least=1
    )
