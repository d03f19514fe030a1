"""Checks of the settings of `data`, together; see `checks`."""

from collections.abc import Iterator

from transformer_jax.config.data_fields import (
    DataConfig,
    parse_augment,
    parse_languages,
    parse_stage,
)
from transformer_jax.config.pair_kinds import FILTERS, NOISES
from transformer_jax.config.setting import all_settings, split_paths
from transformer_jax.errors import did_you_mean

NORMALIZATIONS = ("identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf")  # SentencePiece's


def data_conflicts(data: DataConfig) -> Iterator[str]:
    """A sentence for each combination of settings of `data` that cannot work."""
    rules = [name.strip() for name in data.normalization.split(",")]
    if len(rules) > 2 or not {*rules} <= {*NORMALIZATIONS}:
        yield (
            f"config.data.normalization={data.normalization!r} must be one of "
            f"{', '.join(NORMALIZATIONS)}, or two of them as SOURCE,TARGET."
        )
    (setting,) = (s for s in all_settings(DataConfig) if s.path == "normalization")
    unchosen = (setting.default, setting.former)  # of new runs, and of those of 0.1.0
    if data.tokenizer_model and data.normalization not in unchosen:
        yield (
            f"config.data.normalization={data.normalization} is for a tokenizer that is trained; "
            "config.data.tokenizer_model has a normalization already."
        )
    # A prepared folder knows its number of corpora, and is asked when it is opened.
    corpora = len(split_paths(data.train)) if data.source != "prepared" else 0
    mixes = data.train_languages or data.train_weights or data.stages
    if data.source == "tfds" and (corpora > 1 or mixes):
        yield (
            "config.data.train may name several corpora, weights and languages "
            "only with config.data.source=files."
        )
    yield from _mixture_conflicts(data, corpora)
    yield from _filter_conflicts(data)
    yield from _augment_conflicts(data)
    for name in ("train_weights", "train_languages"):
        if corpora and getattr(data, name) and len(getattr(data, name)) != corpora:
            yield (
                f"config.data.{name} has {len(getattr(data, name))} entries, "
                f"config.data.train names {corpora} corpora."
            )
    if any(weight <= 0 for weight in data.train_weights):
        yield f"config.data.train_weights={data.train_weights} must all be above 0."
    try:
        targets = {parse_languages(pair)[1] for pair in data.train_languages}
    except ValueError:
        yield (
            f"config.data.train_languages={data.train_languages} must look like en-de, or pt-BR:en "
            "where a language has a - in its name."
        )
        return
    if not data.target_language_tags and len(targets) > 1:
        yield (
            f"config.data.train_languages has targets {', '.join(sorted(targets))}: set "
            "config.data.target_language_tags=True so that the model reads which one to write."
        )
    if data.source_lang == data.target_lang:
        yield f"config.data.source_lang and target_lang are both {data.source_lang!r}."


def _filter_conflicts(data: DataConfig) -> Iterator[str]:
    for name in data.filters:
        if name not in FILTERS:
            yield (
                f"config.data.filters has no filter {name!r}{did_you_mean(name, FILTERS)} There "
                f"are {', '.join(FILTERS)}."
            )
    if {"duplicates", "near_duplicates"} <= {*data.filters}:
        yield "config.data.filters: near_duplicates are duplicates too; name one of the two."
    if data.context_sentences and (data.filters or data.filter_function):
        yield (
            "config.data.filters would take sentences out of documents, which "
            "config.data.context_sentences reads; use one of the two."
        )


def _augment_conflicts(data: DataConfig) -> Iterator[str]:
    try:
        shares = parse_augment(data.augment)
    except ValueError:
        shares = {"": 0.0}
    if not all(0 < share <= 1 for share in shares.values()):
        yield (
            f'config.data.augment={data.augment} must look like ("upper_case:0.05", "typos:0.1"), '
            "with shares above 0 and at most 1."
        )
        return
    for kind in shares:
        if kind not in NOISES:
            yield (
                f"config.data.augment has no noise {kind!r}{did_you_mean(kind, NOISES)} There are "
                f"{', '.join(NOISES)}."
            )
    if len(shares) < len(data.augment):
        yield f"config.data.augment={data.augment} names a kind of noise twice."
    if sum(shares.values()) > 1 + 1e-9:  # 0.05 + 0.55 + 0.3 + 0.1 is, by rounding
        yield f"config.data.augment={data.augment}: the shares are more than 1 together."
    if data.lowercase and {"upper_case", "lower_case", "title_case"} & {*shares}:
        yield (
            "config.data.augment changes the case of letters, but config.data.lowercase=True makes "
            "all text lower-case; remove one of the two."
        )


def _mixture_conflicts(data: DataConfig, corpora: int) -> Iterator[str]:
    ways = [name for name in ("train_weights", "stages") if getattr(data, name)]
    ways += ["temperature"] * (data.temperature != 1)
    if len(ways) > 1:
        yield f"config.data.{ways[0]} and {ways[1]} both set the shares of the corpora; choose one."
    if data.plan_version < 3 and (data.stages or data.temperature != 1):
        yield (
            f"config.data.{ways[-1]} needs batches planned by config.data.plan_version=3; this run "
            f"has {data.plan_version}. Use another work directory."
        )
    if data.stages and data.tokens_differ_by_epoch:
        yield (
            f"config.data.stages cannot be used with {data.why_tokens_differ}, which plans each "
            "epoch by itself; set one of the two to its default."
        )
    try:
        stages = [parse_stage(stage) for stage in data.stages]
    except ValueError:
        yield f'config.data.stages={data.stages} must look like ("0:1,1", "20000:1,4").'
        return
    steps = [step for step, _ in stages]
    if stages and (steps[0] != 0 or steps != sorted(set(steps))):
        yield f"config.data.stages={data.stages} must begin at step 0 and ascend."
    for stage, (_, shares) in zip(data.stages, stages, strict=True):
        if (
            (corpora and len(shares) != corpora)
            or min(shares) < 0
            or not sum(shares) < float("inf")
        ):
            yield (
                f"config.data.stages: {stage!r} must have a share of at least 0 for each "
                "corpus of config.data.train."
            )
        elif not sum(shares):
            yield f"config.data.stages: the shares of {stage!r} are all 0."
