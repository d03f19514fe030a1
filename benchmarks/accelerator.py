"""Measures an accelerator with all benchmarks, in a bounded time, and resumes after a break.

    make bench-accelerator                            # in runs/accelerator, at most 40 minutes
    python benchmarks/accelerator.py --folder=FOLDER --parts=checks,attention --minutes=15
    python benchmarks/accelerator.py --toy --folder=FOLDER     # tiny sizes, on any machine

Each part is a program of its own with a limit of time. What it measures is in `FOLDER/PART.json`;
`FOLDER/accelerator.json` has the machine, the versions, and how each part ended. The same command
again runs the parts that are not done. Correctness comes first: a part that finds a wrong result
makes the command fail, after the others have run.
"""

import concurrent.futures
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
LIMIT = 600.0  # seconds of a part
TAIL = 2000  # characters of a part's output that are kept
PACKAGES = ("jax", "jaxlib", "flax", "optax", "torch", "transformers", "ctranslate2")
PEERS = ("torch", "transformers", "ctranslate2")
VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORMS", "GLIBC_TUNABLES")
_DESCRIBE = """
import json, jax
from transformer_jax.workdir import machine
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
      timed: measures time, so that nothing else may run.
    """

    name: str
    commands: list[list[str]]
    seconds: float
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    at_least: tuple[str, float] | None = None
    timed: bool = True


# Flags of XLA to compare on GPUs, each with the defaults of the rest.
XLA_FLAGS = {
    "default": "",
    "latency_hiding": "--xla_gpu_enable_latency_hiding_scheduler=true",
    "triton_gemm": "--xla_gpu_triton_gemm_any=true",
    "no_command_buffers": "--xla_gpu_enable_command_buffer=",
}


# Arguments of each benchmark with toy sizes, for a test of the programs on any machine.
TOY = {
    "checks": "--lengths=30 --cases=packed",
    "attention": "--lengths=32,64 --cases=full,step --turns=1 --heads=2",
    "train": "--vocab_size=64 --batch_tokens=64 --length=8 --rounds=1 --steps=1",
    "decode": "--size=tiny --vocab_size=64 --num_tokens=4 --batches=1,2 --beams=1 --turns=1"
    " --length=6",
    "first_step": "--recipe=tiny",
    "memory": "--memory_lengths=256",
}
# The same for a measurement. Attention has every length and kind of call that the table of `auto`
# distinguishes, without `auto` itself, and as many rows as a large batch of that length.
FULL = {
    "checks": "",
    "attention": "--lengths=32,64,128,256,512,1024,2048,4096,8192 --cases=full,causal,packed,step"
    " --batch=512 --tokens=16384 --implementations=xla,blockwise,cudnn --turns=5"
    " --turn_seconds=0.05",
    "train": "--vocab_size=32000 --length=64 --dtype=bfloat16 --rounds=5",
    "decode": "--dtypes=bfloat16 --batches=1,32,256 --beams=1,4 --turns=3",
    "first_step": "--recipe=wmt14_en_de_big",
    "memory": "--memory_lengths=4096,8192,16384",
}
# Training by size and target tokens of a step. A GPU's memory holds one large step at a time.
TRAININGS = {
    "train_base_25k": "--sizes=base --batch_tokens=25000",
    "train_base_100k": "--sizes=base --batch_tokens=100000 --one_at_a_time --noloading",
    "train_big_25k": "--sizes=big --batch_tokens=25000 --one_at_a_time --noloading",
    "train_big_100k": "--sizes=big --batch_tokens=100000 --one_at_a_time --noloading",
}


def parts(toy: bool, peers: list[str], platform: str) -> list[Part]:
    """All parts in their order: correctness, then speed.

    Args:
      toy: sizes for a test of the programs, on any machine.
      peers: packages to compare with that are installed.
      platform: of the devices, as JAX names it.
    """
    arguments = {name: text.split() for name, text in (TOY if toy else FULL).items()}
    torch = ["torch"] if "torch" in peers else []
    trained = ["transformers"] if {"torch", "transformers"} <= set(peers) else []
    decoders = [p for p in ("ctranslate2", "transformers") if p in peers]
    attention = ["benchmarks/attention.py", f"--peers={','.join(torch)}", "--json={json}"]
    table = ["--table={folder}/table.json", f"--seconds={LIMIT - 60}", "--compile_first"]
    train = ["benchmarks/train_step.py", "--json={json}", *arguments["train"]]
    trainings = {"train_tiny": "--sizes=tiny"} if toy else TRAININGS
    decode = ["benchmarks/decode.py", f"--peers={','.join(decoders)}", "--json={json}"]
    first = ["benchmarks/first_step.py", "--json={json}", *arguments["first_step"]]
    timed = [
        Part("attention", [[*attention, *arguments["attention"], *table]], LIMIT),
        *[
            Part(name, [[*train, f"--peers={','.join(trained)}", *sizes.split()]], LIMIT)
            for name, sizes in trainings.items()
        ],
        Part("decode", [[*decode, *arguments["decode"]]], LIMIT),
        Part("first_step", [first], LIMIT),
        Part("memory", [[*attention, "--cases=", *arguments["memory"]]], LIMIT / 2),
    ]
    if platform == "gpu":
        base = [*train, "--peers=", "--noloading", "--sizes=base", "--batch_tokens=25000"]
        timed += [
            Part(f"flags_{name}", [base], LIMIT / 4, {"XLA_FLAGS": value})
            for name, value in XLA_FLAGS.items()
        ]
    return correctness(toy, arguments["checks"]) + timed


def correctness(toy: bool, arguments: list[str]) -> list[Part]:
    """The parts that time nothing, and so can run side by side.

    Args:
      toy: few steps.
      arguments: of the checks.
    """
    steps = ["--config.train.num_steps=2", "--config.optimizer.warmup_steps=1"]
    search = ["--config.decode.beam_size=1", "--config.decode.max_decode_len=4"]
    quickstart = ["train.py", "--config=quickstart", "--noreport", "--workdir={folder}/quickstart"]
    resume = ["train.py", "--verify_resume", "--config=tiny", "--workdir={folder}/resume"]
    evaluation = ["eval.py", "--workdir={folder}/quickstart", "--json={json}"]
    checks = ["benchmarks/accelerator_checks.py", "--json={json}", *arguments]
    return [
        Part("checks", [checks], LIMIT, timed=False),
        Part("verify_resume", [resume], LIMIT, timed=False),
        Part(
            "quickstart",
            [[*quickstart, *(steps if toy else [])], [*evaluation, *(search if toy else [])]],
            LIMIT,
            at_least=("exact_match", 0.0 if toy else 99.0),
            timed=False,
        ),
    ]


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
    # Parts that run at the same time share the memory of a GPU.
    shared = {} if part.timed else {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    packages = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": packages, **shared, **part.environment}
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


def groups(chosen: list[Part]) -> list[list[Part]]:
    """Parts that run at the same time: first those that time nothing, then each other by itself."""
    untimed = [part for part in chosen if not part.timed]
    return [untimed] * bool(untimed) + [[part] for part in chosen if part.timed]


def run_groups(chosen: list[Part], results: Results, folder: Path) -> list[str]:
    """Runs parts in at most `--minutes`; how each ended.

    Args:
      chosen: parts to run.
      results: where to add what they measured.
      folder: of the results.
    """
    ends, statuses = time.monotonic() + 60 * FLAGS.minutes, []
    for group in groups(chosen):
        left = ends - time.monotonic()
        if left <= 0:
            for part in group:
                print(f"{part.name}: no time left; the same command runs it", flush=True)
            statuses += ["no time left"] * len(group)
            continue
        with concurrent.futures.ThreadPoolExecutor() as pool:
            ended = [pool.submit(run_part, part, folder, min(left, part.seconds)) for part in group]
            for part, future in zip(group, ended, strict=True):
                result = future.result()
                results.add(part.name, result)
                statuses.append(result["status"])
                print(f"{part.name}: {result['status']} after {result['seconds']} s", flush=True)
                if result["status"] != "done":
                    print(result["output"], flush=True)
    return statuses


def main(argv: list[str]) -> None:
    del argv
    peers = [name for name in PEERS if importlib.util.find_spec(name)]
    facts = about(FLAGS.toy)
    all_parts = parts(FLAGS.toy, peers, facts["platform"])
    names = [part.name for part in all_parts]
    if unknown := set(FLAGS.parts) - set(names):
        raise app.UsageError(f"--parts={','.join(sorted(unknown))}: there are {', '.join(names)}.")
    folder = Path(FLAGS.folder).absolute()
    results = Results(folder, facts)
    print(json.dumps(facts, indent=1), flush=True)
    chosen = []
    for part in all_parts:
        if FLAGS.parts and part.name not in FLAGS.parts:
            continue
        if results.is_done(part.name) and not FLAGS.again:
            print(f"{part.name}: done before", flush=True)
            continue
        chosen.append(part)
    statuses = run_groups(chosen, results, folder)
    print(f"{folder}/accelerator.json")
    sys.exit(any(status != "done" for status in statuses))


if __name__ == "__main__":
    flags.DEFINE_string("folder", "runs/accelerator", "Folder of the results.")
    flags.DEFINE_list("parts", [], "Parts to run; by default all.")
    flags.DEFINE_float("minutes", 40, "Most minutes of all parts together.")
    flags.DEFINE_bool("again", False, "Also run parts that are done.")
    flags.DEFINE_bool("toy", False, "Tiny sizes: a test of the programs, not of the machine.")
    app.run(main)
