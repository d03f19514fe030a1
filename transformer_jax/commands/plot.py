"""The command `plot`: pictures of work directories, and their `report.html`."""

import io
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from absl import flags

from transformer_jax import paths
from transformer_jax.commands import command_line, model_flags
from transformer_jax.commands.command_help import CommandHelp, Words
from transformer_jax.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from transformer_jax.extras.plotting import Figure

FLAGS = flags.FLAGS
PICTURES = {
    "attention": "what the model looks at while it translates a sentence",
    "alignment": "the words that belong together, by the attention",
    "curves": "learning curves of one run or several",
    "schedule": "the learning rate of every step",
    "positions": "the table of sinusoids, and how alike positions are",
    "lengths": "lengths of the data, and the padding of its batches",
    "report": "a page of scores, curves, samples and attention: report.html",
}
OF_A_SENTENCE = ("attention", "alignment")
OF_SEVERAL_RUNS = ("curves", "schedule")
# Flag -> the pictures that use it; the others refuse it.
USED_BY = {
    "source": OF_A_SENTENCE,
    "target": OF_A_SENTENCE,
    "target_lang": OF_A_SENTENCE,
    "source_lang": OF_A_SENTENCE,
    "checkpoint": OF_A_SENTENCE,
    "layer": OF_A_SENTENCE,
    "heads": OF_A_SENTENCE,
    "mean": ("attention",),
    "part": ("attention",),
    "words": ("alignment",),
    "metrics": ("curves",),
    "split": ("lengths",),
    "scores": ("report",),
    "output": tuple(name for name in PICTURES if name != "report"),
}
HELP = CommandHelp(
    usage="PICTURE --workdir=DIR [flags]",
    words=Words("picture", PICTURES),
    about="Draws a picture from a work directory, as .svg, .png or .pdf, or writes its "
    "report.html. Needs Matplotlib.",
    less_memory="give a shorter sentence",
    examples=(
        (
            "What the model looks at while it translates a sentence:",
            "transformer-jax plot attention --workdir=runs/quickstart --source='forty-two'",
        ),
        (
            "Learning curves of two runs in one picture:",
            "transformer-jax plot curves --workdir=runs/a,runs/b --output=curves.svg",
        ),
        (
            "Write report.html again, with scores of `eval --json`:",
            "transformer-jax plot report --workdir=runs/mine --scores=scores.json",
        ),
    ),
    pages=(("docs/pictures.md", "what each picture shows"),),
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv`."""
    command_line.define_paths(
        "workdir", None, "DIR,DIR", "Folder of the run; for curves and schedule, also several."
    )
    command_line.define_path(
        "output", None, "FILE", "File to write, .svg, .png or .pdf; else PICTURE.svg here."
    )
    model_flags.define_checkpoint()
    model_flags.define_languages()
    flags.DEFINE_string("source", None, "attention, alignment: a sentence.")
    flags.DEFINE_string("target", None, "Its translation; default: the model's.")
    flags.DEFINE_enum("part", "cross", ["cross", "encoder", "decoder"], "attention: which one.")
    flags.DEFINE_integer("layer", -2, "Layer whose heads are drawn; -1 is the last.")
    flags.DEFINE_list("heads", None, "Heads to draw; default: all.")
    flags.DEFINE_bool("mean", False, "Draw the mean of those heads instead.")
    flags.DEFINE_bool("words", True, "alignment: join tokens to words.")
    flags.DEFINE_list("metrics", None, "curves: names in metrics.jsonl, a panel each.")
    flags.DEFINE_enum("split", "train", ["train", "validation", "test"], "lengths: which data.")
    command_line.define_paths("scores", [], "FILE,FILE", "report: files that `eval --json` wrote.")
    return argv


def run(words: Sequence[str]) -> None:
    """Draws the picture and prints where it is."""
    (picture,) = words
    _check_flags(picture)
    if picture == "report":
        from transformer_jax.extras.plotting.report import write_report

        print(f"wrote {write_report(FLAGS.workdir[0], FLAGS.scores)}")
        return
    from etils import epath

    output = epath.Path(FLAGS.output or f"{picture}.svg")
    if output.suffix not in (".svg", ".png", ".pdf"):
        raise UserError(f"--output={output} must end in .svg, .png or .pdf.")
    if not paths.is_remote(output) and not output.parent.is_dir():
        raise UserError(f"--output={output}: there is no folder {output.parent}.")
    from transformer_jax.extras import plotting

    draw = {
        "attention": _attention,
        "alignment": _alignment,
        "curves": _curves,
        "schedule": _schedule,
        "positions": _positions,
        "lengths": _lengths,
    }
    figure = draw[picture]()
    if output.suffix == ".svg":
        paths.write_atomically(output, plotting.to_svg(figure))
    else:
        data = io.BytesIO()
        figure.savefig(data, format=output.suffix[1:])
        paths.write_atomically(output, data.getvalue())
    print(f"wrote {output}")


def _check_flags(picture: str) -> None:
    """Refuses a missing sentence, and flags that the picture does not use."""
    if len(FLAGS.workdir) > 1 and picture not in OF_SEVERAL_RUNS:
        raise UserError(f"{picture} takes one --workdir, not {len(FLAGS.workdir)}.")
    if picture in OF_A_SENTENCE and not FLAGS.source:
        raise UserError(f"{picture} needs a sentence: --source='...'.")
    if FLAGS.part == "encoder" and FLAGS.target is not None:
        raise UserError("--target is for --part=cross and decoder; the encoder reads the source.")
    for name, pictures in USED_BY.items():
        if FLAGS[name].present and picture not in pictures:
            raise UserError(f"--{name} is for {' and '.join(pictures)}, not for {picture}.")


def _attention() -> "Figure":
    from transformer_jax.extras import plotting

    weights, rows, columns, layer, heads = _weights(FLAGS.part)
    where = f"{FLAGS.part} layer {layer}"
    titles = [f"{where}, head {head}" for head in heads]
    if FLAGS.mean:
        weights = weights.mean(axis=0, keepdims=True)
        titles = [f"{where}, mean of {len(heads)} heads"] if len(heads) > 1 else titles
    return plotting.attention_maps(weights, rows, columns, titles)


def _alignment() -> "Figure":
    from transformer_jax.extras import plotting
    from transformer_jax.translator import alignment

    weights, rows, columns, _, _ = _weights("cross")
    # Without the end symbols.
    mean = weights.mean(axis=0)[:-1, :-1]
    target, source = list(rows[:-1]), list(columns[:-1])
    if FLAGS.words:
        mean = alignment.word_attention(mean, source, target)
        target, source = (alignment.join_words(side) for side in (target, source))
    return plotting.alignment(mean, target, source)


def _weights(
    part: str,
) -> tuple["np.ndarray", tuple[str, ...], tuple[str, ...], int, list[int]]:
    """Attention of the layer and heads that the flags name.

    Returns:
      Weights `[heads, T, S]`, T labels of the rows, S labels of the columns, numbers of the layer
      and of the heads.
    """
    from transformer_jax.extras.plotting import collect
    from transformer_jax.translator.translator import Translator

    translator = Translator.load(FLAGS.workdir[0], FLAGS.checkpoint)
    target = "" if part == "encoder" else FLAGS.target  # the encoder needs no translation
    attention = collect.sentence_attention(
        translator, FLAGS.source, target, FLAGS.target_lang, FLAGS.source_lang
    )
    weights, rows, columns = attention.of(part)
    depth, num_heads = weights.shape[:2]
    layer = max(FLAGS.layer, -depth) if not FLAGS["layer"].present else FLAGS.layer
    if not -depth <= layer < depth:
        raise UserError(f"--layer={layer}: there are layers 0 to {depth - 1}.")
    wanted = FLAGS.heads or range(num_heads)
    if not all(str(head).isdigit() and int(head) < num_heads for head in wanted):
        raise UserError(f"--heads={','.join(FLAGS.heads)}: there are heads 0 to {num_heads - 1}.")
    heads = [int(head) for head in wanted]
    return weights[layer][heads], rows, columns, layer % depth, heads


def _curves() -> "Figure":
    from transformer_jax.extras import plotting
    from transformer_jax.workdir import history

    runs = dict(zip(_names(), map(history.read_metrics, FLAGS.workdir), strict=True))
    if FLAGS.metrics is None:
        return plotting.learning_curves(runs)
    points = [point for lines in runs.values() for line in lines for point in line.items()]
    present = sorted({name for name, value in points if isinstance(value, int | float)})
    for name in FLAGS.metrics:
        if name not in present:
            raise UserError(
                f"--metrics={name} is in none of these runs; there are {', '.join(present)}."
            )
    return plotting.learning_curves(runs, {name: {name: ""} for name in FLAGS.metrics})


def _names() -> list[str]:
    """Names of the runs: the last part of each work directory, or all of it if two are equal."""
    names = [PurePosixPath(path).name for path in FLAGS.workdir]
    return names if len(set(names)) == len(names) else list(FLAGS.workdir)


def _schedule() -> "Figure":
    import jax
    import numpy as np

    from transformer_jax.extras import plotting
    from transformer_jax.training.optimizer import make_schedule
    from transformer_jax.workdir import folder as workdir_lib

    rates = {}
    for name, path in zip(_names(), FLAGS.workdir, strict=True):
        config = workdir_lib.read_config(path)
        num_steps = config.train.num_steps
        schedule = make_schedule(config.optimizer, config.model.d_model, num_steps)
        rates[name] = np.asarray(jax.vmap(schedule)(np.arange(num_steps)))
    return plotting.schedules(rates)


def _positions() -> "Figure":
    from transformer_jax.extras import plotting
    from transformer_jax.model.choices import sinusoid_table
    from transformer_jax.ops.positional import SINUSOIDS
    from transformer_jax.workdir import folder as workdir_lib

    model = workdir_lib.read_config(FLAGS.workdir[0]).model
    if model.positional not in SINUSOIDS:
        raise UserError(
            f"The model has {model.positional} positions; only a table of sinusoids can be drawn "
            "without its parameters."
        )
    return plotting.positions(sinusoid_table(model))


def _lengths() -> "Figure":
    from transformer_jax.extras import plotting
    from transformer_jax.extras.plotting import collect
    from transformer_jax.workdir import folder as workdir_lib

    config = workdir_lib.read_config(FLAGS.workdir[0])
    return plotting.length_statistics(
        *collect.corpus_lengths(config, FLAGS.workdir[0], FLAGS.split)
    )
