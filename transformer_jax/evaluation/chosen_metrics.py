"""Metrics that are computed where they are asked for: chrF++, TER, COMET."""

from collections.abc import Callable, Sequence

from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from transformer_jax.config.metrics import METRICS
from transformer_jax.errors import UserError, did_you_mean
from transformer_jax.evaluation import bleu_tokenizers, comet
from transformer_jax.evaluation.significance import Statistics, of_sacrebleu, of_sentence_scores


def _ter(target_lang: str) -> TER:
    """TER; of languages without spaces between words it counts characters."""
    is_split = bleu_tokenizers.choose(target_lang) in ("zh", "ja-mecab")
    return TER(normalized=True, asian_support=True) if is_split else TER()


# Name -> the metric of sacreBLEU, for a target language. All others of `NAMES` are COMET's.
_SACREBLEU: dict[str, Callable[[str], CHRF | TER]] = {
    "chrf++": lambda _: CHRF(word_order=2),
    "ter": _ter,
}
ALWAYS = ("bleu", "chrf")  # computed in every evaluation
NAMES = tuple(name for name, metric in METRICS.items() if metric.on_request)


def statistics(
    names: Sequence[str],
    hypotheses: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    comet_command: str = comet.COMMAND,
    target_lang: str = "",
) -> list[Statistics]:
    """Those of each metric.

    Args:
      names: some of `NAMES`.
      hypotheses: of one system.
      pairs: source and reference of each.
      comet_command: computes COMET.
      target_lang: of the hypotheses, as the data names it.

    Raises:
      UserError: COMET is not installed or fails.
    """
    sources, references = [source for source, _ in pairs], [reference for _, reference in pairs]
    rows = []
    for name in names:
        if name in _SACREBLEU:
            rows.append(of_sacrebleu(_SACREBLEU[name](target_lang), hypotheses, references))
            continue
        scores, model = comet.sentence_scores(name, sources, hypotheses, references, comet_command)
        rows.append(
            of_sentence_scores(METRICS[name].label, scores, f"{model}|times:{comet.FACTOR:g}")
        )
    return rows


def parse(text: str) -> list[str]:
    """The metrics in `NAME,NAME,…` that are not computed anyway.

    Raises:
      UserError: there is no such metric.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = (*ALWAYS, *NAMES)
    for name in names:
        if name not in known:
            raise UserError(
                f"`metrics` has no metric {name!r}{did_you_mean(name, known)} There are "
                f"{', '.join(known)}."
            )
    return [name for name in dict.fromkeys(names) if name not in ALWAYS]


def require(names: Sequence[str], comet_command: str = comet.COMMAND) -> None:
    """Raises a `UserError` if one of the metrics cannot be computed here."""
    chosen = [name for name in names if name in comet.MODELS]
    if chosen:
        comet.check(comet_command)
    models = {comet.model_of(name, comet_command) for name in chosen}
    if len(models) < len(chosen):
        raise UserError(
            f"`comet_command={comet_command}` names one model for {' and '.join(chosen)}; compute "
            "them one after the other."
        )
