"""The command `plot`: pictures of work directories, and their `report.html`."""

import io

from absl import flags
from etils import epath

from transformer_jax import paths
from transformer_jax.errors import UserError

FLAGS = flags.FLAGS
LESS_MEMORY = "give a shorter sentence"
PICTURES = ("attention", "alignment", "curves", "schedule", "positions", "lengths", "report")
_SENTENCE = ("attention", "alignment")
_SEVERAL = ("curves", "schedule")


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv` with the picture's name as a flag."""
    flags.DEFINE_enum("picture", None, PICTURES, "What to draw; --picture= may be left out.")
    flags.DEFINE_list("workdir", None, "Folder of the run; of curves and schedule, also several.")
    flags.DEFINE_string("output", None, "File to write, .svg, .png or .pdf; else PICTURE.svg here.")
    flags.DEFINE_string("checkpoint", "best", "best, latest, a step, or average:N.")
    flags.DEFINE_string("source", None, "Of attention and alignment: a sentence.")
    flags.DEFINE_string("target", None, "Its translation; without it, the model's own.")
    flags.DEFINE_string("target_lang", "", "Of a multilingual model; else the config's.")
    flags.DEFINE_string("source_lang", "", "Of a model that is told this too.")
    flags.DEFINE_enum("part", "cross", ["cross", "encoder", "decoder"], "Whose attention.")
    flags.DEFINE_integer("layer", -2, "Layer whose heads are drawn; -1 is the last.")
    flags.DEFINE_list("heads", None, "Heads to draw; else all.")
    flags.DEFINE_bool("mean", False, "Draw the mean of those heads instead.")
    flags.DEFINE_bool("words", True, "Of an alignment: join tokens to words.")
    flags.DEFINE_list("metrics", None, "Of curves: names in metrics.jsonl, a panel each.")
    flags.DEFINE_enum("split", "train", ["train", "validation", "test"], "Of lengths.")
    flags.DEFINE_list("scores", [], "Of a report: files that eval.py --json wrote.")
    if len(argv) > 1 and not argv[1].startswith("-"):
        return [argv[0], f"--picture={argv[1]}", *argv[2:]]
    return argv


def run() -> None:
    """Draws what the flags ask for and says where it is."""
    _check_flags()
    if FLAGS.picture == "report":
        from transformer_jax.plotting.report import write_report

        print(f"wrote {write_report(FLAGS.workdir[0], FLAGS.scores)}")
        return
    output = epath.Path(FLAGS.output or f"{FLAGS.picture}.svg")
    if output.suffix not in (".svg", ".png", ".pdf"):
        raise UserError(f"--output={output} must end in .svg, .png or .pdf.")
    if not paths.is_remote(output) and not output.parent.is_dir():
        raise UserError(f"--output={output}: there is no folder {output.parent}.")
    from transformer_jax import plotting

    draw = {
        "attention": _attention, "alignment": _alignment, "curves": _curves,
        "schedule": _schedule, "positions": _positions, "lengths": _lengths,
    }  # fmt: skip
    figure = draw[FLAGS.picture]()
    if output.suffix == ".svg":
        output.write_text(plotting.to_svg(figure))
    else:
        picture = io.BytesIO()
        figure.savefig(picture, format=output.suffix[1:])
        output.write_bytes(picture.getvalue())
    print(f"wrote {output}")


def _check_flags() -> None:
    if FLAGS.picture is None:
        raise UserError(f"Say what to draw: {', '.join(PICTURES)}.")
    if not FLAGS.workdir:
        raise UserError("--workdir=DIR is missing: the folder of the run.")
    if len(FLAGS.workdir) > 1 and FLAGS.picture not in _SEVERAL:
        raise UserError(f"{FLAGS.picture} takes one --workdir, not {len(FLAGS.workdir)}.")
    if FLAGS.picture in _SENTENCE and not FLAGS.source:
        raise UserError(f"{FLAGS.picture} needs a sentence: --source='...'.")
    used = {
        "source": _SENTENCE, "target": _SENTENCE, "target_lang": _SENTENCE, "layer": _SENTENCE,
        "heads": _SENTENCE, "mean": ("attention",), "part": ("attention",),
        "words": ("alignment",), "metrics": ("curves",), "split": ("lengths",),
        "scores": ("report",), "checkpoint": _SENTENCE, "source_lang": _SENTENCE,
        "output": tuple(name for name in PICTURES if name != "report"),
    }  # fmt: skip
    if FLAGS.part == "encoder" and FLAGS.target is not None:
        raise UserError("--target is for --part=cross and decoder; the encoder reads the source.")
    for name, pictures in used.items():
        if FLAGS[name].present and FLAGS.picture not in pictures:
            raise UserError(f"--{name} is for {' and '.join(pictures)}, not for {FLAGS.picture}.")


def _attention():
    from transformer_jax import plotting

    weights, rows, columns, heads = _weights(FLAGS.part)
    if FLAGS.mean:
        return plotting.attention_maps(
            weights.mean(axis=0, keepdims=True), rows, columns, [_mean_of(heads)]
        )
    return plotting.attention_maps(weights, rows, columns, [f"head {h}" for h in heads])


def _mean_of(heads: list[int]) -> str:
    return f"mean of {len(heads)} heads" if len(heads) > 1 else f"head {heads[0]}"


def _alignment():
    from transformer_jax import plotting
    from transformer_jax.decoding import alignment

    weights, rows, columns, _ = _weights("cross")
    mean, target, source = weights.mean(axis=0)[:-1, :-1], rows[:-1], columns[:-1]
    if FLAGS.words:
        mean = alignment.word_attention(mean, source, target)
        target, source = (alignment.join_words(side) for side in (target, source))
    return plotting.alignment(mean, target, source)


def _weights(part: str):
    """Weights `[heads, T, S]` of the layer and heads asked for, labels, and the heads' numbers."""
    from transformer_jax.api import Translator
    from transformer_jax.plotting import collect

    translator = Translator.load(FLAGS.workdir[0], FLAGS.checkpoint)
    # The encoder does not know what will be written.
    target = "" if part == "encoder" else FLAGS.target
    seen = collect.sentence_attention(
        translator, FLAGS.source, target, FLAGS.target_lang, FLAGS.source_lang
    )
    weights, rows, columns = seen.of(part)
    depth, num_heads = weights.shape[:2]
    layer = max(FLAGS.layer, -depth) if not FLAGS["layer"].present else FLAGS.layer
    if not -depth <= layer < depth:
        raise UserError(f"--layer={layer}: there are layers 0 to {depth - 1}.")
    wanted = FLAGS.heads or range(num_heads)
    if not all(str(head).isdigit() and int(head) < num_heads for head in wanted):
        raise UserError(f"--heads={','.join(FLAGS.heads)}: there are heads 0 to {num_heads - 1}.")
    heads = [int(head) for head in wanted]
    return weights[layer][heads], rows, columns, heads


def _curves():
    from transformer_jax import plotting
    from transformer_jax.plotting import collect

    runs = dict(zip(_names(), map(collect.read_metrics, FLAGS.workdir), strict=True))
    if FLAGS.metrics is None:
        return plotting.learning_curves(runs)
    points = [point for lines in runs.values() for line in lines for point in line.items()]
    present = sorted({name for name, value in points if isinstance(value, int | float)})
    for name in FLAGS.metrics:
        if name not in present:
            raise UserError(f"--metrics={name} is in none of these runs; there are "
                            f"{', '.join(present)}.")  # fmt: skip
    return plotting.learning_curves(runs, {name: {name: ""} for name in FLAGS.metrics})


def _names() -> list[str]:
    """What the work directories are called: their last part, or as much as tells them apart."""
    names = [epath.Path(path).name for path in FLAGS.workdir]
    return names if len(set(names)) == len(names) else list(FLAGS.workdir)


def _schedule():
    import jax
    import numpy as np

    from transformer_jax import plotting
    from transformer_jax.runs import workdir
    from transformer_jax.training.optimizer import make_schedule

    rates = {}
    for name, path in zip(_names(), FLAGS.workdir, strict=True):
        config = workdir.read_config(path)
        num_steps = config.train.num_steps
        schedule = make_schedule(config.optimizer, config.model.d_model, num_steps)
        rates[name] = np.asarray(jax.vmap(schedule)(np.arange(num_steps)))
    return plotting.schedules(rates)


def _positions():
    from transformer_jax import plotting
    from transformer_jax.ops.positional import SINUSOIDS, position_table
    from transformer_jax.runs import workdir

    model = workdir.read_config(FLAGS.workdir[0]).model
    if model.positional not in SINUSOIDS:
        raise UserError(f"The model has {model.positional} positions; only sinusoids have a table "
                        "that is known without its parameters.")  # fmt: skip
    return plotting.positions(position_table(model))


def _lengths():
    from transformer_jax import plotting
    from transformer_jax.plotting import collect
    from transformer_jax.runs import workdir

    config = workdir.read_config(FLAGS.workdir[0])
    return plotting.length_statistics(
        *collect.corpus_lengths(config, FLAGS.workdir[0], FLAGS.split)
    )
