"""Carries a model out, and puts it in its place only after it has been compared with ours."""

import dataclasses
import functools
import json
import shutil
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import jax
from etils import epath

from transformer_jax.config import Config
from transformer_jax.data import sources
from transformer_jax.errors import UserError
from transformer_jax.interop import ctranslate2, parity, stablehlo
from transformer_jax.interop.huggingface import checking, families, hub, reading, writing
from transformer_jax.interop.parity import Examples, Peer, Reference
from transformer_jax.interop.pretrained import Pretrained

FORMATS = ("marian", "ctranslate2", "stablehlo")
QUANTIZATIONS = tuple(ctranslate2.TOLERANCES)
NUM_SENTENCES = 100

Say = Callable[[str], None]
MakePeer = Callable[[epath.Path, Reference, Examples], Peer]


def export_model(
    model: Pretrained,
    format_name: str,
    output: epath.PathLike,
    sentences: Sequence[str],
    quantization: str = "float32",
    say: Say = print,
) -> None:
    """Writes `output`, compares it with our model on `sentences`, and says how it went.

    Args:
      model: to carry out.
      format_name: one of FORMATS.
      output: a folder that does not exist, or is empty.
      sentences: source text.
      quantization: of a ctranslate2 export.
      say: told about everything that is not as in our model.

    Raises:
      UserError: what cannot be expressed, or differs beyond the tolerance; `output` is not made.
    """
    output = epath.Path(output)
    if "://" in str(output):
        raise UserError(f"--output={output} must be a local folder.")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"--output={output} exists; name a new folder.")
    if quantization != "float32" and format_name != "ctranslate2":
        raise UserError(f"--quantization={quantization} is for --format=ctranslate2.")
    writers: dict[str, Callable[..., MakePeer]] = {
        "marian": _write_marian,
        "ctranslate2": functools.partial(_write_ctranslate2, quantization=quantization),
        "stablehlo": _write_stablehlo,
    }
    stages = [writers[format_name]]
    if quantization != "float32":
        # A mistake of ours would hide behind rounding to 8 bits: first as it is.
        stages.insert(0, functools.partial(_write_ctranslate2, quantization="float32"))
    reference = Reference(model.config, model.tokenizers, model.params)
    references = [reference]
    if format_name == "marian" and model.config.model.norm_epsilon != families.NORM_EPSILON:
        # Nor behind the change of epsilon: first with theirs on both sides.
        references.insert(0, _with_epsilon(model, families.NORM_EPSILON))
    params = jax.device_get(model.params)
    output.parent.mkdir(parents=True, exist_ok=True)
    aside = output.parent / f".{output.name}.{uuid.uuid4().hex}"
    try:
        examples = None
        for stage in stages:
            shutil.rmtree(aside, ignore_errors=True)
            make_peer = stage(aside, model, params, say)
            examples = examples or reference.examples(sentences)
            for side in references:
                result = parity.compare(side, examples, make_peer(aside, side, examples))
                say(result.describe())
                if not result.holds:
                    raise UserError(
                        f"The exported model differs beyond the tolerance; {output} is not made."
                    )
        if output.exists():
            output.rmdir()
        aside.rename(output)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    say(f"wrote {output}")


def _with_epsilon(model: Pretrained, epsilon: float) -> Reference:
    config = dataclasses.replace(
        model.config, model=dataclasses.replace(model.config.model, norm_epsilon=epsilon)
    )
    return Reference(config, model.tokenizers, model.params)


def _write_marian(folder: epath.Path, model: Pretrained, params: Any, say: Say) -> MakePeer:
    checking.require()
    plan = writing.plan_export(model.config, model.tokenizers, params)
    for note in plan.notes:
        say(note)
    writing.write_directory(folder, model.config, model.tokenizers, params, plan)
    return checking.HuggingFacePeer


def _write_ctranslate2(
    folder: epath.Path, model: Pretrained, params: Any, say: Say, *, quantization: str
) -> MakePeer:
    ctranslate2.require()
    if model.config.decode.suppressed_ids:
        tokens = model.tokenizers.target.tokens(model.config.decode.suppressed_ids)
        say(f"pass suppress_sequences={[[token] for token in tokens]} to translate_batch")
    ctranslate2.write_directory(folder, model.config, model.tokenizers, params, quantization)
    return functools.partial(ctranslate2.CTranslate2Peer, quantization=quantization)


def _write_stablehlo(folder: epath.Path, model: Pretrained, params: Any, say: Say) -> MakePeer:
    del say  # nothing changes
    stablehlo.require()
    stablehlo.write_directory(folder, model.config, model.tokenizers, params)
    return stablehlo.StableHloPeer


def find_sentences(workdir: epath.PathLike, config: Config, given: str = "") -> list[str]:
    """Source text to check an export with.

    Args:
      workdir: of the model.
      config: of the model.
      given: a file, one sentence a line; "": the validation set where it can be read, else the
        samples of the run.

    Raises:
      UserError: where there is none.
    """
    if given:
        if not epath.Path(given).exists():
            raise UserError(f"There is no file {given} (--sentences).")
        return [line for line in sources.read_lines(epath.Path(given)) if line][:NUM_SENTENCES]
    if not reading.is_directory(hub.locate(workdir)):
        try:
            corpora = sources.open_corpora(config.data, "validation")
            found = [pair[0] for corpus in corpora for pair in corpus.read() if pair[0]]
        except UserError:  # a work directory may have moved away from its data
            found = _samples(epath.Path(workdir) / "samples.jsonl")
        if found:
            return found[:NUM_SENTENCES]
    raise UserError(
        f"No sentences to check the exported model with are at hand for {workdir}; name a file of "
        "source text by --sentences."
    )


def _samples(path: epath.Path) -> list[str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return list(dict.fromkeys(json.loads(line)["source"] for line in lines))
