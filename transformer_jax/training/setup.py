"""Everything a run needs before its first compilation; whatever is wrong with it shows here."""

import dataclasses
import hashlib
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from etils import epath

from transformer_jax import distributed
from transformer_jax.config import Config, keep_former_defaults, validate
from transformer_jax.data import batch_plan, sources
from transformer_jax.data.batch_shapes import BatchShape
from transformer_jax.data.epoch_data import Epochs, prepare_epochs
from transformer_jax.data.loader import BatchSource
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair, special_ids
from transformer_jax.data.tokenizer_training import make_tokenizers
from transformer_jax.errors import UserError
from transformer_jax.evaluation import model_metrics
from transformer_jax.interop import pretrained
from transformer_jax.runs import workdir as workdir_lib
from transformer_jax.training import partition

Say = Callable[[str], None]
REPORTED_LOSS = 0.001  # share of references changed by the tokenizer from which it is reported


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """Tokenised corpus with its plan, and the validation pairs."""

    tokenizers: TokenizerPair
    epochs: Epochs
    padding: float  # share of all positions, 0 .. 1
    validation: list[tuple[str, str]]
    initial_params: Any = None  # of train.init_from; None: fresh ones, or those of a checkpoint

    def batches(self, config: Config, row_multiple: int = 1, local_rows=None) -> BatchSource:
        """The batches of the run; arguments as of `BatchSource`."""
        ids = special_ids(self.tokenizers, config.model)
        return BatchSource(self.epochs, ids, config.train.num_steps, row_multiple, local_rows)

    @property
    def shapes(self) -> list[BatchShape]:
        """Every shape of a batch, the one that costs most first."""
        return self.epochs.first.plan.shapes

    def padded_shapes(self, row_multiple: int) -> list[BatchShape]:
        """The same with empty rows, as devices and accumulated parts compute them."""
        padded = (shape.padded(row_multiple) for shape in self.shapes)
        return sorted(dict.fromkeys(padded), key=lambda shape: -shape.cost)


def prepare_everywhere(
    config: Config, workdir: epath.Path, say: Say, writes: bool = True
) -> tuple[Config, TrainingData]:
    """`prepare` on every process; what can be shared is made by process 0, first and once."""
    made: list[tuple[Config, TrainingData]] = []
    distributed.run_on_primary(
        lambda: made.append(prepare(config, workdir, say, writes)), "preparation"
    )
    if made:
        return distributed.run_on_all(lambda: made[0], "data")
    return distributed.run_on_all(lambda: prepare(config, workdir, lambda _: None), "data")


def prepare(
    config: Config, workdir: epath.Path, say: Say, writes: bool = True
) -> tuple[Config, TrainingData]:
    """Reads, tokenises and plans; returns the config with the tokenizer's sizes filled in.

    With `writes=False` the run in `workdir` must be there, and stays as it is.

    Raises:
      UserError: whatever about config, data or work directory cannot work.
    """
    validate(config)
    if not writes:
        workdir_lib.read_config(workdir)  # which says where there is none
    if config.train.eval_every_steps:
        model_metrics.bleu_tokenizer(config.data)  # or it would be missed at the first evaluation
    corpora = sources.open_corpora(config.data, "train")
    validation: list[tuple[str, str]] = []
    if config.train.eval_every_steps:
        # Read to its end, so that damage shows now.
        for corpus in sources.open_corpora(config.data, "validation"):
            validation.extend(corpus.read())
        validation = validation[: config.train.eval_sentences or None]
    folder = workdir / "tokenizer"
    initial_params = None
    if workdir_lib.has_checkpoints(workdir):
        tokenizers = TokenizerPair.load(folder)
        config = _go_on_from(config, workdir_lib.read_config(workdir), say)
    elif config.train.init_from:
        start = pretrained.load(config.train.init_from, allow_pickle=config.train.allow_pickle)
        tokenizers, initial_params = start.tokenizers, start.params
        config = adopt(config, start.config)
        say(f"starting from {config.train.init_from}: its model, tokenizer and suppressed tokens; "
            "of config.model, dropout rates, dtype and attention are the recipe's")  # fmt: skip
    else:
        tokenizers = _made_before(workdir, config, corpora) or make_tokenizers(config.data, corpora)
    config = resolve(config, tokenizers)
    workdir_lib.check_resumable(workdir, config)
    epochs, selection = prepare_epochs(corpora, tokenizers, config)
    plan = epochs.first.plan
    row_multiple = partition.num_row_parts(config) * config.train.accumulate_steps
    padding = batch_plan.padding_report(plan, selection, row_multiple)
    fingerprints = {"corpus": _fingerprint(corpora), "tokenizer": tokenizers.fingerprint}
    workdir_lib.check_same_data(workdir, fingerprints)
    if writes and distributed.is_primary():
        if not workdir_lib.has_checkpoints(workdir):
            tokenizers.save(folder)
            record = {**fingerprints, "tokenizer_settings": _tokenizer_settings(config)}
            workdir_lib.write_data_record(workdir, record)
        workdir_lib.write_config(workdir, config)
    _describe(config, corpora, tokenizers, selection, plan, padding, row_multiple, say)
    _report_lost_references([target for _, target in validation], tokenizers.target, say)
    return config, TrainingData(tokenizers, epochs, padding, validation, initial_params)


def _tokenizer_settings(config: Config) -> dict[str, Any]:
    """The settings that a trained tokenizer depends on, besides its corpora."""
    names = (
        "tokenizer", "vocab_size", "shared_vocab", "lowercase", "normalization", "byte_fallback",
        "character_coverage", "target_language_tags", "tokenizer_model",
    )  # fmt: skip
    # A tokenizer that was adopted with a model is not one that would be made here.
    return {name: getattr(config.data, name) for name in names} | {
        "init_from": config.train.init_from}  # fmt: skip


def _made_before(
    workdir: epath.Path, config: Config, corpora: Sequence[sources.Corpus]
) -> TokenizerPair | None:
    """The tokenizer of a run that has no checkpoint yet, if it would be made the same again."""
    record = workdir_lib.read_data_record(workdir) or {}
    same = record.get("corpus") == _fingerprint(corpora) and (
        record.get("tokenizer_settings") == _tokenizer_settings(config)
    )
    folder = workdir / "tokenizer"
    # A file that is named is read again: it may have been replaced.
    if not same or config.data.tokenizer_model or not (folder / "tokenizer.json").exists():
        return None
    tokenizers = TokenizerPair.load(folder)
    # A kill may have come between the tokenizer and the record.
    return tokenizers if tokenizers.fingerprint == record.get("tokenizer") else None


def _fingerprint(corpora: Sequence[sources.Corpus]) -> str:
    identity = [(c.fingerprint, c.source_lang, c.target_lang) for c in corpora]
    return hashlib.blake2b(repr(identity).encode(), digest_size=16).hexdigest()


def _go_on_from(config: Config, stored: Config, say: Say) -> Config:
    """`config` for a run that has checkpoints; what its start determined stays.

    Raises:
      UserError: where it was started from another model.
    """
    config = keep_former_defaults(config, stored, say)
    before = stored.train.init_from
    if config.train.init_from not in ("", before):
        raise UserError(
            f"config.train.init_from={config.train.init_from}, but the run in this work directory "
            f"was started from {before or 'fresh parameters'}; use another --workdir."
        )
    if not before:
        return config
    train = dataclasses.replace(config.train, init_from=before)
    return adopt(dataclasses.replace(config, train=train), stored)


def adopt(config: Config, start: Config) -> Config:
    """`config` for the model of `start`: what its parameters and tokenizer determine.

    Raises:
      UserError: where the two cannot go together.
    """
    kept = ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate", "dtype",
            "attention")  # fmt: skip
    return validate(
        dataclasses.replace(
            config,
            model=dataclasses.replace(
                start.model, **{name: getattr(config.model, name) for name in kept}
            ),
            data=dataclasses.replace(
                config.data,
                shared_vocab=start.data.shared_vocab,
                lowercase=start.data.lowercase,
                normalization=start.data.normalization,
                # Tags on both sides are the model's; those on the source may or may not be used.
                target_language_tags=(
                    config.data.target_language_tags or start.data.target_language_tags
                ),
            ),
            decode=dataclasses.replace(config.decode, suppressed_ids=start.decode.suppressed_ids),
        )
    )


def resolve(config: Config, tokenizers: TokenizerPair) -> Config:
    """The config with the vocabulary sizes and the start id that the tokenizers determine."""
    model = dataclasses.replace(
        config.model,
        source_vocab_size=tokenizers.source.vocab_size,
        target_vocab_size=tokenizers.target.vocab_size,
        decoder_start_id=(
            tokenizers.target.bos_id
            if config.model.decoder_start_id < 0
            else config.model.decoder_start_id
        ),
    )
    for name in ("source_vocab_size", "target_vocab_size"):
        given = getattr(config.model, name)
        if given not in (0, getattr(model, name)):
            raise UserError(
                f"config.model.{name}={given}, but the tokenizer has {getattr(model, name)}; "
                "leave it at 0 to take the tokenizer's."
            )
    return dataclasses.replace(config, model=model)


def _report_lost_references(references: list[str], tokenizer: Tokenizer, say: Say) -> None:
    """Says how many references no output can equal, because the tokenizer cannot write them."""
    lost = tokenizer.lost_texts(references)
    if lost and len(lost) > REPORTED_LOSS * len(references):
        before, after = _around_difference(*lost[0])
        say(
            f"{100 * len(lost) / len(references):.1f}% of the validation references do not survive "
            f"the tokenizer, so no output can equal them: {before!r} becomes {after!r}"
        )


def _around_difference(first: str, second: str) -> tuple[str, str]:
    """Both texts, no more than a few words around where they begin to differ."""
    pairs = zip(first, second, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
    start = max(0, same - 30)
    cut = "…" if start else ""
    return cut + first[start : same + 30], cut + second[start : same + 30]


def _describe(config, corpora, tokenizers, selection, plan, padding, row_multiple, say) -> None:
    data = config.data
    for corpus in corpora:
        say(f"{corpus.source_lang} -> {corpus.target_lang}: {corpus.name}")
        for source, target in itertools.islice(corpus.read(), 3):
            say(f"  {source}  ->  {target}")
    sizes = {tokenizers.source.vocab_size, tokenizers.target.vocab_size}
    say(
        f"{selection.num_pairs:,} pairs, {' and '.join(map(str, sorted(sizes)))} tokens; "
        f"left out: {selection.num_empty:,} with an empty side, "
        f"{selection.num_too_long:,} above data.max_len={data.max_len}, {selection.num_uneven:,} "
        f"with one side over data.max_ratio={data.max_ratio:g} times as long as the other"
    )
    largest = plan.shapes[0]
    say(
        f"batches ({data.batching}): {plan.batches_per_epoch:.1f} an epoch, {len(plan.shapes)} "
        f"shape(s), the largest {largest.rows} x {largest.source_len} + {largest.target_len} "
        f"positions; padding {100 * padding:.1f}%"
    )
    rows = largest.padded(row_multiple).rows
    if rows > largest.rows:
        say(
            f"  {rows - largest.rows} empty rows a batch make {largest.rows} rows {rows}, which "
            f"{row_multiple} parts of a batch (devices x accumulate_steps) divide"
        )
    if padding > 0.5:
        logging.warning("more than half of all positions are padding: lower data.max_len")
