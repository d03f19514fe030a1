"""The command `shortlist`: learns a model's lexical shortlist, for faster decoding."""

from absl import flags

from transformer_jax.commands import model_flags
from transformer_jax.commands.command_help import CommandHelp
from transformer_jax.errors import UserError

FLAGS = flags.FLAGS
HELD_OUT = 100  # one pair of as many is not learned from, but shows how good the shortlist is
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
            "Of a published model, from your pairs:",
            "transformer-jax shortlist --workdir=models/opus-mt-en-de --config.data.source=files "
            "--config.data.train=data/train",
        ),
    ),
    fields=("data.train",),
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
        "pairs", 500_000, "Most pairs that are read, spread over the corpus.", lower_bound=1
    )
    return argv


def run() -> None:
    """Learns the shortlist and writes it."""
    from etils import epath

    from transformer_jax.data import shortlist, sources
    from transformer_jax.workdir import directory_kinds

    folder = epath.Path(FLAGS.workdir)
    if not folder.is_dir():
        raise UserError(
            f"--workdir={folder} is no folder, into which a shortlist is written; for a bundle, "
            "make that of the run and bundle it again."
        )
    translator = model_flags.load_translator(needs_parameters=False)
    tokenizers = translator.tokenizers
    corpora = sources.open_corpora(translator.config.data, "train")
    print(f"reading {', '.join(corpus.name for corpus in corpora)}", flush=True)
    pairs = shortlist.sample(corpora, FLAGS.pairs)
    held_out = pairs[::HELD_OUT][1:]
    del pairs[HELD_OUT::HELD_OUT]
    print(f"aligning the tokens of {len(pairs):,} pairs", flush=True)
    learned = shortlist.learn(pairs, tokenizers, FLAGS.tokens, FLAGS.frequent)
    is_ctranslate2 = directory_kinds.is_ctranslate2(folder)
    path = folder / (shortlist.VOCABULARY_MAP if is_ctranslate2 else shortlist.NAME)
    shortlist.write(learned, tokenizers, path)
    if held_out:
        mean, share = shortlist.coverage(learned, held_out, tokenizers)
        print(
            f"of {tokenizers.target.vocab_size:,} target tokens a sentence may have {mean:,.0f}, "
            f"which are {100 * share:.1f}% of those of its translation ({len(held_out):,} other "
            "pairs)"
        )
    print(f"wrote {path}; search with --shortlist")
