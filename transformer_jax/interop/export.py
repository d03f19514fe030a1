"""Exports of a model. Each is compared with our own model before it gets its final name."""

import dataclasses
import functools
import json
import shutil
import uuid
from collections.abc import Callable, Sequence

import jax
from etils import epath

from transformer_jax.config import Config
from transformer_jax.data import sources
from transformer_jax.errors import UserError
from transformer_jax.interop import ctranslate2, layout, parity, stablehlo
from transformer_jax.interop.huggingface import checking, families, hub, reading, writing
from transformer_jax.interop.parity import Examples, Peer, Reference
from transformer_jax.interop.pretrained import Pretrained

NUM_SENTENCES = 100

Say = Callable[[str], None]
MakePeer = Callable[[epath.Path, Reference, Examples], Peer]
# Writes a folder, says what differs from our model, and returns how to load the folder.
Writer = Callable[[epath.Path, Pretrained, layout.Params, Say], MakePeer]


def export_model(
    model: Pretrained,
    format_name: str,
    output: epath.PathLike,
    sentences: Sequence[str],
    quantization: str = "float32",
    say: Say = print,
) -> None:
    """Writes `output` after comparing it with our model on `sentences`.

    Args:
      model: to export.
      format_name: one of FORMATS.
      output: a folder that does not exist, or is empty.
      sentences: source text.
      quantization: of a ctranslate2 export.
      say: gets the results of the comparison, and everything that is not as in our model.

    Raises:
      UserError: the format cannot express the model, or the export differs beyond the tolerance;
        `output` is not written.
    """
    output = epath.Path(output)
    _check_arguments(format_name, output, quantization)
    references = _references(model, format_name)
    params = jax.device_get(model.params)
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.parent / f".{output.name}.{uuid.uuid4().hex}"
    try:
        examples = None
        for write in _writers(format_name, quantization):
            shutil.rmtree(temporary, ignore_errors=True)
            make_peer = write(temporary, model, params, say)
            examples = examples or references[-1].examples(sentences)
            for reference in references:
                peer = make_peer(temporary, reference, examples)
                result = parity.compare(reference, examples, peer)
                say(result.describe())
                if not result.holds:
                    raise UserError(
                        f"The exported model differs beyond the tolerance; {output} is not written."
                    )
        if output.exists():
            output.rmdir()
        temporary.rename(output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    say(f"wrote {output}")


def _check_arguments(format_name: str, output: epath.Path, quantization: str) -> None:
    if "://" in str(output):
        raise UserError(f"--output={output} must be a local folder.")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"--output={output} exists; name a new folder.")
    if quantization != "float32" and format_name != "ctranslate2":
        raise UserError(f"--quantization={quantization} is for --format=ctranslate2.")


def _references(model: Pretrained, format_name: str) -> list[Reference]:
    """Models to compare with: ours last, before it one with the epsilon of the exported model.

    With equal epsilons, a mistake is not hidden by the difference that another epsilon makes.
    """
    epsilons = [model.config.model.norm_epsilon]
    if format_name == "marian" and epsilons[0] != families.NORM_EPSILON:
        epsilons.insert(0, families.NORM_EPSILON)
    configs = [
        dataclasses.replace(
            model.config, model=dataclasses.replace(model.config.model, norm_epsilon=epsilon)
        )
        for epsilon in epsilons
    ]
    return [Reference(config, model.tokenizers, model.params) for config in configs]


def _writers(format_name: str, quantization: str) -> list[Writer]:
    """Stages of an export: a quantized one is written and compared without rounding first.

    Rounding to 8 bits would hide a mistake.
    """
    if format_name == "ctranslate2":
        stages = dict.fromkeys(("float32", quantization))
        return [functools.partial(_write_ctranslate2, quantization=stage) for stage in stages]
    return [_write_marian if format_name == "marian" else _write_stablehlo]


def _write_marian(
    folder: epath.Path, model: Pretrained, params: layout.Params, say: Say
) -> MakePeer:
    checking.require()
    plan = writing.plan_export(model.config, model.tokenizers, params)
    for note in plan.notes:
        say(note)
    writing.write_directory(folder, model.config, model.tokenizers, params, plan)
    return checking.HuggingFacePeer


def _write_ctranslate2(
    folder: epath.Path, model: Pretrained, params: layout.Params, say: Say, *, quantization: str
) -> MakePeer:
    ctranslate2.require()
    if model.config.decode.suppressed_ids:
        tokens = model.tokenizers.target.tokens(model.config.decode.suppressed_ids)
        say(f"pass suppress_sequences={[[token] for token in tokens]} to translate_batch")
    ctranslate2.write_directory(folder, model.config, model.tokenizers, params, quantization)
    return functools.partial(ctranslate2.CTranslate2Peer, quantization=quantization)


def _write_stablehlo(
    folder: epath.Path, model: Pretrained, params: layout.Params, say: Say
) -> MakePeer:
    del say  # nothing differs
    stablehlo.require()
    stablehlo.write_directory(folder, model.config, model.tokenizers, params)
    return stablehlo.StableHloPeer


def find_sentences(workdir: epath.PathLike, config: Config, given: str = "") -> list[str]:
    """Source text to compare an export on.

    Args:
      workdir: of the model.
      config: of the model.
      given: path of a file with one sentence a line; "": the validation set if it can be read, else
        the samples of the run.

    Raises:
      UserError: there is no text.
    """
    if given:
        if not epath.Path(given).exists():
            raise UserError(f"There is no file {given} (--sentences).")
        return [line for line in sources.read_lines(epath.Path(given)) if line][:NUM_SENTENCES]
    if not reading.is_directory(hub.locate(workdir)):
        try:
            corpora = sources.open_corpora(config.data, "validation")
            sentences = [pair[0] for corpus in corpora for pair in corpus.read() if pair[0]]
        except UserError:  # the work directory was moved to a machine without its data
            path = epath.Path(workdir) / "samples.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
            sentences = list(dict.fromkeys(json.loads(line)["source"] for line in lines))
        if sentences:
            return sentences[:NUM_SENTENCES]
    raise UserError(
        f"{workdir} has no sentences to compare the exported model on. Set --sentences to a file "
        "of source text."
    )
