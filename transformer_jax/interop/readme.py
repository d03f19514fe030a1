"""Writes the README of an exported folder, with a program that was run there."""

import os
import subprocess
import sys

from etils import epath

from transformer_jax.errors import UserError
from transformer_jax.interop import model_card, programs
from transformer_jax.interop.model_card import Facts
from transformer_jax.interop.pretrained import Pretrained
from transformer_jax.interop.sample_text import SampleText

NAME = "README.md"
_SHORT = 80  # characters of a good example


def write(
    folder: epath.Path,
    facts: Facts,
    model: Pretrained,
    format_name: str,
    text: SampleText,
    notes: list[str],
    results: list[str],
) -> None:
    """Writes README.md into `folder`, after running its program there.

    Args:
      folder: of the export.
      facts: about the model.
      model: that was exported.
      format_name: of the export.
      text: that the export was checked on; the program translates one sentence of it.
      notes: what differs from the original model.
      results: of the comparisons with the original model.

    Raises:
      UserError: the program fails.
    """
    program = programs.PROGRAMS[format_name](model.config, model.tokenizers, example(text))
    output = _run(program, folder)
    comparison = "When it was written, it was compared with the original model:\n\n" + "\n".join(
        ["```", *results, "```"]
    )
    card = model_card.write(facts, model, format_name, program, output, notes, comparison)
    (folder / NAME).write_text(card)


def example(text: SampleText) -> str:
    """A sentence to show: the first short one."""
    short = (sentence for sentence in text.sentences if len(sentence) <= _SHORT)
    return next(short, text.sentences[0])


def _run(program: str, folder: epath.Path) -> str:
    """What the program prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        # This process may hold the accelerator's memory.
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise UserError(f"The program in {NAME} of the export fails ({reason}).")
    return done.stdout.rstrip("\n")
