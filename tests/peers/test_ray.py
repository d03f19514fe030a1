"""Work on a Ray cluster of three nodes, of which one is killed; skipped where Ray is missing."""

import dataclasses
import gzip
import subprocess
import sys

import pytest

from tests.conftest import digit_pairs, tiny_config, write_pairs
from tests.worker_tasks import die, square_or_die
from transformer_jax import Translator
from transformer_jax.data import ray_tasks, token_cache
from transformer_jax.data.shards import filters
from transformer_jax.data.workers import IN_THIS_PROCESS, Workers
from transformer_jax.errors import UserError
from transformer_jax.training import prepare_data

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def cluster():
    """Three nodes with a CPU each; this process is on the first."""
    from ray.cluster_utils import Cluster

    # A node that is killed is noticed within a second or two, not half a minute.
    health = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 3,
    }
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": health})
    nodes.workers = [nodes.add_node(num_cpus=1) for _ in range(2)]
    nodes.wait_for_nodes()
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_errors_of_tasks_and_clusters_are_sentences(cluster):
    with pytest.raises(UserError, match="filter_function=x cannot be imported"):
        list(Workers(ray=cluster.address)(filters.load_function, ["x"]))
    with pytest.raises(UserError, match="each process needs 9 and 0: ask for less"):
        ray_tasks.Actors(dict, cluster.address, num_cpus=9)


def make_square():
    return square_or_die


def make_die():
    return die


def test_tasks_of_a_process_that_dies_are_given_to_the_others(cluster, tmp_path):
    """Two tasks wait for each process, so that two fail when it dies."""
    actors = ray_tasks.Actors(make_square, cluster.address)
    assert actors.num == 3
    tasks = ((number, str(tmp_path / "died") if number == 5 else "") for number in range(20))
    assert list(actors.map(tasks)) == [number**2 for number in range(20)]
    assert (tmp_path / "died").exists()
    assert len(actors._actors) == 2
    actors.close()
    dying = ray_tasks.Actors(make_die, cluster.address)
    with pytest.raises(UserError, match="processes of the Ray cluster have died"):
        list(dying.map(iter(range(4))))


def test_translate_corpus_with_a_wrong_model_says_so(cluster, tmp_path):
    (tmp_path / "a.en").write_text("one\n")
    command = [sys.executable, "-m", "transformer_jax", "translate-corpus", "--model=none"]
    command += [f"--input={tmp_path}/a.en", f"--output={tmp_path / 'out'}"]
    command += [f"--ray={cluster.address}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "none" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


# The command, whose third chunk never comes back, as if the job was killed.
INTERRUPTED = """
import itertools, sys
from transformer_jax.commands import main
from transformer_jax.data import ray_tasks

results = ray_tasks.Actors.map

def interrupted(self, tasks):
    yield from itertools.islice(results(self, tasks), 2)
    raise KeyboardInterrupt

ray_tasks.Actors.map = interrupted
main.run("translate-corpus", ["transformer-jax translate-corpus", *sys.argv[1:]])
"""


def test_translate_corpus_on_a_cluster_is_in_order_and_resumes(cluster, tiny_run, tmp_path):
    sources = [source for source, _ in digit_pairs(90, seed=3)]
    (tmp_path / "a.en").write_text("\n".join(sources[:50]) + "\n")
    with gzip.open(tmp_path / "b.en.gz", "wt") as file:
        file.write("\n".join(sources[50:]) + "\n")
    arguments = [
        f"--model={tiny_run[1]}",
        f"--input={tmp_path}/*.en*",
        f"--output={tmp_path / 'out'}",
        f"--ray={cluster.address}",
        "--chunk=8",
        "--beam_size=1",
    ]
    killed = subprocess.run([sys.executable, "-c", INTERRUPTED, *arguments], capture_output=True)
    assert killed.returncode == 130, killed.stderr.decode()
    names = [path.name for path in sorted((tmp_path / "out").glob("*.en*"))]
    assert names == ["a.en.part", "a.en.part.unfinished"]
    command = [sys.executable, "-m", "transformer_jax", "translate-corpus", *arguments]
    resumed = subprocess.run(command, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert "continuing" in resumed.stderr
    translator = Translator.load(tiny_run[1])
    expected = [out.text for out in translator.translate(sources, beam_size=1)]
    lines = [(tmp_path / "out" / name).read_text().splitlines() for name in ("a.en", "b.en")]
    assert [*lines[0], *lines[1]] == expected


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
