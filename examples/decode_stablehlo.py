"""Translates standard input with an exported model; needs jax, flatbuffers, numpy, sentencepiece.

python export.py --workdir=runs/quickstart --format=stablehlo --output=exported
echo thirty-four | python examples/decode_stablehlo.py exported
"""

import json
import re
import sys
from pathlib import Path

import jax.export
import numpy as np
from sentencepiece import SentencePieceProcessor

folder = Path(sys.argv[1])
m = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
params = dict(np.load(folder / "params.npz"))
files = [folder / f"{name}.jax" for name in ("encode", "init_cache", "decode_step")]
functions = [jax.export.deserialize(bytearray(file.read_bytes())) for file in files]
encode, init_cache, decode_step = (jax.jit(function.call) for function in functions)
source, target = (SentencePieceProcessor(str(folder / f"{s}.model")) for s in ("source", "target"))
source_ids, target_ids = (  # Marian has a vocabulary besides the SentencePiece model
    m[f"{side}_vocabulary"] or {spm.id_to_piece(i): i for i in range(spm.get_piece_size())}
    for side, spm in (("source", source), ("target", target))
)
lines = [line.lower() if m["lowercase"] else line for line in sys.stdin.read().splitlines()]
if not lines:
    sys.exit("Standard input has no line to translate.")
code = re.compile(r">>.*?<<" if m["language_codes"] else "^$")
rows = []
for line in lines:  # a language code at the start is one token
    tag = code.match(line)
    names = [tag[0]] if tag else []
    names += source.encode(line[tag.end() :] if tag else line, out_type=str)
    row = [*m["source_prefix"], *(source_ids.get(name, m["source_unk_id"]) for name in names)]
    rows.append([*row[: m["max_len"] - 1], m["source_eos_id"]])
inputs = np.full((len(rows), max(map(len, rows))), m["source_pad_id"], np.int32)
mask = np.zeros_like(inputs)
for i, row in enumerate(rows):
    inputs[i, : len(row)], mask[i, : len(row)] = row, 1
steps = min(m["max_len"], 3 * inputs.shape[1] + 10)
encoded = encode(params, inputs, mask)
cache = init_cache(params, encoded, mask, np.zeros(1, np.int32), np.zeros(steps, np.int32))
tokens, output = np.full((len(rows), 1), m["decoder_start_id"], np.int32), []
for step in range(steps):
    logits, cache = decode_step(params, cache, tokens)
    logits = np.array(logits)
    logits[..., m["suppressed_ids"]] = -np.inf
    tokens = np.argmax(logits, axis=-1).astype(np.int32)
    if step < len(m["target_prefix"]):
        tokens[:] = m["target_prefix"][step]
    output.append(tokens[:, 0].tolist())
    if all(m["target_eos_id"] in row for row in zip(*output, strict=True)):
        break
target_names = {i: name for name, i in target_ids.items()}
for ids in zip(*output, strict=True):
    end = ids.index(m["target_eos_id"]) if m["target_eos_id"] in ids else len(ids)
    print(target.decode([target_names[i] for i in ids[len(m["target_prefix"]) : end]]))
