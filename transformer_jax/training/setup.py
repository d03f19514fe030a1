"""What a run needs before its first compilation: config, tokenizers, tokens, batch plan."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from transformer_jax import distributed, waiting
from transformer_jax.config import Config, DataConfig, keep_former_defaults, validate
from transformer_jax.data import sources
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.epoch_data import Epochs, prepare_epochs
from transformer_jax.data.loader import BatchSource
from transformer_jax.data.plans.batch_shapes import BatchShape
from transformer_jax.data.plans.stream_plan import StreamPlan
from transformer_jax.data.prepared_folder import PreparedFolder
from transformer_jax.data.shards import shard_store
from transformer_jax.data.tokenizer import UNSEEDED_SAMPLING
from transformer_jax.data.tokenizer_pair import TokenizerPair, special_ids
from transformer_jax.errors import UserError
from transformer_jax.evaluation import bleu_tokenizers
from transformer_jax.model.transformer import param_shapes
from transformer_jax.training import data_description, loggers, partition
from transformer_jax.training.step import PyTree, TrainStep
from transformer_jax.workdir import folder as workdir_lib

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """Tokenised corpus with its plan, and the validation pairs."""

    tokenizers: TokenizerPair
    epochs: Epochs
    padding: float  # share of all positions, 0 .. 1
    validation: list[tuple[str, str]]
    initial_params: PyTree = None  # of train.init_from; None: fresh, or those of a checkpoint

    def without_params(self) -> "TrainingData":
        """The same without `initial_params`, to free their memory on the host."""
        return dataclasses.replace(self, initial_params=None)

    def batches(
        self,
        config: Config,
        row_multiple: int = 1,
        local_rows: Callable[[int], np.ndarray] | None = None,
    ) -> BatchSource:
        """The batches of the run: step n uses batch n - 1. Arguments as of `BatchSource`."""
        ids = special_ids(self.tokenizers, config.model)
        return BatchSource(self.epochs, ids, config.train.num_steps, row_multiple, local_rows)

    @property
    def shapes(self) -> list[BatchShape]:
        """Every shape of a batch, the most expensive one first."""
        return self.epochs.first.plan.shapes

    def pairs_of_corpora(self, step: int) -> dict[str, float]:
        """Pairs of each corpus in the batches of the first `step` steps, if corpora are mixed."""
        plan = self.epochs.first.plan
        if not isinstance(plan, StreamPlan) or plan.num_corpora == 1:
            return {}
        pairs = plan.pairs_before(step).round().tolist()
        return {f"pairs_of_corpus_{i}": count for i, count in enumerate(pairs, start=1)}

    def padded_shapes(self, row_multiple: int) -> list[BatchShape]:
        """The same with empty rows, as devices and accumulated parts compute them."""
        padded = (shape.padded(row_multiple) for shape in self.shapes)
        return sorted(dict.fromkeys(padded), key=lambda shape: -shape.cost)


def prepare(
    config: Config,
    workdir: epath.Path,
    say: Say,
    read_only: bool = False,
    train_pairs: Iterable[tuple[str, str]] | None = None,
) -> tuple[Config, TrainingData]:
    """Reads, tokenises and plans; returns the config with the tokenizer's sizes filled in.

    Args:
      config: of the run, validated.
      workdir: of the run, which exists with `read_only`.
      say: gets what is worth knowing about the data, line by line.
      read_only: write nothing into `workdir`.
      train_pairs: the training corpus; None: that of `config.data`.

    Raises:
      UserError: whatever about config, data or work directory cannot work.
    """
    if read_only:
        workdir_lib.read_config(workdir)  # raises where there is no run
    elif distributed.is_primary():
        _require_services(config)
    _refuse_unseeded_sampling(config.data)
    corpora = _open_training_corpora(config.data, train_pairs)
    validation = _read_validation(config)
    config, tokenizers, initial_params = _starting_point(config, workdir, corpora, say)
    config = fill_in_tokenizers(config, tokenizers)
    workdir_lib.check_resumable(workdir, config)
    if config.train.frozen:  # a wrong name shows before a large corpus is read
        jax.eval_shape(TrainStep(config).init_state, jax.random.key(0))

    row_multiple = partition.num_batch_shards(config) * config.train.accumulate_steps
    with waiting.reminded(lambda seconds: f"still tokenising after {seconds:.0f} s", say):
        epochs, facts = prepare_epochs(corpora, tokenizers, config, row_multiple)

    fingerprints = {"corpus": corpora_fingerprint(corpora), "tokenizer": tokenizers.fingerprint}
    workdir_lib.check_same_data(workdir, fingerprints)
    is_new = not workdir_lib.has_checkpoints(workdir)
    if is_new and distributed.is_primary() and not read_only:
        tokenizers.save(workdir / "tokenizer")
        record = {**fingerprints, "tokenizer_settings": _tokenizer_settings(config)}
        workdir_lib.write_data_record(workdir, record)
    for line in data_description.describe_corpora(config, corpora, tokenizers, facts.counts):
        say(line)
    if config.data.source != "prepared":  # `prepare` has said it
        for shards in epochs.first.corpus.shards:
            for line in shard_store.read_report(shards).lines():
                say(line)
    sizes = epochs.first.corpus.corpus_sizes
    for line in itertools.chain(
        data_description.describe_mixture(config.data, corpora, sizes),
        data_description.describe_batches(config, epochs.first.plan, facts.padding, row_multiple),
        data_description.describe_blank_pairs(validation, "config.data.validation"),
        data_description.describe_leaks(config.data, corpora, validation),
        data_description.describe_lost_references(validation, tokenizers.target),
    ):
        say(line)
    return config, TrainingData(tokenizers, epochs, facts.padding, validation, initial_params)


def _refuse_unseeded_sampling(data: DataConfig) -> None:
    if data.subword_sampling and UNSEEDED_SAMPLING and distributed.process_count() > 1:
        raise UserError(
            f"config.data.subword_sampling={data.subword_sampling:g}: the installed SentencePiece "
            "ignores its seed, so each process would draw other tokens. Install "
            "sentencepiece==0.2.1, or set it to 0."
        )


def _open_training_corpora(
    data: DataConfig, train_pairs: Iterable[tuple[str, str]] | None
) -> list[Corpus]:
    if train_pairs is None:
        return sources.open_corpora(data, "train")
    if data.source == "prepared" or data.train_languages:
        raise UserError(
            "`train_pairs` are one corpus of texts: they need config.data.source=files or tfds, "
            "and no config.data.train_languages."
        )
    return [Corpus.of_pairs(train_pairs, data.source_lang, data.target_lang)]


def _require_services(config: Config) -> None:
    """Raises a `UserError` if a program that the run needs later cannot be used here."""
    from transformer_jax.evaluation import comet  # here, for `loop` needs none of it

    loggers.require(config.train.loggers)
    comet.require_best_metric(config)


def _read_validation(config: Config) -> list[tuple[str, str]]:
    """The pairs that are evaluated; empty where nothing is."""
    if not config.train.eval_every_steps:
        return []
    bleu_tokenizers.for_data(config.data)  # raises now, not at the first evaluation
    pairs: list[tuple[str, str]] = []
    # Read to its end, so that damage shows now.
    for corpus in sources.open_corpora(config.data, "validation"):
        pairs.extend(corpus.read())
    return pairs[: config.train.eval_sentences or None]


def _starting_point(
    config: Config, workdir: epath.Path, corpora: Sequence[Corpus], say: Say
) -> tuple[Config, TokenizerPair, PyTree]:
    """Config, tokenizers and initial parameters (or None) of a resumed, fine-tuned or new run."""
    if workdir_lib.has_checkpoints(workdir):
        tokenizers = TokenizerPair.load(workdir / "tokenizer")
        return _resume_config(config, workdir_lib.read_config(workdir), say), tokenizers, None
    prepared = None
    if config.data.source == "prepared":
        folder = PreparedFolder.open(config.data.train)
        folder.check_settings(config.data)
        prepared = folder.tokenizers()
    if config.train.init_from:
        from transformer_jax.translator import pretrained  # here, for most runs read no model

        start = pretrained.load(
            config.train.init_from,
            allow_pickle=config.train.allow_pickle,
            # A process cannot lengthen a table of which others have shards.
            shapes=param_shapes
            if config.data.new_tokens and distributed.process_count() > 1
            else lambda model: partition.sharded_shapes(config, model),
        )
        if config.data.new_tokens:
            from transformer_jax.training.new_tokens import add_new_tokens

            start = add_new_tokens(start, config, corpora)
            sizes = [t.vocab_size for t in (start.tokenizers.source, start.tokenizers.target)]
            say(f"with new tokens: {sizes[0]:,} of the source, {sizes[1]:,} of the target")
        say(
            f"starting from {config.train.init_from}: its model, tokenizer and suppressed tokens; "
            "of config.model, dropout rates, dtype and attention are the recipe's"
        )
        if prepared and prepared.fingerprint != start.tokenizers.fingerprint:
            raise UserError(
                f"{config.data.train} was prepared with another tokenizer than that of "
                f"config.train.init_from={config.train.init_from}; prepare it with this setting."
            )
        return adopt_model(config, start.config), start.tokenizers, start.params
    refuse_without_model(config)
    if prepared:
        return config, prepared, None
    if earlier := _earlier_tokenizers(workdir, config, corpora):
        return config, earlier, None
    from transformer_jax.data.tokenizer_training import make_tokenizers  # a new run alone needs it

    with waiting.reminded(lambda s: f"still training the tokenizer after {s:.0f} s", say):
        return config, make_tokenizers(config.data, corpora), None


def describe_loss(config: Config) -> Iterator[str]:
    """How the training loss differs from that of validation, where it is far above it."""
    if config.train.label_smoothing:
        yield (
            "the loss of training steps is what is minimized, with label smoothing of "
            f"{config.train.label_smoothing:g} and dropout; that of evaluations has neither"
        )


def refuse_without_model(config: Config) -> None:
    """Refuses settings that change a trained model, where there is none.

    Raises:
      UserError: naming such a setting.
    """
    for name, value in (
        ("train.lora_rank", config.train.lora_rank),
        ("data.new_tokens", config.data.new_tokens),
    ):
        if value:
            raise UserError(
                f"config.{name}={value} changes a trained model: name it by "
                f"config.train.init_from, or set config.{name}=0."
            )


def _tokenizer_settings(config: Config) -> dict[str, Any]:
    """The settings that a trained tokenizer depends on, besides its corpora."""
    names = (
        "tokenizer",
        "vocab_size",
        "target_vocab_size",
        "shared_vocab",
        "lowercase",
        "normalization",
        "byte_fallback",
        "character_coverage",
        "target_language_tags",
        "tokenizer_model",
    )
    settings = {name: getattr(config.data, name) for name in names}
    if config.data.context_sentences:
        settings["context_sentences"] = config.data.context_sentences
    # A tokenizer that was adopted with a model is not one that would be trained here.
    return {**settings, "init_from": config.train.init_from}


def _earlier_tokenizers(
    workdir: epath.Path, config: Config, corpora: Sequence[Corpus]
) -> TokenizerPair | None:
    """Those of a run without a checkpoint, if training them again would give the same."""
    record = workdir_lib.read_data_record(workdir) or {}
    same = record.get("corpus") == corpora_fingerprint(corpora) and (
        record.get("tokenizer_settings") == _tokenizer_settings(config)
    )
    folder = workdir / "tokenizer"
    # A tokenizer file that the config names is read again: it may have been replaced.
    if not same or config.data.tokenizer_model or not (folder / "tokenizer.json").exists():
        return None
    tokenizers = TokenizerPair.load(folder)
    # A kill may have come between the tokenizer and the record.
    return tokenizers if tokenizers.fingerprint == record.get("tokenizer") else None


def corpora_fingerprint(corpora: Sequence[Corpus]) -> str:
    """Digest of the texts and languages of all corpora of a run."""
    identity = [(c.fingerprint, c.source_lang, c.target_lang) for c in corpora]
    return hashlib.blake2b(repr(identity).encode(), digest_size=16).hexdigest()


def _resume_config(config: Config, stored: Config, say: Say) -> Config:
    """`config` for a run that has checkpoints, with what its start has determined.

    Raises:
      UserError: where the run was started from another model.
    """
    config = keep_former_defaults(config, stored, say)
    init_from = stored.train.init_from
    if config.train.init_from not in ("", init_from):
        raise UserError(
            f"config.train.init_from={config.train.init_from}, but the run in this work directory "
            f"was started from {init_from or 'fresh parameters'}; use another `workdir`."
        )
    if not init_from:
        return config
    train = dataclasses.replace(config.train, init_from=init_from)
    return adopt_model(dataclasses.replace(config, train=train), stored)


def adopt_model(config: Config, start: Config) -> Config:
    """`config` with what the parameters and tokenizers of a model, `start`, determine.

    Raises:
      UserError: where the two contradict each other.
    """
    model = dataclasses.replace(
        start.model,
        dropout_rate=config.model.dropout_rate,
        attention_dropout_rate=config.model.attention_dropout_rate,
        activation_dropout_rate=config.model.activation_dropout_rate,
        dtype=config.model.dtype,
        attention=config.model.attention,
    )
    data = dataclasses.replace(
        config.data,
        shared_vocab=start.data.shared_vocab,
        lowercase=start.data.lowercase,
        normalization=start.data.normalization,
        # A model that was trained with tags needs them; another one may learn them.
        target_language_tags=config.data.target_language_tags or start.data.target_language_tags,
    )
    decode = dataclasses.replace(config.decode, suppressed_ids=start.decode.suppressed_ids)
    return validate(dataclasses.replace(config, model=model, data=data, decode=decode))


def fill_in_tokenizers(config: Config, tokenizers: TokenizerPair) -> Config:
    """The config with the vocabulary sizes and the start id that the tokenizers determine."""
    model = dataclasses.replace(
        config.model,
        source_vocab_size=tokenizers.source.vocab_size,
        target_vocab_size=tokenizers.target.vocab_size,
    )
    if model.decoder_start_id < 0:
        model = dataclasses.replace(model, decoder_start_id=tokenizers.target.bos_id)
    for name in ("source_vocab_size", "target_vocab_size"):
        given = getattr(config.model, name)
        if given not in (0, getattr(model, name)):
            raise UserError(
                f"config.model.{name}={given}, but the tokenizer has {getattr(model, name)}; "
                "leave it at 0 to take the tokenizer's."
            )
    return dataclasses.replace(config, model=model)
