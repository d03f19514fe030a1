"""The command `shortlist`: learns a model's lexical shortlist, for faster decoding."""

from absl import flags

from transformer_jax.commands import model_flags
from transformer_jax.commands.command_help import CommandHelp
from transformer_jax.errors import UserError

FLAGS = flags.FLAGS
HELP = CommandHelp(
    usage="--workdir=DIR [flags]",
    about="Aligns the words of the model's training corpus, and writes which target tokens belong "
    "to each source token into DIR. With --shortlist, `decode` and all other commands that "
    "translate then search among these tokens only, which is faster. It needs the extra [align].",
    less_memory="use fewer pairs: --pairs",
    examples=(
        ("Of a run, from its training corpus:", "transformer-jax shortlist --workdir=runs/mine"),
        (
            "Then translate with it:",
            "transformer-jax decode --workdir=runs/mine --input=news.en --output=news.de "
            "--shortlist",
        ),
        (
            "Of a published model, from pairs of your own:",
            "transformer-jax shortlist --workdir=models/opus-mt-en-de --config.data.source=files "
            "--config.data.train=data/train",
        ),
    ),
    fields=("data.train", "data.validation"),
    pages=(("docs/fast_decoding.md", "how much faster, and what it costs"),),
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv`."""
    model_flags.define(argv, "CTranslate2")
    flags.DEFINE_integer(
        "tokens",
        100,
        "Target tokens for each source token, those linked most often.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "frequent", 300, "Most frequent target tokens, for every source.", lower_bound=0
    )
    flags.DEFINE_integer(
        "pairs", 1_000_000, "Most pairs that are read, spread over the corpus.", lower_bound=1
    )
    return argv


def run() -> None:
    """Learns the shortlist and writes it."""
    from etils import epath

    from transformer_jax.data import shortlist, sources
    from transformer_jax.interop.ctranslate2 import reading
    from transformer_jax.runs import directory_kinds

    folder = epath.Path(FLAGS.workdir)
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder of a model, into which the shortlist is written.")
    translator = model_flags.load_translator(needs_parameters=False)
    data, tokenizers = translator.config.data, translator.tokenizers
    corpora = sources.open_corpora(data, "train")
    print(f"reading {', '.join(corpus.name for corpus in corpora)}", flush=True)
    pairs = shortlist.sample(corpora, FLAGS.pairs)
    print(f"aligning the tokens of {len(pairs):,} pairs", flush=True)
    learned = shortlist.learn(pairs, tokenizers, FLAGS.tokens, FLAGS.frequent)
    is_ctranslate2 = directory_kinds.is_ctranslate2(folder)
    path = folder / (reading.VOCABULARY_MAP if is_ctranslate2 else shortlist.NAME)
    shortlist.write(learned, tokenizers, path)
    if data.validation:
        held_out = shortlist.sample(sources.open_corpora(data, "validation"), 10_000)
        mean, share = shortlist.coverage(learned, held_out, tokenizers)
        all_tokens = tokenizers.target.vocab_size
        print(
            f"a sentence of the validation set may use {mean:,.0f} of "
            f"{all_tokens:,} target tokens, which are {100 * share:.1f}% of those "
            "of its reference"
        )
    print(f"wrote {path}; search with --shortlist")
