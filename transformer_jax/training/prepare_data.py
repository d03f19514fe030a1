"""The work of the command `prepare`: tokenizer, shards and batch plan of a config, in a folder."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from etils import epath

from transformer_jax import paths, units, waiting
from transformer_jax.config import Config
from transformer_jax.data import prepared_folder, sources
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.epoch_data import EpochData, PlanFacts, prepare_epochs
from transformer_jax.data.prepared_folder import PreparedCorpus, PreparedFolder
from transformer_jax.data.shards import shard_store
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.data.tokenizer_training import make_tokenizers
from transformer_jax.data.workers import Workers
from transformer_jax.errors import UserError
from transformer_jax.training.data_description import describe_leaks
from transformer_jax.translator import pretrained

Say = Callable[[str], None]


def prepare(config: Config, folder: Path, workers: Workers, say: Say) -> PreparedFolder:
    """Writes the folder, or what it lacks; see `prepared_folder`.

    Args:
      config: of the runs that will read it.
      folder: new, or of an earlier call. Its tokenizer is used again; a corpus that is new to it is
        the only one that is tokenised.
      workers: the processes.
      say: gets what is worth knowing, line by line.

    Raises:
      UserError: whatever about config, text or folder cannot work.
    """
    _check(config, folder)
    started = time.monotonic()
    corpora = sources.open_corpora(config.data, "train")
    folder.mkdir(parents=True, exist_ok=True)
    config, tokenizers = _tokenizers(config, corpora, folder, say)
    shard_store.remove_damaged(sorted((folder / "tokens").glob("*")), workers)
    data = dataclasses.replace(config.data, cache_dir=str(folder))
    with waiting.reminded(lambda seconds: f"still tokenising after {seconds:.0f} s", say):
        epochs, facts = prepare_epochs(
            corpora, tokenizers, dataclasses.replace(config, data=data), workers=workers
        )
    parts = epochs.first.corpus.shards
    prepared = PreparedFolder(
        folder,
        [
            PreparedCorpus(
                corpus.name,
                corpus.source_lang,
                corpus.target_lang,
                shards[0].folder.parent,
                sum(shard.num_pairs for shard in shards),
                shards[0].folder.parent.name,
                [(shard.num_pairs, shard.fingerprint) for shard in shards],
            )
            for corpus, shards in zip(corpora, parts, strict=True)
        ],
        prepared_folder.settings_of(config.data),
    )
    reports = [shard_store.read_report(shards) for shards in parts]
    dropped = [dict(sorted(report.dropped.items())) for report in reports]
    prepared.write({"dropped": dropped})
    for corpus, report in zip(prepared.corpora, reports, strict=True):
        say(
            f"{corpus.source_lang} -> {corpus.target_lang}: {corpus.name}: "
            f"{corpus.num_pairs:,} pairs"
        )
        for line in report.lines():
            say(f"  {line}")
    has_validation = config.data.source == "files" and config.data.validation
    held_out = sources.open_corpora(config.data, "validation") if has_validation else []
    validation = itertools.chain.from_iterable(one.read() for one in held_out)
    for line in describe_leaks(config.data, corpora, validation):
        say(line)
    for line in _describe(epochs.first, facts, time.monotonic() - started):
        say(line)
    return prepared


def _check(config: Config, folder: Path) -> None:
    if paths.is_remote(folder):
        raise UserError(f"`output`={folder}: data is prepared in a local folder or a shared disk.")
    if config.data.source == "prepared":
        raise UserError(
            f"config.data.source=prepared: {config.data.train} is prepared already. Name the text "
            "with config.data.source=files and config.data.train."
        )
    if config.data.new_tokens:
        raise UserError(
            f"config.data.new_tokens={config.data.new_tokens} extends the tokenizer when training "
            "starts, from text; such a run cannot read prepared data."
        )
    if config.data.tokens_differ_by_epoch:
        raise UserError(
            f"{config.data.why_tokens_differ} tokenises the text again in each epoch, so it cannot "
            "be prepared; set it to its default."
        )
    if config.data.plan_version < 3:
        raise UserError("`prepare` needs config.data.plan_version=3, the default.")


def _tokenizers(
    config: Config, corpora: Sequence[Corpus], folder: Path, say: Say
) -> tuple[Config, TokenizerPair]:
    """Those of the folder; else those of the model to start from, or new ones.

    Returns:
      The config, with what a model to start from determines, and the tokenizers.

    Raises:
      UserError: the folder has another tokenizer than the config asks for.
    """
    place = epath.Path(folder / prepared_folder.TOKENIZER)
    start = None
    if config.train.init_from:
        start = pretrained.load(config.train.init_from, allow_pickle=config.train.allow_pickle)
        tags = config.data.target_language_tags or start.config.data.target_language_tags
        lowercase = start.config.data.lowercase
        data = dataclasses.replace(config.data, target_language_tags=tags, lowercase=lowercase)
        config = dataclasses.replace(config, data=data)
    if place.exists():
        say(f"using the tokenizer in {place}")
        tokenizers = TokenizerPair.load(place)
        is_other = start is not None and start.tokenizers.fingerprint != tokenizers.fingerprint
        if is_other or tokenizers.source.lowercase != config.data.lowercase:
            raise UserError(
                f"{place} is not the tokenizer that config.data.lowercase and "
                "config.train.init_from ask for; prepare another folder."
            )
        return config, tokenizers
    with waiting.reminded(lambda s: f"still training the tokenizer after {s:.0f} s", say):
        tokenizers = start.tokenizers if start else make_tokenizers(config.data, corpora)
    with paths.new_path(folder / prepared_folder.TOKENIZER) as temporary:
        tokenizers.save(epath.Path(temporary))
    return config, tokenizers


def _describe(first: EpochData, facts: PlanFacts, seconds: float) -> Iterator[str]:
    shards = [shard for part in first.corpus.shards for shard in part]
    size = sum(f.stat().st_size for shard in shards for f in shard.folder.iterdir())
    counts = facts.counts
    yield (
        f"{counts.num_pairs:,} pairs in {len(shards):,} shards, {units.size(size)}; in "
        f"{units.duration(seconds)}, {counts.num_pairs / seconds:,.0f} pairs a second"
    )
    yield (
        f"batches: {first.plan.batches_per_epoch:,.1f} an epoch, padding "
        f"{100 * facts.padding:.1f}%; {counts.num_pairs - counts.num_selected:,} pairs are in "
        "none, for they are empty, above data.max_len or above data.max_ratio"
    )
