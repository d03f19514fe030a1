"""Training steps on the batches of a real corpus, for `benchmarks/train_step.py --corpus`."""

import tempfile
import time

import numpy as np
from etils import epath
from train_step_peers import FlaxExample
from train_step_workers import Ours, Task

from transformer_jax.config import Config
from transformer_jax.data.token_cache import TokenizedCorpus


class OursOnCorpus(Ours):
    """This package's steps on the batches of a corpus."""

    def __init__(self, config: Config):
        import jax

        from transformer_jax.data.loader import load_batches
        from transformer_jax.training import setup
        from transformer_jax.training.runners import make_runner

        with tempfile.TemporaryDirectory() as folder:
            config, data = setup.prepare(config, epath.Path(folder), lambda _: None)
        self._runner = make_runner(config, jax.devices()[:1])
        self._state = self._runner.init(0)
        started = time.perf_counter()
        self._runner.compile(data.shapes[0], self._state)
        self.compile_seconds = time.perf_counter() - started
        source = data.batches(config)
        counts = [int(source[t]["loss_mask"].sum()) for t in range(50)]
        self._useful = sum(counts) / len(counts)
        self._batches = load_batches(source, 0)

    def step(self) -> None:
        self._state, self.last = self._runner.step(self._state, next(self._batches))

    def useful_tokens(self) -> float:
        """Mean number of target tokens per step that are not padding."""
        return self._useful


class FlaxOnCorpus(FlaxExample):
    """Flax's example on a corpus that is packed as in its input pipeline."""

    def __init__(self, config: Config, folder: str, length: int):
        from transformer_jax.training import setup

        with tempfile.TemporaryDirectory() as name:
            config, data = setup.prepare(config, epath.Path(name), lambda _: None)
        rows = config.data.batch_tokens // length
        batch = packed_in_order(data.epochs.first.corpus, rows, length)
        self._useful = float((batch["targets"] > 0).sum())
        task = Task(config.model, rows, length, length, config.model.dtype)
        super().__init__(task, folder, batch)

    def useful_tokens(self) -> float:
        return self._useful


def packed_in_order(corpus: TokenizedCorpus, rows: int, length: int) -> dict[str, np.ndarray]:
    """Packs sentences in random order; a sentence that does not fit starts the next row."""
    sides = {"inputs": corpus.source, "targets": corpus.target}
    batch = {
        f"{side}{part}": np.zeros((rows, length), np.int32)
        for side in sides
        for part in ("", "_position", "_segmentation")
    }
    row, used, number = 0, dict.fromkeys(sides, 0), 0
    for i in np.random.default_rng(0).permutation(len(corpus)):
        ids = {name: np.append(side[i], 2)[:length] for name, side in sides.items()}
        if any(used[side] + len(ids[side]) > length for side in sides):
            row, used, number = row + 1, dict.fromkeys(sides, 0), 0
            if row == rows:
                return batch
        number += 1
        for side, tokens in ids.items():
            columns = slice(used[side], used[side] + len(tokens))
            batch[side][row, columns] = tokens
            batch[f"{side}_position"][row, columns] = np.arange(len(tokens))
            batch[f"{side}_segmentation"][row, columns] = number
            used[side] += len(tokens)
    raise ValueError(f"the corpus does not fill {rows} rows of {length}")
