"""Checkpoints: which stay, what is read back, and what happens to damaged ones."""

import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from transformer_jax.commands import model_flags
from transformer_jax.config import CheckpointConfig, Config
from transformer_jax.errors import UserError
from transformer_jax.workdir import checkpoint as checkpoint_lib
from transformer_jax.workdir import digests
from transformer_jax.workdir.params import load_params
from transformer_jax.workdir.retention import Retention


def save_all(folder, scores, unscheduled=(), **config):
    checkpointer = checkpoint_lib.Checkpointer(folder, CheckpointConfig(**config))
    for step, score in scores.items():
        params = {"w": jnp.full((3,), float(step))}
        metrics = {} if score is None else {"eval_bleu": score, "eval_loss": -score}
        meta = {"metrics": metrics, "scheduled": step not in unscheduled}
        checkpointer.save(step, {"params": params, "ema": None}, meta)
    checkpointer.close()
    return {p.name for p in (folder / "checkpoints").iterdir() if p.name.isdigit()}


TARGET = {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}


@pytest.mark.parametrize("metric", ["eval_bleu", "eval_loss"])
def test_retention_keeps_the_newest_and_the_best(tmp_path, metric):
    scores = {1: 10.0, 2: 30.0, 3: None, 4: 20.0, 5: None, 6: 5.0}
    kept = save_all(epath.Path(tmp_path), scores, max_to_keep=2, best_metric=metric)
    assert kept == {"2", "5", "6"}
    config = Config(checkpoint=CheckpointConfig(max_to_keep=2, best_metric=metric))

    def load(which):
        return load_params(tmp_path, which, config, TARGET)

    for which, step in (("best", 2), ("latest", 6), ("5", 5)):
        params, loaded = load(which)
        assert loaded == step
        np.testing.assert_array_equal(params["w"], step)
    params, step = load("average:2")
    assert step == 6
    np.testing.assert_allclose(params["w"], (5 + 6) / 2, rtol=1e-6)
    for which, word in (
        ("3", "has 2, 5, 6"),
        ("average:3", "the 2 newest"),
        ("worst", "must be best"),
    ):
        with pytest.raises(UserError, match=word):
            load(which)


def test_the_best_stays_when_a_run_continues_with_another_metric():
    def step(number, **metrics):
        return SimpleNamespace(step=number, metrics=metrics)

    old = [step(1, eval_bleu=9.0, eval_loss=2.0), step(2, eval_bleu=8.0, eval_loss=3.0), step(3)]
    policy = Retention(CheckpointConfig(max_to_keep=1, best_metric="eval_ter"))
    assert policy.should_preserve(old, context=None) == [True, False, True]
    new = [*old, step(4, eval_ter=90.0, eval_loss=4.0), step(5)]
    assert policy.should_preserve(new, context=None) == [False, False, False, True, True]


def test_best_checkpoint_of_equal_scores_has_the_lowest_loss(tmp_path):
    """BLEU is 0 at the beginning of a run. A loss of NaN is never best."""
    losses = {1: 5.0, 2: 3.0, 3: 4.0, 4: float("nan"), 5: 3.5}
    checkpointer = checkpoint_lib.Checkpointer(tmp_path, CheckpointConfig(max_to_keep=1))
    for step, loss in losses.items():
        metrics = {"eval_bleu": 0.0, "eval_loss": loss}
        params = {"w": jnp.full((3,), float(step))}
        checkpointer.save(step, {"params": params, "ema": None}, {"metrics": metrics})
    checkpointer.close()
    assert checkpoint_lib.steps(tmp_path) == [2, 5]
    assert load_params(tmp_path, "best", Config(), TARGET)[1] == 2


def test_average_ignores_checkpoints_that_only_a_stop_has_saved(tmp_path):
    """The run was stopped after steps 2, 5 and 6, and resumed."""
    scores = dict.fromkeys([1, 2, 3, 4, 5, 6])
    kept = save_all(epath.Path(tmp_path), scores, unscheduled={2, 5, 6}, max_to_keep=2)
    assert kept == {"3", "4", "6"}
    config = Config(checkpoint=CheckpointConfig(max_to_keep=2))
    params, step = load_params(tmp_path, "average:2", config, TARGET)
    assert step == 4
    np.testing.assert_allclose(params["w"], (3 + 4) / 2, rtol=1e-6)
    assert load_params(tmp_path, "latest", config, TARGET)[1] == 6
    with pytest.raises(UserError, match="the 2 newest"):
        load_params(tmp_path, "average:3", config, TARGET)


def test_loading_names_missing_and_other_checkpoints(tmp_path):
    with pytest.raises(UserError, match="no checkpoint; train there first"):
        load_params(tmp_path, "latest", Config(), TARGET)
    save_all(epath.Path(tmp_path), {1: None})
    with pytest.raises(UserError, match="none is best") as error:
        load_params(tmp_path, "best", Config(), TARGET)
    # The advice, followed.
    ((path, checkpoint),) = model_flags.models([str(error.value).split()[-1].rstrip(".")])
    assert load_params(path, checkpoint, Config(), TARGET)[1] == 1
    (tmp_path / "a@b").mkdir()
    assert model_flags.models([f"{tmp_path}/a@b"]) == [(f"{tmp_path}/a@b", "best")]
    other = {"w": jax.ShapeDtypeStruct((4,), jnp.float32)}
    more = {**TARGET, "v": TARGET["w"]}
    for target, words in ((other, r"\(4,\) .* \(3,\)"), (more, "not match: v")):
        with pytest.raises(UserError, match=f"cannot be read as this model: .*{words}") as error:
            load_params(tmp_path, "latest", Config(), target)
        assert len(str(error.value)) < len(str(tmp_path)) + 250
        assert "\n" not in str(error.value)
    checkpointer = checkpoint_lib.Checkpointer(tmp_path, CheckpointConfig())
    with pytest.raises(UserError, match=r"1 cannot be read: .*optimizer"):
        checkpointer.restore(1, {"params": TARGET, "optimizer": TARGET})


def test_loading_passes_an_interrupt_on(tmp_path, monkeypatch):
    save_all(epath.Path(tmp_path), {1: None})

    def interrupt(*_):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise KeyError("as Orbax wraps it") from error

    monkeypatch.setattr(checkpoint_lib, "read_item", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load_params(tmp_path, "latest", Config(), TARGET)


def test_saving_leaves_no_threads(tmp_path):
    checkpointer = checkpoint_lib.Checkpointer(tmp_path, CheckpointConfig())
    counts = []
    for step in range(1, 6):
        checkpointer.save(step, {"params": {"w": jnp.ones(3)}}, {"metrics": {}})
        checkpointer.wait()
        counts.append(threading.active_count())
    checkpointer.close()
    assert counts[-1] <= counts[0]


# --- Damage --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three_checkpoints(tmp_path_factory):
    folder = epath.Path(tmp_path_factory.mktemp("intact"))
    save_all(folder, {1: 10.0, 2: 30.0, 3: 20.0}, max_to_keep=3)
    return folder


def newest_files(folder):
    """Every file of the newest checkpoint, except the one that only Orbax reads."""
    newest = folder / "checkpoints" / "3"
    return sorted(
        str(p.relative_to(newest))
        for p in Path(newest).rglob("*")
        if p.is_file() and p.name != "commit_success.txt"
    )


def truncate(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


DAMAGES = [truncate, flip, lambda path: path.unlink()]


@pytest.mark.parametrize("damage", DAMAGES)
def test_resume_names_any_damaged_file_and_uses_the_checkpoint_before(
    three_checkpoints, tmp_path, damage
):
    names = newest_files(three_checkpoints)
    assert len(names) > 6
    for number, name in enumerate(names):
        if name == "_CHECKPOINT_METADATA" and damage is not truncate:
            continue  # times only; a flipped digit of them is not damage
        folder = epath.Path(tmp_path / str(number))
        shutil.copytree(three_checkpoints, folder)
        path = folder / "checkpoints" / "3" / name
        if not path.read_bytes() and damage is not DAMAGES[2]:
            continue  # nothing to cut or flip
        damage(path)
        lines = []
        assert checkpoint_lib.find_resume_step(folder, lines.append) == 2, name
        assert len(lines) == 1
        assert "checkpoint 3 is damaged" in lines[0]
        if name != digests.NAME:
            assert name in lines[0]
        assert (folder / "damaged_checkpoints" / "3").exists()
        assert checkpoint_lib.find_resume_step(folder, lines.append) == 2
        assert len(lines) == 1


def test_resume_moves_nothing_if_all_checkpoints_are_damaged(three_checkpoints, tmp_path):
    folder = epath.Path(tmp_path / "run")
    shutil.copytree(three_checkpoints, folder)
    for step in ("1", "2", "3"):
        flip(folder / "checkpoints" / step / "params" / "_METADATA")
    with pytest.raises(UserError, match=r"Every checkpoint in .* is damaged .*_METADATA"):
        checkpoint_lib.find_resume_step(folder, print)
    assert checkpoint_lib.steps(folder) == [1, 2, 3]
    assert checkpoint_lib.find_resume_step(tmp_path, print) is None


def test_loading_does_not_replace_a_lost_average_by_the_parameters(tmp_path):
    checkpointer = checkpoint_lib.Checkpointer(tmp_path, CheckpointConfig())
    tree = {"w": jnp.ones(3)}
    checkpointer.save(1, {"params": tree, "ema": tree}, {"metrics": {}})
    checkpointer.close()
    shutil.rmtree(tmp_path / "checkpoints" / "1" / "ema")
    with pytest.raises(UserError, match=r"is damaged: ema/.* is missing"):
        load_params(tmp_path, "latest", Config(), TARGET)


def test_resume_moves_older_checkpoints_with_damaged_scores(three_checkpoints, tmp_path):
    folder = epath.Path(tmp_path / "run")
    shutil.copytree(three_checkpoints, folder)
    truncate(folder / "checkpoints" / "2" / "metrics" / "metrics")
    assert checkpoint_lib.find_resume_step(folder, print, move_damaged=False) == 3
    assert checkpoint_lib.steps(folder) == [1, 2, 3]
    assert checkpoint_lib.find_resume_step(folder, print) == 3
    assert checkpoint_lib.steps(folder) == [1, 3]


def test_loading_refuses_a_damaged_model(three_checkpoints, tmp_path):
    folder = epath.Path(tmp_path / "run")
    shutil.copytree(three_checkpoints, folder)
    (data,) = [p for p in newest_files(folder) if p.startswith("params/d/")][:1]
    flip(folder / "checkpoints" / "3" / data)
    with pytest.raises(UserError, match=r"3 is damaged: params/d/.* does not contain"):
        load_params(folder, "latest", Config(), TARGET)
    params, step = load_params(folder, "best", Config(), TARGET)
    assert (step, params["w"][0]) == (2, 2.0)
