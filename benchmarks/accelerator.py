"""Measures an accelerator with all benchmarks, in a bounded time, and resumes after a break.

    make bench-accelerator                            # in runs/accelerator, at most 40 minutes
    python benchmarks/accelerator.py --folder=FOLDER --parts=checks,attention --minutes=15
    python benchmarks/accelerator.py --toy --folder=FOLDER     # tiny sizes, on any machine

Each part is a program of its own with a limit of time. What it measures is in `FOLDER/PART.json`;
`FOLDER/accelerator.json` has the machine, the versions, and how each part ended. The same command
again runs the parts that are not done. Correctness comes first: a part that finds a wrong result
makes the command fail, after the others have run.
"""

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from absl import app, flags

FLAGS = flags.FLAGS
ROOT = Path(__file__).parent.parent
TAIL = 2000  # characters of a part's output that are kept
PACKAGES = ("jax", "jaxlib", "flax", "optax", "torch", "transformers", "ctranslate2")
PEERS = ("torch", "transformers", "ctranslate2")
VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORMS", "GLIBC_TUNABLES")
_DESCRIBE = """
import json, jax
from transformer_jax.runs import machine
print(json.dumps(machine.describe(jax.devices())))
"""


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of the measurement.

    Attributes:
      name: of the part and its JSON file.
      commands: arguments of Python, run one after the other. `{folder}` and `{json}` stand for the
        folder of the results and the part's file.
      seconds: most that all its commands may take.
      environment: variables besides those of this process.
      at_least: a number in the part's file that decides whether the result is right, and its least
        value.
    """

    name: str
    commands: list[list[str]]
    seconds: float
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    at_least: tuple[str, float] | None = None


# Flags of XLA to compare on GPUs, each with the defaults of the rest.
XLA_FLAGS = {
    "default": "",
    "latency_hiding": "--xla_gpu_enable_latency_hiding_scheduler=true",
    "triton_gemm": "--xla_gpu_triton_gemm_any=true",
    "no_command_buffers": "--xla_gpu_enable_command_buffer=",
}


def parts(toy: bool, peers: list[str], platform: str) -> list[Part]:
    """All parts in their order: correctness, then speed.

    Args:
      toy: sizes for a test of the programs, on any machine.
      peers: packages to compare with that are installed.
      platform: of the devices, as JAX names it.
    """
    torch = ["torch"] if "torch" in peers else []
    trained = ["transformers"] if {"torch", "transformers"} <= set(peers) else []
    decoders = [p for p in ("ctranslate2", "transformers") if p in peers]
    quickstart = ["--config=quickstart", "--workdir={folder}/quickstart"]
    steps = ["--config.train.num_steps=2", "--config.optimizer.warmup_steps=1"]
    attention = ["benchmarks/attention.py", f"--peers={','.join(torch)}"]
    train = ["benchmarks/train_step.py", f"--peers={','.join(trained)}", "--json={json}"]
    decode = ["benchmarks/decode.py", f"--peers={','.join(decoders)}", "--json={json}"]
    first = ["benchmarks/first_step.py", "--json={json}"]
    checks = ["benchmarks/accelerator_checks.py", "--json={json}"]
    if toy:
        attention += ["--lengths=32,64", "--cases=full,step", "--turns=1", "--heads=2"]
        train += ["--vocab_size=64", "--batch_tokens=64", "--length=8"]
        train += ["--rounds=1", "--steps=1"]
        decode += ["--size=tiny", "--vocab_size=64", "--num_tokens=4", "--batches=1,2"]
        decode += ["--beams=1", "--turns=1", "--length=6"]
        first += ["--recipe=tiny"]
        memory = ["--memory_lengths=256"]
        checks += ["--lengths=30"]
    else:
        # Every length of the table, and the kinds of calls that it distinguishes.
        attention += ["--lengths=32,64,128,256,512,1024,2048,4096,8192", "--turns=5"]
        attention += ["--cases=full,causal,packed,step", "--tokens=16384", "--batch=16"]
        train += ["--vocab_size=32000", "--batch_tokens=25000,100000", "--length=64"]
        train += ["--dtype=bfloat16", "--rounds=5"]
        decode += ["--dtypes=bfloat16", "--batches=1,32,256", "--beams=1,4", "--turns=3"]
        first += ["--recipe=wmt14_en_de_big"]
        memory = ["--memory_lengths=4096,8192,16384"]
    limit, tables = 600.0, ["--json={json}", "--table={folder}/table.json"]
    measured = [
        Part("checks", [checks], limit),
        Part(
            "verify_resume",
            [["train.py", "--verify_resume", "--config=tiny", "--workdir={folder}/resume"]],
            limit,
        ),
        Part(
            "quickstart",
            [
                ["train.py", *quickstart, *(steps if toy else [])],
                ["eval.py", "--workdir={folder}/quickstart", "--json={json}"],
            ],
            limit,
            at_least=("exact_match", 0.0 if toy else 99.0),
        ),
        Part("attention", [[*attention, f"--seconds={limit - 60}", *tables]], limit),
        *[
            Part(f"train_{size}", [[*train, f"--sizes={size}"]], limit)
            for size in (["tiny"] if toy else ["base", "big"])
        ],
        Part("decode", [decode], limit),
        Part("first_step", [first], limit),
        Part("memory", [[*attention, "--cases=", "--json={json}", *memory]], limit / 2),
    ]
    if platform == "gpu":
        short = [arg for arg in train if not arg.startswith(("--peers", "--batch_tokens"))]
        short += ["--peers=", "--batch_tokens=25000", "--sizes=base"]
        measured += [
            Part(f"flags_{name}", [short], limit / 4, {"XLA_FLAGS": value})
            for name, value in XLA_FLAGS.items()
        ]
    return measured


class Results:
    """`accelerator.json`, written after each part.

    Args:
      folder: of the results; made if it is missing.
      about: machine and versions, which must be those of the results that are there.

    Raises:
      SystemExit: the folder has results of another machine.
    """

    def __init__(self, folder: Path, about: dict[str, Any]):
        self._path = folder / "accelerator.json"
        folder.mkdir(parents=True, exist_ok=True)
        self._results = {"about": about, "parts": {}}
        if self._path.exists():
            self._results = json.loads(self._path.read_text())
            if self._results["about"] != about:
                raise SystemExit(
                    f"error: {self._path} was measured with {self._results['about']}, and this is "
                    f"{about}; name another --folder."
                )

    def is_done(self, name: str) -> bool:
        return self._results["parts"].get(name, {}).get("status") == "done"

    def add(self, name: str, result: dict[str, Any]) -> None:
        """Adds the result of a part and writes the file."""
        self._results["parts"][name] = result
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(self._results, indent=1) + "\n")
        temporary.replace(self._path)


def about(toy: bool) -> dict[str, Any]:
    """Machine, versions, and variables of the environment that change what is measured."""
    # In a process of its own: this one must not occupy the accelerator.
    described = subprocess.run(
        [sys.executable, "-c", _DESCRIBE], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return {
        **json.loads(described.stdout.splitlines()[-1]),
        "versions": {
            name: importlib.metadata.version(name)
            for name in PACKAGES
            if importlib.util.find_spec(name)
        },
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "toy": toy,
    }


def commit() -> str:
    """The commit that is checked out here; "" where this is not a git repository."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def run_part(part: Part, folder: Path, seconds: float) -> dict[str, Any]:
    """Runs the commands of a part; how they ended.

    Args:
      part: to run.
      folder: of the results.
      seconds: most that they may take.
    """
    path = folder / f"{part.name}.json"
    started, output, status = time.monotonic(), "", "done"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **part.environment}
    commands = [
        [sys.executable, *[arg.format(folder=folder, json=path) for arg in command]]
        for command in part.commands
    ]
    for command in commands:
        left = seconds - (time.monotonic() - started)
        # A session of its own, so that its processes end with it.
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=max(left, 1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            status = "out of time"
            break
        if process.returncode:
            status = f"failed with status {process.returncode}"
            break
    if status == "done" and part.at_least:
        name, least = part.at_least
        value = json.loads(path.read_text())[name]
        if value < least:
            status = f"wrong: {name} is {value}, not at least {least}"
    return {
        "status": status,
        "seconds": round(time.monotonic() - started, 1),
        "commands": [shlex.join(["python", *command]) for command in part.commands],
        "environment": part.environment,
        "commit": commit(),
        "json": path.name if path.exists() else None,
        "output": "" if status == "done" and path.exists() else output[-TAIL:],
    }


def main(argv: list[str]) -> None:
    del argv
    peers = [
        name for name in ("torch", "transformers", "ctranslate2") if importlib.util.find_spec(name)
    ]
    facts = about(FLAGS.toy)
    all_parts = parts(FLAGS.toy, peers, facts["platform"])
    names = [part.name for part in all_parts]
    if unknown := set(FLAGS.parts) - set(names):
        raise app.UsageError(f"--parts={','.join(sorted(unknown))}: there are {', '.join(names)}.")
    folder = Path(FLAGS.folder).absolute()
    results = Results(folder, facts)
    print(json.dumps(facts, indent=1), flush=True)
    ends = time.monotonic() + 60 * FLAGS.minutes
    statuses = []
    for part in all_parts:
        if FLAGS.parts and part.name not in FLAGS.parts:
            continue
        if results.is_done(part.name) and not FLAGS.again:
            print(f"{part.name}: done before", flush=True)
            continue
        left = ends - time.monotonic()
        if left <= 0:
            print(f"{part.name}: no time left; the same command runs it", flush=True)
            statuses.append("no time left")
            continue
        result = run_part(part, folder, min(left, part.seconds))
        results.add(part.name, result)
        statuses.append(result["status"])
        print(f"{part.name}: {result['status']} after {result['seconds']} s", flush=True)
        if result["status"] != "done":
            print(result["output"], flush=True)
    print(f"{folder}/accelerator.json")
    sys.exit(any(status != "done" for status in statuses))


if __name__ == "__main__":
    flags.DEFINE_string("folder", "runs/accelerator", "Folder of the results.")
    flags.DEFINE_list("parts", [], "Parts to run; by default all.")
    flags.DEFINE_float("minutes", 40, "Most minutes of all parts together.")
    flags.DEFINE_bool("again", False, "Also run parts that are done.")
    flags.DEFINE_bool("toy", False, "Tiny sizes: a test of the programs, not of the machine.")
    app.run(main)
