"""An exported directory as transformers loads it, for comparisons."""

from types import ModuleType
from typing import Any

import numpy as np
from etils import epath

from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import families
from transformer_jax.extras.interop.parity import Batch, Examples, Reference


def require() -> None:
    """Raises a `UserError` if torch or transformers is not installed."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise UserError(
            "A Hugging Face export is checked with torch and transformers; install them: "
            "pip install 'torch>=2.9' 'transformers>=5.0'."
        ) from error


class HuggingFacePeer:
    """Model and tokenizer by `from_pretrained`.

    The tolerance is larger if the epsilon of our LayerNorm is not that of Hugging Face's classes.

    Raises:
      UserError: their tokenizer gives other ids than ours.
    """

    measure = "logit"

    def __init__(self, folder: epath.Path, reference: Reference, examples: Examples):
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        epsilon = reference.config.model.norm_epsilon
        is_same = epsilon == families.NORM_EPSILON or reference.config.model.norm == "rms"
        self.tolerance = 1e-3 if is_same else 0.01
        self.name = f"transformers {transformers.__version__} (epsilon {epsilon:g} here)"
        self._examples, self._eos = examples, reference.engine.ids.target_eos
        self._check_tokenizer(transformers, folder, reference)
        self._model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(folder)).eval()

    def _check_tokenizer(
        self, transformers: ModuleType, folder: epath.Path, reference: Reference
    ) -> None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
        tag, pair, config = "", reference.engine.tokenizers, reference.config.data
        if config.target_language_tags and not pair.tags.both_sides:
            # Hugging Face reads a tag that only the source has as a part of the text.
            template = pair.tags.template if pair.tags.is_word else ">>{}<<"
            tag = "" if config.target_lang == "" else f"{template.format(config.target_lang)} "
        for text, ours in zip(self._examples.sentences, self._examples.source_ids, strict=True):
            theirs = tokenizer(tag + config.source_prefix + text).input_ids
            if ours != theirs:
                raise UserError(
                    f"{folder}: their tokenizer gives other ids than ours for {text!r}: {theirs} "
                    f"instead of {ours}."
                )

        if pair.tags.both_sides:
            return  # transformers decodes M2M-100's tags in another way
        unk = pair.target.unk_id
        for output in self._examples.output_ids:
            text = pair.target.decode(output)
            theirs = tokenizer.decode(output, skip_special_tokens=True)
            # We decode an unknown token to a mark.
            if unk not in output and theirs.split() != text.split():
                raise UserError(
                    f"{folder}: their tokenizer decodes {output} as {theirs!r} instead of {text!r}."
                )
            ids = tokenizer(text_target=text).input_ids[:-1]
            if text and ids != pair.target.encode(text):
                raise UserError(
                    f"{folder}: their tokenizer gives other ids than ours for the target {text!r}."
                )

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        import torch

        return {
            "input_ids": torch.tensor(batch.source),
            "attention_mask": torch.tensor(batch.source_mask),
        }

    def largest_difference(self, batch: Batch) -> float:
        import torch

        with torch.no_grad():
            inputs = torch.tensor(batch.inputs)
            logits = self._model(**self._inputs(batch), decoder_input_ids=inputs).logits.numpy()
        return float(np.max(np.abs(logits - batch.logits)[batch.mask]))

    def outputs(self, batch: Batch) -> list[list[int]]:
        prefix = self._examples.target_prefix
        outputs = self._model.generate(
            **self._inputs(batch),
            num_beams=1,
            do_sample=False,
            max_length=self._examples.max_decode_len + 1,
            # The search of the comparison has no such rules; the exported model's may.
            min_length=0,
            no_repeat_ngram_size=0,
            forced_bos_token_id=prefix[0] if prefix else None,
        ).tolist()
        rows = [row[1 + len(prefix) :] for row in outputs[: len(batch.rows)]]
        return [row[: row.index(self._eos)] if self._eos in row else row for row in rows]
