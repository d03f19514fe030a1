"""The settings of the section `data`; see `fields`."""

import dataclasses
from typing import Literal

from transformer_jax.config.pair_kinds import FILTERS, NOISES
from transformer_jax.config.setting import fraction, path_setting, setting

BleuTokenizer = Literal[
    "auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores101", "flores200", "none"
]
Batching = Literal["pack", "bucket"]


@dataclasses.dataclass(unsafe_hash=True)
class DataConfig:
    """Where sentence pairs come from and how they become batches."""

    source: Literal["tfds", "files", "prepared"] = setting(
        "tfds",
        "TensorFlow Datasets; text files (PREFIX.LANG, or one .tsv; .gz and .zst too); or a folder "
        "of `prepare`, which is the training data.",
    )
    tfds_name: str = setting("number_words/de", "Name of the TFDS data set.")
    data_dir: str = path_setting(
        "", "Folder of TFDS; empty: $TFDS_DATA_DIR, else the user's cache folder."
    )
    cache_dir: str = path_setting(
        "", "Folder of tokenised corpora; empty: the user's cache folder."
    )
    train: str = path_setting(
        "train", "Training data: a TFDS split, or path prefixes with commas.", "corpora"
    )
    validation: str = path_setting("validation", "Validation data, as `train`.", "corpora")
    test: str = path_setting("test", "Test data, as `train`.", "corpora")
    train_weights: tuple[float, ...] = setting(
        (), "Share of each corpus of `train` in the training data; empty: by size."
    )
    temperature: float = setting(
        1.0,
        "With corpora of several languages: their shares are size^(1 / temperature); 1: by size.",
        at_least=1,
    )
    stages: tuple[str, ...] = setting(
        (),
        'Shares of the corpora of `train` by step: "FIRST_STEP:SHARE,SHARE,…" for each stage, the '
        'first from step 0, such as ("0:1,1,0", "20000:1,1,8"); empty: the same in all steps.',
    )
    train_languages: tuple[str, ...] = setting(
        (),
        'Languages of each corpus, such as "en-de", or "pt-BR:en" where one has a "-"; empty: '
        "source_lang-target_lang.",
    )
    target_language_tags: bool = setting(
        False, 'Put the target language, "<2xx>", before the source.'
    )
    source_prefix: str = setting(
        "",
        'Text before every source, such as a task of T5: "translate English to German: ".',
    )
    source_lang: str = setting("en", "Language of the source: suffix of its files.")
    target_lang: str = setting("de", "Language of the target: suffix of its files.")
    vocab_size: int = setting(8000, "Tokens of the tokenizer that is trained.", at_least=8)
    target_vocab_size: int = setting(0, "The same of the target; 0: vocab_size.", at_least=0)
    tokenizer: Literal["unigram", "bpe"] = setting("unigram", "Kind of tokenizer to train.")
    new_tokens: int = setting(
        0,
        "Tokens to add to the vocabulary of `train.init_from`, learned from the training text of a "
        "new language; tags of new languages are added besides.",
        at_least=0,
    )
    tokenizer_model: str = path_setting(
        "", "Use this SentencePiece model instead; two files as SOURCE,TARGET.", "several"
    )
    normalization: str = setting(
        "identity",
        "SentencePiece's normalization rule: identity, nfkc, nmt_nfkc, nfkc_cf or nmt_nfkc_cf; "
        "two of them as SOURCE,TARGET.",
        former="nmt_nfkc",
    )
    shared_vocab: bool = setting(True, "Train one tokenizer for source and target.")
    lowercase: bool = setting(False, "Lower-case all text.")
    pretokenized: bool = setting(False, "BLEU's words are those between spaces.", resumable=True)
    bleu_tokenizer: BleuTokenizer = setting(
        "auto", "sacreBLEU's tokenizer; auto: by target_lang.", resumable=True
    )
    byte_fallback: bool = setting(True, "Write characters without a token as UTF-8 bytes.")
    subword_sampling: float = fraction(
        0.0,
        "Segment words at random, again in each epoch. bpe: probability that a merge is skipped; "
        "unigram: smoothing alpha; 0: off.",
    )
    augment: tuple[str, ...] = setting(
        (),
        'Noise in the sources of training, drawn again in each epoch: "KIND:SHARE" of the pairs, '
        'such as ("upper_case:0.05", "typos:0.1"). Kinds: '
        + ", ".join(f"{kind} ({note})" if note else kind for kind, note in NOISES.items())
        + ".",
    )
    character_coverage: float = setting(
        1.0, "Share of the text's characters that get tokens.", above=0, at_most=1
    )
    max_len: int = setting(
        256,
        "Longest training sentence in tokens, the end symbol included.",
        at_least=2,
        at_most=2**16 - 1,
    )
    max_ratio: float = setting(
        9.0,
        "Longest side of a training pair, in lengths of the other side; 0: no limit.",
        at_least=0,
        former=0.0,
    )
    filters: tuple[str, ...] = setting(
        (),
        f"Pairs that are left out of the training corpora: {', '.join(FILTERS)}; see "
        "docs/large_corpora.md.",
    )
    filter_function: str = setting(
        "",
        "MODULE:FUNCTION, a Python function of source and target that returns whether to keep the "
        "pair; empty: none.",
    )
    context_sentences: int = setting(
        0,
        "Sentences before a source that the model reads too. The corpora are documents then, "
        "sentence by sentence, with an empty pair between two of them.",
        at_least=0,
    )
    batching: Batching = setting(
        "pack",
        "pack: several sentences share a row; bucket: one sentence a row, of similar lengths.",
    )
    batch_tokens: int = setting(
        25_000,
        "Target positions of a step, all devices together; bucket: positions of the longer side.",
        at_least=1,
    )
    pack_len: int = setting(0, "Target positions of a packed row; 0: max_len.", at_least=0)
    num_buckets: int = setting(20, "Shapes of batches that bucket may use.", at_least=1)
    plan_version: int = setting(
        3,
        "Rules by which batches are planned; 1 and 2: those of earlier versions.",
        at_least=1,
        at_most=3,
        former=1,
    )
    num_workers: int = setting(
        0,
        "Processes that tokenise and plan; 0: one for each core.",
        at_least=0,
        resumable=True,
    )
    local_gib: float = setting(
        100.0,
        "Disk for copies of shards of a prepared folder in an object store, in GiB; those that "
        "were used longest ago are removed.",
        above=0,
        resumable=True,
    )
    batch_sentences: int = setting(
        0, "With bucket: sentences of a step, instead of batch_tokens; 0: off.", at_least=0
    )

    @property
    def tokens_differ_by_epoch(self) -> bool:
        """Whether each epoch is tokenised by itself."""
        return bool(self.why_tokens_differ)

    @property
    def why_tokens_differ(self) -> str:
        """The setting that changes tokens in each epoch, for messages; empty: none does."""
        if self.subword_sampling:
            return f"config.data.subword_sampling={self.subword_sampling:g}"
        return f"config.data.augment={self.augment}" if self.augment else ""


def parse_augment(augment: tuple[str, ...]) -> dict[str, float]:
    """Share of the pairs that have each kind of noise.

    Raises:
      ValueError: an entry does not look like `KIND:SHARE`.
    """
    parts = [entry.partition(":") for entry in augment]
    return {kind: float(share) for kind, _, share in parts}


def parse_languages(pair: str) -> tuple[str, str]:
    """Source and target of one of `train_languages`.

    Raises:
      ValueError: it does not look like one.
    """
    source, target = pair.split(":" if ":" in pair else "-")
    return source, target


def parse_stage(stage: str) -> tuple[int, list[float]]:
    """First step of one of `stages`, and the share of each corpus.

    Raises:
      ValueError: it does not look like one.
    """
    step, _, shares = stage.partition(":")
    return int(step), [float(share) for share in shares.split(",")]
