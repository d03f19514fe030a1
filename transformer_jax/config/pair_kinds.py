"""Filters of training pairs and kinds of noise: one record for each.

The settings, their help and their checks are made from these records. What a filter or a noise does
is in `data.shards.filters` and `data.noise`, under the same names.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Filter:
    """A value of `data.filters`.

    Attributes:
      drops: what is wrong with a pair that it drops.
      settings: names of the settings of `data` that it reads. The token cache is keyed by their
        values.
      reads_tokens: whether it compares numbers of tokens; else it reads the texts.
    """

    drops: str
    settings: tuple[str, ...] = ()
    reads_tokens: bool = False


# In the order in which they are applied.
FILTERS = {
    "empty": Filter("a side has no text"),
    "control": Filter("a control character, or the mark of a character that was lost"),
    "identical": Filter("both sides are equal"),
    "language": Filter("a side is clearly in another language, or the sides are swapped"),
    "test_leaks": Filter("the pair, or a long side of it, is in the validation or test set"),
    "duplicates": Filter("an earlier pair of the corpus is equal"),
    "near_duplicates": Filter(
        "an earlier pair is equal up to case, digits, punctuation and spaces"
    ),
    "length": Filter(
        "a side has more than data.max_len tokens", settings=("max_len",), reads_tokens=True
    ),
    "ratio": Filter(
        "a side has more than data.max_ratio times the tokens of the other",
        settings=("max_ratio",),
        reads_tokens=True,
    ),
}

# Kind of `data.augment` -> what its name does not say.
NOISES = {
    "upper_case": "",
    "lower_case": "",
    "title_case": "",
    "no_punctuation": "",
    "no_end_punctuation": "",
    "extra_spaces": "",
    "typos": "in 15% of the longer words",
}
