"""Evaluation of a model on sentence pairs."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import cast

from transformer_jax import distributed
from transformer_jax.config import DecodeConfig
from transformer_jax.data import context
from transformer_jax.evaluation import bleu_tokenizers
from transformer_jax.evaluation.corpus_metrics import corpus_scores
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.batch_functions import ModelParams
from transformer_jax.translator.engine import Engine
from transformer_jax.translator.requests import Request
from transformer_jax.translator.translation import Translation
from transformer_jax.translator.translation_settings import TranslationSettings


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Scores of a model over a data set, every sentence included."""

    loss: float  # nats per target token, end symbols included, no label smoothing
    perplexity: float
    token_accuracy: float  # percent, teacher forced
    exact_match: float  # percent of outputs equal to their reference
    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    num_sentences: int


def evaluate(
    engine: Engine,
    params: ModelParams,
    pairs: Sequence[tuple[str, str]],
    decode: DecodeConfig,
    target_lang: str = "",
    source_lang: str = "",
    attention: AttentionChoice | None = None,
) -> tuple[Evaluation, list[Translation]]:
    """Teacher-forced loss and accuracy, and scores of decoded text.

    Several processes share the pairs, and each gets all results.

    Args:
      engine: compiled functions of the model.
      params: the model's; a tuple for an ensemble.
      pairs: (source, reference). Every pair counts.
      decode: search settings.
      target_lang: of a multilingual model; "": the config's.
      source_lang: of a multilingual model that needs it; "": the config's.
      attention: to come with the hypotheses, and their log-probabilities; None: without.

    Returns:
      The scores, and the best hypothesis of each pair, in order.
    """
    references = [reference for _, reference in pairs]
    alone = not engine.runner.spans_processes
    share: Callable[[Sequence], list] = distributed.local_share if alone else list
    gather: Callable[[Sequence], list] = distributed.gather_shares if alone else list
    requests = share(_requests(engine, [source for source, _ in pairs]))
    local_pairs = share(pairs)
    sources = [source for source, _ in local_pairs]
    targets = [reference for _, reference in local_pairs]
    scored = gather(
        engine.score(
            params,
            sources,
            targets,
            target_lang,
            source_lang=source_lang,
            contexts=[request.context for request in requests],
        )
    )
    settings = TranslationSettings(decode, 1, target_lang, source_lang, attention)
    tokens = sum(pair.num_tokens for pair in scored)
    loss = -sum(pair.log_prob for pair in scored) / tokens
    outputs = gather([best[0] for best in engine.translate(params, requests, settings)])
    data = engine.config.data
    data = dataclasses.replace(data, target_lang=target_lang or data.target_lang)
    scores = corpus_scores(
        [output.text for output in outputs], references, bleu_tokenizers.for_data(data)
    )
    evaluation = Evaluation(
        loss=loss,
        perplexity=math.exp(min(loss, 700.0)),
        token_accuracy=100.0 * sum(cast(int, pair.num_correct) for pair in scored) / tokens,
        num_sentences=len(pairs),
        **dataclasses.asdict(scores),
    )
    return evaluation, outputs


def translate(
    engine: Engine,
    params: ModelParams,
    sources: Sequence[str],
    settings: TranslationSettings,
) -> list[str]:
    """The best hypothesis of each source; several processes share them, and each gets all."""
    requests = distributed.local_share(_requests(engine, sources))
    n_best = engine.translate(params, requests, settings)
    return distributed.gather_shares([hypotheses[0].text for hypotheses in n_best])


def _requests(engine: Engine, sources: Sequence[str]) -> list[Request]:
    """The sources, with their lines for messages, and the sentences before each."""
    num_context = engine.config.data.context_sentences
    before = context.previous((source.strip() for source in sources), num_context)
    return [
        Request(source, context=texts, line=number)
        for number, (source, texts) in enumerate(zip(sources, before, strict=True), start=1)
    ]
