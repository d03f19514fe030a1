"""Work on a Ray cluster of three nodes, of which one is killed; skipped where Ray is missing."""

import dataclasses
import gzip
import itertools
from pathlib import Path

import pytest

from tests.conftest import copy_run, digit_pairs, tiny_config, write_pairs
from transformer_jax import Translator
from transformer_jax.commands import main
from transformer_jax.data import ray_tasks, token_cache
from transformer_jax.data.workers import IN_THIS_PROCESS, Workers
from transformer_jax.errors import UserError
from transformer_jax.training import prepare_data

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.peers


@pytest.fixture
def cluster():
    """Three nodes with a CPU each; this process is on the first."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.workers = [made.add_node(num_cpus=1) for _ in range(2)]
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_prepare_on_three_nodes_of_which_one_is_killed_writes_the_same_bytes(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr(token_cache, "SHARD_PAIRS", 20)
    config = tiny_config(tmp_path)
    data = dataclasses.replace(
        config.data,
        train=write_pairs(tmp_path, "text", [*digit_pairs(300), *digit_pairs(40)]),
        filters=("duplicates",),
    )
    config = dataclasses.replace(config, data=data)
    prepare_data.prepare(config, tmp_path / "here", IN_THIS_PROCESS, print)

    killed = []
    blocks = token_cache.Corpus.blocks

    def blocks_with_a_kill(self, *arguments):
        for block in blocks(self, *arguments):
            if block.number == 9 and len(killed) < 1:
                killed.append(cluster.workers[0])
                cluster.remove_node(cluster.workers[0], allow_graceful=False)  # SIGKILL
            yield block

    monkeypatch.setattr(token_cache.Corpus, "blocks", blocks_with_a_kill)
    prepare_data.prepare(config, tmp_path / "cluster", Workers(ray=cluster.address), print)
    assert killed
    assert len(list((tmp_path / "cluster").rglob("source_tokens.npy"))) == 17
    assert content(tmp_path / "cluster") == content(tmp_path / "here")


def fail(task):
    raise UserError(f"task {task} is wrong")


def test_errors_of_tasks_and_clusters_are_sentences(cluster):
    with pytest.raises(UserError, match="task 1 is wrong"):
        list(Workers(ray=cluster.address)(fail, [1]))
    with pytest.raises(UserError, match="each process needs 9 and 0: ask for less"):
        ray_tasks.Actors(dict, cluster.address, num_cpus=9)


def test_translate_corpus_on_a_cluster_is_in_order_and_resumes(
    cluster, tiny_run, tmp_path, monkeypatch
):
    sources = [source for source, _ in digit_pairs(90, seed=3)]
    (tmp_path / "a.en").write_text("\n".join(sources[:50]) + "\n")
    with gzip.open(tmp_path / "b.en.gz", "wt") as file:
        file.write("\n".join(sources[50:]) + "\n")
    run = copy_run(tiny_run[1], tmp_path / "run")
    arguments = [
        f"--model={run}",
        f"--input={tmp_path}/*.en*",
        f"--output={tmp_path / 'out'}",
        f"--ray={cluster.address}",
        "--chunk=8",
        "--beam_size=1",
    ]
    # A kill of the job: the third chunk never comes back.
    results = ray_tasks.Actors.map

    def interrupted(self, tasks):
        yield from itertools.islice(results(self, tasks), 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(ray_tasks.Actors, "map", interrupted)
    with pytest.raises(SystemExit):
        main.run("translate-corpus", ["transformer-jax translate-corpus", *arguments])
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == [
        "a.en.part",
        "a.en.part.unfinished",
    ]
    monkeypatch.setattr(ray_tasks.Actors, "map", results)
    with pytest.raises(SystemExit) as ended:
        main.run("translate-corpus", ["transformer-jax translate-corpus", *arguments])
    assert not ended.value.code
    translator = Translator.load(run)
    expected = [out.text for out in translator.translate(sources, beam_size=1)]
    lines = [Path(tmp_path / "out" / name).read_text().splitlines() for name in ("a.en", "b.en")]
    assert [*lines[0], *lines[1]] == expected
