"""The command `translate-corpus`: many files of lines, on one machine or a Ray cluster."""

from absl import flags

from transformer_jax.commands import command_line, model_flags, search_flags
from transformer_jax.commands.command_help import CommandHelp

HELP = CommandHelp(
    usage="--model=DIR --input=GLOB --output=DIR [flags]",
    about="Translates each file that --input matches, one sentence a line, into a file of the same "
    "name in --output, in order. With --ray, processes on the machines of a cluster share the "
    "work, each with the model loaded once. It prints the speed, the time left, and with --price "
    "the cost. Given again, an interrupted job continues where it was.",
    less_memory="lower --batch_tokens",
    examples=(
        (
            "Files of monolingual text, for back-translation:",
            "transformer-jax translate-corpus --model=runs/mine --input='news/*.de.gz' "
            "--output=translated",
        ),
        (
            "Pairs for training whose sources are sampled and have a tag:",
            "transformer-jax translate-corpus --model=runs/mine --input='news/*.de.gz' "
            "--output=sampled --write=back_pairs --method=sample --tag='<BT>'",
        ),
        (
            "A Ray cluster with GPUs, greedy search, and the cost at 2 dollars an hour each:",
            "transformer-jax translate-corpus --model=/shared/runs/mine --input='/shared/news/*' "
            "--output=/shared/out --ray=auto --gpus=1 --beam_size=1 --price=2",
        ),
    ),
    pages=(
        ("docs/large_corpora.md", "clusters, and what a job of 100 million sentences needs"),
        ("docs/synthetic_data.md", "back-translation and distillation"),
    ),
    resumes=True,
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; every setting of `DecodeConfig` is one. Returns `argv`."""
    command_line.define_path("model", None, "DIR|FILE", "Folder of the run, bundle or export.")
    model_flags.define_checkpoint()
    command_line.define_path(
        "input", None, "GLOB", "Files to translate, .gz and .zst too, such as 'news/*.en'."
    )
    command_line.define_path("output", None, "DIR", "Folder of the translations.")
    model_flags.define_ensemble()
    flags.DEFINE_enum(
        "write",
        "translations",
        ["translations", "pairs", "back_pairs"],
        "Lines of translations; or pairs for training, source and target with a tab between them: "
        "pairs, with translations as targets, or back_pairs, with translations as sources.",
    )
    flags.DEFINE_string("tag", "", "Word before the source of each pair, such as <BT>.")
    define_pair_flags()
    define_process_flags()
    model_flags.define_languages()
    search_flags.define()
    return argv


def define_process_flags() -> None:
    """Those of the processes that translate."""
    command_line.define_text(
        "ray", "", "ADDRESS", "Ray cluster that translates; `auto`: that of this machine."
    )
    flags.DEFINE_float("cpus", 1, "With --ray: CPUs of each process.", 0)
    flags.DEFINE_float("gpus", 0, "With --ray: GPUs of each process.", 0)
    flags.DEFINE_float("price", 0, "Price of a process by the hour, for the cost.", 0)
    flags.DEFINE_integer("chunk", 4096, "Lines that a process is given at once.", 1)


def define_pair_flags() -> None:
    """Those that choose pairs."""
    flags.DEFINE_integer("n_best", 1, "Translations of each line that become pairs.", 1)
    flags.DEFINE_float(
        "min_log_prob",
        None,
        "Least log-probability of a translation in a pair, per token, such as -0.5.",
        upper_bound=0,
    )
    flags.DEFINE_bool(
        "guards", True, "Leave out pairs with loops, copies, wrong lengths or another script."
    )


def run() -> None:
    """Translates all files."""
    from transformer_jax.commands import corpus_translation

    corpus_translation.run()
