"""Runs `eval --calibrate`: learns from a validation set how sure the model is, and writes it."""

from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from etils import epath

from transformer_jax import distributed
from transformer_jax.errors import UserError
from transformer_jax.extras.documents import attention_choice
from transformer_jax.translator import calibration
from transformer_jax.translator.calibration import NAME, Calibration
from transformer_jax.translator.translation import Translation
from transformer_jax.translator.translator import Translator
from transformer_jax.workdir import directory_kinds

FLAGS = flags.FLAGS


def check() -> None:
    """Refuses models that cannot keep a calibration, before they are read.

    Raises:
      UserError: saying why.
    """
    if FLAGS.ensemble:
        raise UserError("--calibrate is for one model: remove --ensemble.")
    path = epath.Path(FLAGS.workdir)
    if directory_kinds.is_bundle(path):
        raise UserError(
            f"{path} is a bundle, which cannot be changed: calibrate the run, and bundle it again."
        )
    if not path.is_dir():
        raise UserError(f"--calibrate writes {NAME} into a folder, and {path} is none.")


def run(
    translator: Translator,
    pairs: Sequence[tuple[str, str]],
    outputs: Sequence[Translation],
    settings: Mapping[str, Any],
) -> Mapping[str, float]:
    """Calibrates, prints how good it is, and writes `calibration.json`; returns what it prints.

    Args:
      translator: of the model.
      pairs: of the validation set.
      outputs: translation of each source, with its `token_log_probs`.
      settings: of the search.
    """
    sentence, word, measured = calibration.fit(outputs, [reference for _, reference in pairs])
    stand_ins, copied = calibration.find_stand_ins(
        translator,
        pairs,
        source_lang=FLAGS.source_lang,
        target_lang=FLAGS.target_lang,
        **settings,
    )
    chosen = attention_choice.choose(translator, pairs)
    if stand_ins:
        measured["stand_ins_copied"] = copied
    if chosen:
        measured["equal_words_linked"] = chosen[1]
    fitted = Calibration(
        sentence,
        word,
        stand_ins,
        chosen[0] if chosen else None,
        translator.checkpoint_step,
        measured,
    )
    if distributed.is_primary():
        calibration.write(fitted, FLAGS.workdir)
        _print(fitted)
    return measured


def describe(fitted: Calibration) -> list[str]:
    """What a calibration is worth, in lines."""
    measured = fitted.measured
    lines = [
        f"calibrated on {measured['num_sentences']:,.0f} sentences, cross-validated",
        f"  sentences: expected chrF within {100 * measured['sentence_calibration_error']:.1f} "
        f"points; finds the worst tenth with AUROC {measured['worst_tenth_auroc']:.3f}",
        f"  words: probability within {100 * measured['word_calibration_error']:.1f} points; finds "
        f"wrong words with AUROC {measured['wrong_word_auroc']:.3f}",
    ]
    if fitted.stand_ins:
        lines.append(
            f"  copies {100 * measured['stand_ins_copied']:.0f}% of {', '.join(fitted.stand_ins)}"
        )
    else:
        lines.append("  no words that it copies were found, so others take the place of names")
    if fitted.attention:
        one = fitted.attention
        head = "mean of the heads" if one.head is None else f"head {one.head}"
        when = "reads" if one.shift else "writes"
        lines.append(
            f"  words are linked by layer {one.layer}, {head}, at the step that {when} a token "
            f"({100 * measured['equal_words_linked']:.0f}% of equal words)"
        )
    return lines


def _print(fitted: Calibration) -> None:
    print(*describe(fitted), f"wrote {epath.Path(FLAGS.workdir) / NAME}", sep="\n")
