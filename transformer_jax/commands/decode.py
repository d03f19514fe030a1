"""The command `decode`: its flags and help. `decode_run` does the work, and loads JAX."""

from absl import flags

from transformer_jax.commands import command_line, model_flags, process_flags, search_flags
from transformer_jax.commands.command_help import CommandHelp
from transformer_jax.extras.documents.formats import FORMATS
from transformer_jax.translator import ON_ERROR, WINDOW

HELP = CommandHelp(
    usage="--workdir=DIR [flags]",
    about="Reads text, one sentence a line, and writes one line for each, in the same order. A job "
    "with --output=FILE that is interrupted resumes when the same command is given again.",
    less_memory="lower --batch_tokens, --beam_size or --mbr_samples",
    examples=(
        (
            "A sentence, from a run of `make quickstart`:",
            "echo 'forty-two' | transformer-jax decode --workdir=runs/quickstart",
        ),
        (
            "A file, with greedy search, which is faster:",
            "transformer-jax decode --workdir=runs/mine --input=text.en --output=text.de "
            "--beam_size=1",
        ),
        (
            "The three best translations of each line, as JSON, with scores:",
            "transformer-jax decode --workdir=runs/mine --input=text.en --n_best=3 --format=jsonl",
        ),
        (
            "A document, whose layout and tags are kept:",
            "transformer-jax decode --workdir=runs/mine --document --input=page.html "
            "--output=seite.html",
        ),
    ),
    fields=("parallel.data",),
    pages=(
        ("docs/translate_text.md", "tasks, from a sentence to large files"),
        ("docs/decoding.md", "every search setting and how they combine"),
    ),
    resumes=True,
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; every setting of `DecodeConfig` is one. Returns `argv`."""
    model_flags.define(argv, "a CTranslate2 export")
    model_flags.define_languages()
    search_flags.define()
    command_line.define_path(
        "input", "-", "FILE", "Text, one sentence a line; - is standard input."
    )
    command_line.define_path(
        "output", "-", "FILE", "Where the translations go; - is standard output."
    )
    _define_document_flags()
    flags.DEFINE_enum("format", "text", ["text", "jsonl"], "Format of the output.")
    flags.DEFINE_integer(
        "n_best", 1, "Hypotheses or samples; above 1 a line of text is `line ||| text ||| score`."
    )
    command_line.define_path(
        "prefixes", "", "FILE", "File: the beginning of each line's translation."
    )
    command_line.define_path(
        "phrases",
        "",
        "FILE",
        "File: phrases that each line's translation contains, separated by tabs.",
    )
    command_line.define_path(
        "score", "", "FILE", "File: translations of the input, to score instead."
    )
    flags.DEFINE_bool("per_token", False, "With --score: the log-probability of every token too.")
    _define_output_flags()
    flags.DEFINE_integer(
        "context_sentences",
        None,
        "Lines or sentences before each that the model reads too, up to an empty line. Not given: "
        "as many as config.data.context_sentences, with which it was trained.",
        0,
    )
    flags.DEFINE_integer(
        "window",
        WINDOW,
        "Lines that are read ahead and sorted by length. When a pipe or terminal has no more lines "
        "at the moment, those that were read are translated without waiting for a full window.",
        1,
    )
    flags.DEFINE_enum(
        "on_error",
        "raise",
        ON_ERROR,
        "skip: a line whose phrases or prefix do not fit gives an empty translation.",
    )
    model_flags.define_ensemble()
    process_flags.define()
    return argv


def _define_document_flags() -> None:
    flags.DEFINE_bool(
        "document",
        False,
        "Translate the input as a document: sentence by sentence, with layout and markup kept.",
    )
    flags.DEFINE_enum(
        "document_format",
        "",
        ["", *FORMATS],
        "With --document: format of the input; empty: by the ending of its name.",
    )
    command_line.define_path(
        "glossary",
        "",
        "FILE",
        "File of terms that translations contain: source, tab, target on each line; forms of a "
        "target are separated by |.",
    )
    flags.DEFINE_multi_string(
        "protect",
        [],
        "With --document: regular expression of what no translation may change; may be given "
        "several times.",
    )
    flags.DEFINE_bool(
        "protect_usual",
        True,
        "With --document: addresses, numbers with units, names in braces, %s and the like do not "
        "change.",
    )
    flags.DEFINE_bool(
        "guards",
        True,
        "With --document: translate loops, copies of the source and the like again, and flag them "
        "if they stay.",
    )
    command_line.define_path(
        "sentences",
        "",
        "FILE",
        "With --document: file for each sentence with its translation and flags, as JSON lines.",
    )


def _define_output_flags() -> None:
    flags.DEFINE_bool("alignment", False, "Add word alignments, `0-0 1-2`, source first.")
    flags.DEFINE_bool(
        "confidence",
        False,
        "Add the confidence of each line and word, with --format=jsonl; `eval --calibrate` has to "
        "have run. Documents have it with --sentences.",
    )
    flags.DEFINE_bool("attention", False, "Add attention to the source, with --format=jsonl.")
    flags.DEFINE_integer(
        "attention_layer",
        None,
        "Decoder layer of the attention; -1: the last. Not given: what links words best.",
    )
    flags.DEFINE_integer(
        "attention_head", None, "Head of the attention; -1: the mean of all, as if not given."
    )


def run() -> None:
    """Translates or scores the input."""
    from transformer_jax.commands import decode_document, decode_run

    decode_document.run() if flags.FLAGS.document else decode_run.run()
