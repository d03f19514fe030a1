"""Compares greedy and beam search with Hugging Face and CTranslate2, token for token.

    python benchmarks/parity.py --workdir=runs/m30k --sentences=test.en --json=parity.json

The model is exported to each peer, which translates with its own search. Every output that differs
is listed with both scores.
"""

import dataclasses
import functools
import itertools
import json
import platform
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import app, flags, logging
from etils import epath

from transformer_jax.config import DecodeConfig
from transformer_jax.config.decode_fields import AtLimit, Stopping
from transformer_jax.extras.interop.ctranslate2 import writing as ctranslate2_writing
from transformer_jax.extras.interop.huggingface import writing
from transformer_jax.extras.interop.parity import Reference
from transformer_jax.translator import pretrained
from transformer_jax.translator.pretrained import Pretrained
from transformer_jax.translator.translation_settings import TranslationSettings

ALPHAS = (0.0, 0.6, 1.0, 1.5)
# Stopping rules and their names in transformers; CTranslate2 with patience 1 has only the first.
EARLY_STOPPING: dict[Stopping, bool | str] = {
    "first_k": True,
    "hf_default": False,
    "exact": "never",
}
BATCH = 50


@dataclasses.dataclass(frozen=True)
class Search:
    """Settings of one search, ours and the peer's."""

    beam_size: int
    alpha: float
    stopping: Stopping

    def config(self, model: Pretrained, max_decode_len: int, at_limit: AtLimit) -> DecodeConfig:
        return dataclasses.replace(
            model.config.decode,
            beam_size=self.beam_size,
            length_penalty=self.alpha,
            length_penalty_kind="power",
            stopping=self.stopping,
            at_limit=at_limit,
            max_decode_len=max_decode_len,
            max_decode_ratio=float(max_decode_len),
        )


@dataclasses.dataclass(frozen=True)
class Output:
    """The best output of one sentence: ids without the end symbol, and scores."""

    ids: tuple[int, ...]
    score: float | None  # divided by the length penalty; None if the peer returns none
    log_prob: float | None  # of `ids` and the end symbol, by forced decoding


def searches(beam_size: int) -> Iterator[Search]:
    """Greedy search once, then every setting of beam search."""
    yield Search(1, 0.0, "first_k")
    for alpha, stopping in itertools.product(ALPHAS, EARLY_STOPPING):
        yield Search(beam_size, alpha, stopping)


class HuggingFace:
    """`generate` on the exported directory."""

    name = "transformers"
    at_limit = "free_end"

    def __init__(self, model: Pretrained, folder: Path):
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.version = transformers.__version__
        params = jax.device_get(model.params)
        plan = writing.plan_export(model.config, model.tokenizers, params)
        writing.write_directory(epath.Path(folder), model.config, model.tokenizers, params, plan)
        self._torch, self._eos = torch, model.tokenizers.target.eos_id
        self._model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        self._pad = model.tokenizers.source.pad_id

    def serves(self, search: Search) -> bool:
        del search
        return True

    def translate(
        self, sources: Sequence[list[int]], search: Search, max_decode_len: int
    ) -> Iterator[Output]:
        torch = self._torch
        for first in range(0, len(sources), BATCH):
            rows = sources[first : first + BATCH]
            length = max(map(len, rows))
            ids = torch.tensor([[*row, *[self._pad] * (length - len(row))] for row in rows])
            mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
            settings: dict[str, Any] = {}
            if search.beam_size > 1:
                settings = {
                    "length_penalty": search.alpha,
                    "early_stopping": EARLY_STOPPING[search.stopping],
                }
            out = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                num_beams=search.beam_size,
                do_sample=False,
                max_length=max_decode_len + 1,
                return_dict_in_generate=True,
                output_scores=True,
                forced_eos_token_id=self._eos,
                **settings,
            )
            scores = out.sequences_scores.tolist() if search.beam_size > 1 else [None] * len(rows)
            for row, score in zip(out.sequences[:, 1:].tolist(), scores, strict=True):
                end = row.index(self._eos) if self._eos in row else len(row)
                yield Output(tuple(row[:end]), score, None)


class CTranslate2:
    """`translate_batch` on the exported directory, float32, patience 1."""

    name = "ctranslate2"
    at_limit = "cut"

    def __init__(self, model: Pretrained, folder: Path):
        import ctranslate2 as library

        self.version = library.__version__
        ctranslate2_writing.write_directory(
            epath.Path(folder), model.config, model.tokenizers, jax.device_get(model.params)
        )
        self._translator = library.Translator(str(folder), device="cpu")
        self._tokenizers = model.tokenizers

    def serves(self, search: Search) -> bool:
        return search.stopping == "first_k"

    def translate(
        self, sources: Sequence[list[int]], search: Search, max_decode_len: int
    ) -> Iterator[Output]:
        tokens = [self._tokenizers.source.tokens(row[:-1]) for row in sources]
        results = self._translator.translate_batch(
            tokens,
            beam_size=search.beam_size,
            patience=1,
            length_penalty=search.alpha,
            max_decoding_length=max_decode_len,
            min_decoding_length=0,
            return_scores=True,
            max_batch_size=BATCH,
        )
        forced = self._translator.score_batch(tokens, [r.hypotheses[0] for r in results])
        for result, scored in zip(results, forced, strict=True):
            ids = [self._tokenizers.target.token_id(p) for p in result.hypotheses[0]]
            # An output that is cut at the limit has no end symbol that could be scored.
            log_prob = sum(scored.log_probs) if len(ids) < max_decode_len else None
            yield Output(tuple(ids), result.scores[0], log_prob)


PEERS = {peer.name: peer for peer in (HuggingFace, CTranslate2)}


def compare(
    model: Pretrained, sentences: Sequence[str], peers: Sequence[str], beam_size: int = 4
) -> dict[str, Any]:
    """Runs every search with this package and with each peer.

    Returns:
      `rows`, one per peer and search: `identical` of `total`; the largest differences of scores and
      of force-decoded log-probabilities among identical outputs; `differing` outputs with both
      scores. `beam_differs_from_greedy`: the share of sentences whose beam output at α = 1 is not
      the greedy one. `rules_differ`: for each α the number of sentences on which the stopping rules
      disagree.
    """
    reference = Reference(model.config, model.tokenizers, model.params)
    eos, limit = model.tokenizers.source.eos_id, model.config.model.max_len - 1
    encoded = reference.engine.encoder().source_ids(sentences)
    selected = [
        (s, [*ids, eos]) for s, ids in zip(sentences, encoded, strict=True) if 0 < len(ids) <= limit
    ]
    texts, sources = [s for s, _ in selected], [ids for _, ids in selected]
    max_decode_len = min(model.config.decode.max_decode_len, limit)

    @functools.cache
    def ours(search: Search, at_limit: AtLimit) -> list[Output]:
        decode = search.config(model, max_decode_len, at_limit)
        with jax.default_matmul_precision("highest"):
            results = list(
                reference.engine.translate(model.params, texts, TranslationSettings(decode))
            )
        return [Output(best[0].ids, best[0].score, best[0].log_prob) for best in results]

    rows, versions = [], {}
    for name in peers:
        with tempfile.TemporaryDirectory() as folder:
            peer = PEERS[name](model, Path(folder))
            versions[name] = peer.version
            for search in filter(peer.serves, searches(beam_size)):
                theirs = list(peer.translate(sources, search, max_decode_len))
                difference = _difference(ours(search, peer.at_limit), theirs)
                rows.append({"peer": name, **dataclasses.asdict(search), **difference})
    beams = {s: ours(s, "free_end") for s in searches(beam_size)}
    greedy, beam = beams[Search(1, 0.0, "first_k")], beams[Search(beam_size, 1.0, "first_k")]
    changed = sum(a.ids != b.ids for a, b in zip(greedy, beam, strict=True))
    return {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        **versions,
        "sentences": len(sources),
        "beam_differs_from_greedy": changed / len(sources),
        "rules_differ": {str(alpha): _rules_differ(beams, alpha) for alpha in ALPHAS},
        "rows": rows,
    }


def _rules_differ(ours: dict[Search, list[Output]], alpha: float) -> int:
    """Number of sentences for which the stopping rules give different outputs."""
    by_rule = [outputs for s, outputs in ours.items() if s.beam_size > 1 and s.alpha == alpha]
    return sum(len({output.ids for output in one}) > 1 for one in zip(*by_rule, strict=True))


def _difference(ours: Sequence[Output], theirs: Sequence[Output]) -> dict[str, Any]:
    same = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.ids == b.ids]
    differing = [
        {"sentence": i + 1, "ours": a.score, "theirs": b.score}
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True))
        if a.ids != b.ids
    ]
    scores = _gaps((a.score, b.score) for a, b in same)
    forced = _gaps((a.log_prob, b.log_prob) for a, b in same)
    return {
        "identical": len(same),
        "total": len(ours),
        "largest_score_difference": max(scores, default=None),
        "largest_forced_difference": max(forced, default=None),
        "differing": differing,
    }


def _gaps(pairs: Iterable[tuple[float | None, float | None]]) -> list[float]:
    return [abs(a - b) for a, b in pairs if a is not None and b is not None]


def print_table(result: dict[str, Any]) -> None:
    print(
        f"{result['sentences']} sentences; beam differs from greedy on "
        f"{100 * result['beam_differs_from_greedy']:.0f}%"
    )
    print("| peer | beam | α | stopping | identical | scores differ by | force-decoded by |")
    print("|---|---|---|---|---|---|---|")
    for row in result["rows"]:
        gaps = [row[f"largest_{kind}_difference"] for kind in ("score", "forced")]
        print(
            f"| {row['peer']} {result[row['peer']]} | {row['beam_size']} | {row['alpha']} | "
            f"{row['stopping']} | {row['identical']} of {row['total']} | "
            + " | ".join("" if gap is None else f"{gap:.1e}" for gap in gaps)
            + " |"
        )
        for one in row["differing"]:
            print(f"  sentence {one['sentence']}: ours {one['ours']}, theirs {one['theirs']}")


def main(argv: Sequence[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    options = flags.FLAGS
    model = pretrained.load(options.workdir, options.checkpoint)
    lines = epath.Path(options.sentences).read_text().splitlines()[: options.num_sentences]
    result = compare(model, lines, options.peers, options.beam_size)
    print_table(result)
    if options.json:
        epath.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "Work directory of a trained model.", required=True)
    flags.DEFINE_string("checkpoint", "best", "best, latest, a step, or average:N.")
    flags.DEFINE_string("sentences", None, "Source text, one sentence per line.", required=True)
    flags.DEFINE_integer("num_sentences", 200, "Number of sentences.")
    flags.DEFINE_integer("beam_size", 4, "Beam size of beam search.")
    flags.DEFINE_list("peers", list(PEERS), "Engines to compare with.")
    flags.DEFINE_string("json", "", "Also write the result to this file.")
    app.run(main)
