"""A CTranslate2 export compared with the model that it was made from."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath

from transformer_jax.extras.interop.parity import Batch, Examples, Reference, log_softmax

# Largest difference in a token's log-probability that a comparison accepts. None: the numbers of
# int8 differ too much to find mistakes by them; BLEU judges it.
TOLERANCES: dict[str, float | None] = {"float32": 1e-3, "float16": 5e-2, "int8": None}


class CTranslate2Peer:
    """The directory as `ctranslate2.Translator` loads it, on the CPU."""

    measure = "log-probability"

    def __init__(
        self, folder: epath.Path, reference: Reference, examples: Examples, quantization: str
    ):
        import ctranslate2

        self.name = f"ctranslate2 {ctranslate2.__version__} ({quantization})"
        self.tolerance = TOLERANCES[quantization]
        self._translator = ctranslate2.Translator(str(folder), device="cpu")
        self._examples, self._tokenizers = examples, reference.engine.tokenizers
        suppressed = self._tokenizers.target.tokens(reference.config.decode.suppressed_ids)
        self._suppressed = [[token] for token in suppressed] or None
        self._prefix = self._tokenizers.target.tokens(examples.target_prefix)

    def _sources(self, batch: Batch) -> list[list[str]]:
        ids = self._examples.source_ids
        return [self._tokenizers.source.tokens(ids[i][:-1]) for i in batch.rows]

    def largest_difference(self, batch: Batch) -> float:
        outputs = [self._tokenizers.target.tokens(self._examples.output_ids[i]) for i in batch.rows]
        targets = [[*self._prefix, *tokens] for tokens in outputs]
        scored = self._translator.score_batch(self._sources(batch), targets)
        largest = 0.0
        for row, result in enumerate(scored):
            tokens = batch.targets[row][batch.mask[row]]
            ours = log_softmax(batch.logits[row])[np.arange(len(tokens)), tokens]
            largest = max(largest, float(np.max(np.abs(np.asarray(result.log_probs) - ours))))
        return largest

    def outputs(self, batch: Batch) -> list[list[int]]:
        sources = self._sources(batch)
        results = self._translator.translate_batch(
            sources,
            target_prefix=[self._prefix or None] * len(sources),
            beam_size=1,
            min_decoding_length=0,
            max_decoding_length=self._examples.max_decode_len,
            suppress_sequences=self._suppressed,
        )
        target, start = self._tokenizers.target, len(self._prefix)
        return [[target.token_id(p) for p in r.hypotheses[0][start:]] for r in results]

    def translate(self, source_ids: Sequence[list[int]], search: dict[str, Any]) -> list[str]:
        """Translations of tokenized sentences.

        Args:
          source_ids: with language tag, without end symbol.
          search: arguments of `translate_batch`.
        """
        sources = [self._tokenizers.source.tokens(ids) for ids in source_ids]
        prefix = [self._prefix] * len(sources) if self._prefix else None
        results = self._translator.translate_batch(
            sources, target_prefix=prefix, max_batch_size=1024, batch_type="tokens", **search
        )
        target, start = self._tokenizers.target, len(self._prefix)
        hypotheses = (result.hypotheses[0][start:] for result in results)
        return [target.decode(target.token_id(t) for t in tokens) for tokens in hypotheses]
