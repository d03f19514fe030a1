"""The command `eval`: its flags and help. `eval_run` does the work, and loads JAX."""

from absl import flags

from transformer_jax.commands import command_line, model_flags, process_flags, search_flags
from transformer_jax.commands.command_help import CommandHelp

HELP = CommandHelp(
    usage="--workdir=DIR [flags]",
    about="Translates a test set and prints BLEU and chrF by sacreBLEU, with their signatures, "
    "exact match, loss, perplexity and token accuracy. Every sentence counts, on untouched "
    "references.",
    less_memory="lower --batch_tokens or --beam_size",
    examples=(
        (
            "The test set that the recipe names, with the best checkpoint:",
            "transformer-jax eval --workdir=runs/quickstart",
        ),
        (
            "Files of your own, the scores also as JSON:",
            "transformer-jax eval --workdir=runs/mine --input=news.en --reference=news.de "
            "--json=scores.json",
        ),
        (
            "Is it better than another run by more than chance?",
            "transformer-jax eval --workdir=runs/mine --compare=runs/other@latest",
        ),
        (
            "How sure is it? Documents and the server use the answer:",
            "transformer-jax eval --workdir=runs/mine --calibrate",
        ),
    ),
    fields=("data.test", "data.bleu_tokenizer", "data.pretokenized", "parallel.data"),
    pages=(
        ("docs/evaluation.md", "what each score means, conventions, checkpoints, comparisons"),
        ("docs/decoding.md", "every search setting"),
    ),
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv`."""
    model_flags.define(argv)
    model_flags.define_languages()
    flags.DEFINE_enum("split", "test", ["train", "validation", "test"], "Data to score.")
    command_line.define_path(
        "input", None, "FILE", "File of sources, one a line, instead of --split."
    )
    command_line.define_path("reference", None, "FILE", "File of their translations, for --input.")
    command_line.define_path("json", None, "FILE", "Also write the scores to this file.")
    command_line.define_path(
        "output", None, "FILE", "Also write the translations to this file, one a line."
    )
    flags.DEFINE_string(
        "metrics",
        "bleu,chrf",
        "Scores, with commas: bleu and chrf, which are always computed, chrf++, ter, comet, and "
        "comet_qe, which needs no reference.",
    )
    flags.DEFINE_string(
        "comet_command",
        None,
        "What computes comet and comet_qe, with arguments; default: "
        "config.checkpoint.comet_command.",
    )
    flags.DEFINE_bool("conventions", False, "Show BLEU in every convention, with signatures.")
    command_line.define_path(
        "errors",
        None,
        "FILE",
        "Also write an HTML page to this file: the worst sentences, and scores by length and by "
        "frequency of words; with --compare of both systems.",
    )
    flags.DEFINE_bool(
        "robustness",
        False,
        "Also score the sources in upper case, in lower case, without punctuation, and with typing "
        "errors.",
    )
    flags.DEFINE_bool(
        "calibrate",
        False,
        "Learn from the validation set (or from --input) how sure the model is of its translations "
        "and words, which words it copies, and which head aligns; keeps it in DIR.",
    )
    command_line.define_path(
        "compare",
        None,
        "DIR|FILE",
        "Another model, DIR or DIR@CHECKPOINT, a bundle, a published model, or a file of "
        "translations: does it differ by more than chance?",
    )
    model_flags.define_ensemble()
    search_flags.define()
    process_flags.define()
    return argv


def run() -> None:
    """Scores the model."""
    from transformer_jax.commands import eval_run

    eval_run.run()
