"""Trains a recipe by Adam and by Muon (Jordan, 2024), and compares their validation losses.

    transformer-jax data multi30k --output=multi30k
    python benchmarks/muon.py --optimizers=adam:2.53,muon:1.265,muon:2.53,muon:5.06 --json=muon.json

The package has no Muon: here it takes the place of Adam. The same command again resumes.
"""

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from timing import write_json

from transformer_jax.config import Config, OptimizerConfig
from transformer_jax.training import optimizer
from transformer_jax.training.loop import train
from transformer_jax.workdir import machine

FLAGS = flags.FLAGS
ADAM = optimizer._adam
# Root mean square of an update, which Adam's typically has (Liu et al., 2025), so that both can
# follow the same schedule.
UPDATE_SIZE = 0.2


def muon(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """Optax's Muon for the kernels of dense layers, Adam for all else, and `accept`."""
    tx = optax.chain(
        optax.contrib.muon(
            learning_rate=1.0,
            adam_b1=config.b1,
            adam_b2=config.b2,
            eps=config.eps,
            mu_dtype=jnp.dtype(config.mu_dtype),
            muon_weight_dimension_numbers=_axes_of_kernels,
            consistent_rms=UPDATE_SIZE,
        ),
        optax.scale_by_schedule(schedule),
    )
    return optimizer.with_accept(tx)


def _axes_of_kernels(params: Any) -> Any:
    """For each kernel, which of its axes are inputs and outputs; None for other parameters."""

    def axes(path: tuple[Any, ...], _: jax.Array) -> optax.contrib.MuonDimensionNumbers | None:
        names = [jax.tree_util.keystr((key,), simple=True) for key in path[-2:]]
        if names[-1] != "kernel":
            return None
        if names[0] == "out":  # [heads, head_dim, d_model]
            return optax.contrib.MuonDimensionNumbers((-3, -2), (-1,))
        if names[0] in ("query", "key", "value"):  # [d_model, heads, head_dim]
            return optax.contrib.MuonDimensionNumbers((-3,), (-2, -1))
        return optax.contrib.MuonDimensionNumbers((-2,), (-1,))

    return jax.tree_util.tree_map_with_path(axes, params)


def make_config(learning_rate: float) -> Config:
    """The recipe with the settings of the flags."""
    config = importlib.import_module(f"transformer_jax.configs.{FLAGS.recipe}").get_config()
    sets = {"train": f"{FLAGS.data}/train", "validation": f"{FLAGS.data}/val", "test": ""}
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, source="files", **sets),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=learning_rate),
        train=dataclasses.replace(
            config.train, num_steps=FLAGS.steps, eval_every_steps=FLAGS.eval_every_steps
        ),
    )


def losses(workdir: Path) -> list[tuple[int, float]]:
    """(step, validation loss) of a run."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["step"], round(row["eval_loss"], 4)) for row in rows if "eval_loss" in row]


def main(_: list[str]) -> None:
    """Prints each optimizer's best validation loss, and when it reaches that of the first one."""
    runs: list[dict[str, Any]] = []
    for name in FLAGS.optimizers:
        kind, _, rate = name.partition(":")
        optimizer._adam = {"adam": ADAM, "muon": muon}[kind]
        workdir = Path(FLAGS.folder) / name.replace(":", "_")
        if not train(make_config(float(rate)), workdir):
            return
        by_step = losses(workdir)
        best = min(by_step, key=lambda row: row[1])
        target = (runs[0]["best"] if runs else best)[1]
        run = {"optimizer": kind, "learning_rate": float(rate), "best": best}
        run["first_step_at_the_firsts_best"] = next((s for s, x in by_step if x <= target), None)
        print(run, flush=True)
        runs.append({**run, "validation_loss_by_step": by_step})
    about = {"recipe": FLAGS.recipe, "steps": FLAGS.steps, "runs": runs}
    write_json(FLAGS.json, {**about, "machine": machine.describe(jax.local_devices())})


if __name__ == "__main__":
    flags.DEFINE_list("optimizers", None, "Each adam or muon, `:`, and its learning rate.")
    flags.DEFINE_string("recipe", "multi30k", "Recipe to train.")
    flags.DEFINE_string("data", "multi30k", "Folder of its corpus.")
    flags.DEFINE_integer("steps", 6000, "Steps of each run.")
    flags.DEFINE_integer("eval_every_steps", 250, "Distance of the evaluations.")
    flags.DEFINE_string("folder", "runs/muon", "Folder of the runs.")
    flags.DEFINE_string("json", "", "File for the results.")
    flags.mark_flag_as_required("optimizers")
    app.run(main)
