"""An exported directory loaded by transformers itself, against our own model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath

from transformer_jax.errors import UserError
from transformer_jax.interop.parity import Parity, Reference, compare_outputs, pad_rows

TOLERANCE = 1e-3
BATCH = 16


def require() -> None:
    """Raises a `UserError` where torch or transformers is not installed."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise UserError(
            "A Hugging Face export is checked with torch and transformers; install them: "
            "pip install 'transformer-jax[interop]'."
        ) from error


def check(folder: epath.Path, reference: Reference, sentences: Sequence[str]) -> Parity:
    """Compares tokenisation, teacher-forced logits and greedy outputs.

    Raises:
      UserError: where their tokenizer gives other ids.
    """
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    examples = reference.examples(sentences)
    _check_tokenizer(transformers, folder, reference, sentences)
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(folder)).eval()
    ids, largest, theirs, gaps = reference.engine.ids, 0.0, [], []
    inputs = reference.decoder_inputs(examples)
    start = 1 + len(examples.target_prefix)
    for begin in range(0, len(inputs), BATCH):
        rows = slice(begin, begin + BATCH)
        source, mask = pad_rows(examples.source_ids[rows], ids.source_pad)
        target, target_mask = pad_rows(inputs[rows], ids.target_pad)
        # Not their padding id: M2M-100 numbers positions by it.
        target = np.where(target_mask, target, ids.target_eos)
        with torch.no_grad():
            batch = {"input_ids": torch.tensor(source), "attention_mask": torch.tensor(mask)}
            found = model(**batch, decoder_input_ids=torch.tensor(target)).logits.numpy()
            forced = examples.target_prefix[0] if examples.target_prefix else None
            written = model.generate(
                **batch, num_beams=1, do_sample=False, max_length=examples.max_decode_len + 1,
                forced_bos_token_id=forced,
            ).tolist()  # fmt: skip
        ours = reference.logits(source, mask, target)
        largest = max(largest, float(np.max(np.abs(ours - found)[target_mask == 1])))
        for row in written:
            theirs.append(_cut(row[start:], ids.target_eos))
        gaps += _gaps(reference, source, mask, theirs[begin:], examples, begin)
    identical, differing, gap = compare_outputs(examples, theirs, gaps)
    return Parity(
        peer=f"transformers {transformers.__version__}",
        largest_difference=largest,
        measure="logit",
        tolerance=TOLERANCE,
        identical=identical,
        total=len(theirs),
        differing=differing,
        largest_gap=gap,
    )


def _cut(row: list[int], eos_id: int) -> list[int]:
    return row[: row.index(eos_id)] if eos_id in row else row


def _gaps(reference, source, mask, theirs, examples, begin) -> list[float]:
    """Our score of our output less our score of theirs, for each row; 0 where they are equal."""
    ours = examples.output_ids[begin : begin + len(theirs)]
    if list(map(list, ours)) == list(map(list, theirs)):
        return [0.0] * len(theirs)
    ids, before = reference.engine.ids, examples.target_prefix
    scores = []
    for outputs in (ours, theirs):
        start = [reference.config.model.decoder_start_id, *before]
        target, _ = pad_rows([[*start, *row] for row in outputs], ids.target_pad)
        logits = reference.logits(source, mask, target).astype(np.float64)
        log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        scores.append([
            sum(log_probs[i, len(before) + t, piece]
                for t, piece in enumerate([*row, ids.target_eos]))
            for i, row in enumerate(outputs)
        ])  # fmt: skip
    return [float(a - b) for a, b in zip(*scores, strict=True)]


def _check_tokenizer(transformers, folder, reference: Reference, sentences: Sequence[str]) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    source_prefix, _ = reference.engine.prefixes()
    tags = reference.engine.tokenizers.tags
    for text in sentences:
        ours = reference.engine.encode_source([text], source_prefix)[0]
        # One-sided tags are part of the text there.
        tagged = text
        if source_prefix and not tags.both_sides:
            tagged = f">>{reference.config.data.target_lang}<< {text}"
        theirs = tokenizer(tagged).input_ids[:-1]
        if ours and ours != theirs:
            raise UserError(
                f"{folder}: their tokenizer gives other ids than ours for {text!r}: {theirs} "
                f"instead of {ours}."
            )
