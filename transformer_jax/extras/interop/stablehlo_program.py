"""Translates with a StableHLO export: `translate.py` of the export's folder.

It needs jax, flatbuffers, numpy and sentencepiece. In Python, see README.md. As a program:

    echo "A dog runs." | python translate.py
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.export
import numpy as np
from sentencepiece import SentencePieceProcessor

BATCH_SIZE = 32  # texts
LENGTH_STEP = 16  # batches are padded to multiples of it: each shape is compiled once


class Translator:
    """The exported functions, with their tokenizers."""

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        self.manifest = m = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        self.params = dict(np.load(folder / "params.npz"))
        files = [folder / f"{name}.jax" for name in ("encode", "init_cache", "decode_step")]
        functions = [jax.export.deserialize(bytearray(file.read_bytes())) for file in files]
        self.encode, self.init_cache, self.decode_step = (jax.jit(f.call) for f in functions)
        self.source, self.target = (
            SentencePieceProcessor(str(folder / f"{side}.model")) for side in ("source", "target")
        )
        # Marian has a vocabulary besides the SentencePiece model.
        self.source_ids, target_ids = (
            m[f"{side}_vocabulary"] or {spm.id_to_piece(i): i for i in range(spm.get_piece_size())}
            for side, spm in (("source", self.source), ("target", self.target))
        )
        self.target_names = {i: name for name, i in target_ids.items()}

    def translate(self, texts: Sequence[str]) -> list[str]:
        """The translation of each text by greedy search, in batches of similar lengths."""
        rows = [self._ids(text) for text in texts]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        outputs = [""] * len(rows)
        for start in range(0, len(rows), BATCH_SIZE):
            batch = order[start : start + BATCH_SIZE]
            for i, output in zip(batch, self._translate([rows[i] for i in batch]), strict=True):
                outputs[i] = output
        return outputs

    def _translate(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The translation of each row of token ids, in one batch."""
        m, longest = self.manifest, max(map(len, rows))
        width = min(m["max_len"], -(-longest // LENGTH_STEP) * LENGTH_STEP)
        inputs = np.full((len(rows), width), m["source_pad_id"], np.int32)
        mask = np.zeros_like(inputs)
        for i, row in enumerate(rows):
            inputs[i, : len(row)], mask[i, : len(row)] = row, 1
        steps = min(m["max_len"], 3 * inputs.shape[1] + 10)
        encoded = self.encode(self.params, inputs, mask)
        shapes = np.zeros(1, np.int32), np.zeros(steps, np.int32)  # only their shapes matter
        cache = self.init_cache(self.params, encoded, mask, *shapes)
        tokens, output = np.full((len(rows), 1), m["decoder_start_id"], np.int32), []
        for step in range(steps):
            logits, cache = self.decode_step(self.params, cache, tokens)
            logits = np.array(logits)
            logits[..., m["suppressed_ids"]] = -np.inf
            tokens = np.argmax(logits, axis=-1).astype(np.int32)
            if step < len(m["target_prefix"]):
                tokens[:] = m["target_prefix"][step]
            output.append(tokens[:, 0].tolist())
            if all(m["target_eos_id"] in row for row in zip(*output, strict=True)):
                break
        return [self._text(ids) for ids in zip(*output, strict=True)]

    def _ids(self, text: str) -> list[int]:
        """Token ids of a text, with language tags and end symbol."""
        m = self.manifest
        if m["lowercase"]:
            text = text.lower()
        # A language code at the start is one token.
        code = re.match(r">>.*?<<", text) if m["language_codes"] else None
        names = [code[0]] if code else []
        names += self.source.encode(text[code.end() :] if code else text, out_type=str)
        ids = (self.source_ids.get(name, m["source_unk_id"]) for name in names)
        return [*[*m["source_prefix"], *ids][: m["max_len"] - 1], m["source_eos_id"]]

    def _text(self, ids: Sequence[int]) -> str:
        """The text of a row of token ids, up to its end symbol."""
        eos = self.manifest["target_eos_id"]
        end = ids.index(eos) if eos in ids else len(ids)
        start = len(self.manifest["target_prefix"])
        return self.target.decode([self.target_names[i] for i in ids[start:end]])


def main() -> None:
    """Translates standard input with the export in this folder, or in that of the argument."""
    folder = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent
    text = sys.stdin.read()
    if not text:
        sys.exit("Standard input has no line to translate.")
    lines = text.removesuffix("\n").split("\n")  # `splitlines` also splits inside of lines
    print(*Translator(folder).translate(lines), sep="\n")


if __name__ == "__main__":
    main()
