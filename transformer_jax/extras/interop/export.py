"""Exports of a model. Each is compared with our own model before it gets its final name."""

import dataclasses
import functools
import shutil
from collections.abc import Callable

import jax
from etils import epath

from transformer_jax import paths
from transformer_jax.data import shortlist
from transformer_jax.errors import UserError
from transformer_jax.evaluation import bleu_tokenizers
from transformer_jax.extras.interop import (
    layout,
    model_card,
    parity,
    quality,
    stablehlo,
    usage_examples,
)
from transformer_jax.extras.interop.ctranslate2 import package
from transformer_jax.extras.interop.ctranslate2 import writing as ctranslate2_writing
from transformer_jax.extras.interop.ctranslate2.peer import TOLERANCES, CTranslate2Peer
from transformer_jax.extras.interop.huggingface import checking, families, writing
from transformer_jax.extras.interop.model_facts import ModelFacts
from transformer_jax.extras.interop.parity import Examples, Peer, Reference
from transformer_jax.extras.interop.sample_text import SampleText
from transformer_jax.translator import calibration
from transformer_jax.translator.pretrained import Pretrained

PARITY_SENTENCES = 100
NO_LIMIT = 100.0  # the largest BLEU
CALIBRATED = ("marian", "ctranslate2")  # formats whose exports `Translator.load` reads

Say = Callable[[str], None]
MakePeer = Callable[[epath.Path, Reference, Examples], Peer]
# Writes a folder, says what differs from our model, and returns how to load the folder.
Writer = Callable[[epath.Path, Pretrained, layout.Params, Say], MakePeer]


def export_model(
    model: Pretrained,
    format_name: str,
    output: epath.PathLike,
    text: SampleText,
    quantization: str = "float32",
    say: Say = print,
    *,
    max_bleu_loss: float = 1.0,
    facts: ModelFacts | None = None,
) -> None:
    """Writes `output` after comparing it with our model on `text`.

    Args:
      model: to export.
      format_name: one of FORMATS.
      output: a folder that does not exist, or is empty.
      text: to compare on.
      quantization: of a ctranslate2 export.
      say: gets the results of the comparison, and everything that is not as in our model.
      max_bleu_loss: most BLEU that quantization may lose on `text`.
      facts: about the model, for the README; None: only what the model itself says.

    Raises:
      UserError: the format cannot express the model, the export differs beyond the tolerance, or
        quantization loses too much; `output` is not written.
    """
    output = epath.Path(output)
    _check_arguments(format_name, output, quantization)
    if quantization != "float32":
        _check_judgeable(text, quantization, max_bleu_loss)
        bleu_tokenizers.for_data(model.config.data)  # an error now, not at the end
    with paths.new_path(output) as new_folder:
        temporary = epath.Path(new_folder)
        exporter = _Exporter(model, format_name, text, say)
        peer = exporter.write(temporary, "float32")
        if isinstance(peer, CTranslate2Peer) and quantization != "float32":
            before = exporter.translate(peer)
            del peer  # which holds the model, while it is written again
            peer = exporter.write(temporary, quantization)
            exporter.judge(quantization, before, exporter.translate(peer), max_bleu_loss)
        if model.calibration and format_name in CALIBRATED:
            calibration.write(model.calibration, temporary)
        if model.shortlist and format_name in CALIBRATED:
            name = shortlist.VOCABULARY_MAP if format_name == "ctranslate2" else shortlist.NAME
            shortlist.write(model.shortlist(), model.tokenizers, temporary / name)
        facts = facts or ModelFacts(output.resolve().name, "a model", model.step)
        model_card.write_readme(
            temporary, facts, model, format_name, text, exporter.notes, exporter.results
        )
    say(f"wrote {output}")


class _Exporter:
    """Writes an export stage by stage, and compares each stage with our model.

    A quantized export is written and compared without rounding first: rounding to 8 bits would hide
    a mistake.

    Attributes:
      notes: what differs from our model.
      results: of the comparisons.
    """

    def __init__(self, model: Pretrained, format_name: str, text: SampleText, say: Say):
        self.notes: list[str] = []
        self.results: list[str] = []
        self._model, self._format_name, self._say = model, format_name, say
        self._params = jax.device_get(model.params)
        self._references = _references(model, format_name)
        self._encoder = self._references[-1].engine.encoder()
        fits = self._references[-1].fits(self._encoder.source_ids(text.sentences))
        self._text = text.select(fits)

    @functools.cached_property
    def _examples(self) -> Examples:
        return self._references[-1].examples(self._text.head(PARITY_SENTENCES).sentences)

    def write(self, folder: epath.Path, quantization: str) -> Peer:
        """Writes the folder and compares it with our model.

        Raises:
          UserError: it differs beyond the tolerance.
        """
        shutil.rmtree(folder, ignore_errors=True)
        make_peer = _writer(self._format_name, quantization)(
            folder, self._model, self._params, self._note
        )
        for reference in self._references:
            peer = make_peer(folder, reference, self._examples)
            result = parity.compare(reference, self._examples, peer)
            self._report(result.describe())
            if not result.holds:
                raise UserError(
                    "The exported model differs beyond the tolerance; nothing is written."
                )
        return peer

    def translate(self, peer: Peer) -> list[str]:
        """Translations of all sentences by a CTranslate2 directory."""
        assert isinstance(peer, CTranslate2Peer)
        source_ids = self._encoder.source_ids(self._text.sentences)
        model = self._model
        search = usage_examples.ctranslate2_search(model.config.decode, model.tokenizers)
        return peer.translate(source_ids, search)

    def judge(
        self, quantization: str, before: list[str], after: list[str], max_bleu_loss: float
    ) -> None:
        """Scores translations without and with rounding.

        Raises:
          UserError: rounding loses more BLEU than that.
        """
        tokenizer = bleu_tokenizers.for_data(self._model.config.data)
        measured = quality.compare(self._text, quantization, before, after, tokenizer)
        self._report(measured.describe(max_bleu_loss))
        quality.check(measured, max_bleu_loss)

    def _note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)
            self._say(line)

    def _report(self, line: str) -> None:
        self.results.append(line)
        self._say(line)


def _check_arguments(format_name: str, output: epath.Path, quantization: str) -> None:
    if "://" in str(output):
        raise UserError(f"`output={output}` must be a local folder.")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"`output={output}` exists; name a new folder.")
    if quantization != "float32" and format_name != "ctranslate2":
        raise UserError(f"`quantization={quantization}` is for `format=ctranslate2`.")


def _check_judgeable(text: SampleText, quantization: str, max_bleu_loss: float) -> None:
    """Refuses a quantization that nothing could judge."""
    needs_references = TOLERANCES[quantization] is None
    if needs_references and not text.references and max_bleu_loss < NO_LIMIT:
        raise UserError(
            f"`quantization={quantization}` is judged by BLEU, which needs references: set "
            "`references` to a file with the translation of each line of `sentences`, or "
            f"`max_bleu_loss={NO_LIMIT:g}` to accept any loss."
        )


def _references(model: Pretrained, format_name: str) -> list[Reference]:
    """Models to compare with: ours last, before it one with the epsilon of the exported model.

    With equal epsilons, a mistake is not hidden by the difference that another epsilon makes.
    """
    epsilons = [model.config.model.norm_epsilon]
    is_written = model.config.model.norm == "rms"  # T5's config has the epsilon
    if format_name == "marian" and not is_written and epsilons[0] != families.NORM_EPSILON:
        epsilons.insert(0, families.NORM_EPSILON)
    configs = [
        dataclasses.replace(
            model.config, model=dataclasses.replace(model.config.model, norm_epsilon=epsilon)
        )
        for epsilon in epsilons
    ]
    return [Reference(config, model.tokenizers, model.params) for config in configs]


def _writer(format_name: str, quantization: str) -> Writer:
    if format_name == "ctranslate2":
        return functools.partial(_write_ctranslate2, quantization=quantization)
    return _write_marian if format_name == "marian" else _write_stablehlo


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
    package.require("A CTranslate2 export")
    if model.config.decode.suppressed_ids:
        tokens = model.tokenizers.target.tokens(model.config.decode.suppressed_ids)
        say(f"pass suppress_sequences={[[token] for token in tokens]} to translate_batch")
    ctranslate2_writing.write_directory(
        folder, model.config, model.tokenizers, params, quantization, model.attention
    )
    return functools.partial(CTranslate2Peer, quantization=quantization)


def _write_stablehlo(
    folder: epath.Path, model: Pretrained, params: layout.Params, say: Say
) -> MakePeer:
    del say  # nothing differs
    stablehlo.require()
    stablehlo.write_directory(folder, model.config, model.tokenizers, params)
    return stablehlo.StableHloPeer
