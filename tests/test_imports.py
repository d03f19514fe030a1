"""The direction of imports, and packages that an import must not load."""

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

from transformer_jax.commands import command_line

ROOT = Path(__file__).parent.parent / "transformer_jax"
# Each imports only from those before it, or from itself. A module that is named apart from its
# package may be imported by packages that the rest of it imports.
ORDER = [
    "errors", "interrupts", "units", "waiting", "config", "paths", "ops", "model", "data",
    "distributed", "runs", "evaluation.bleu_tokenizers", "decoding", "evaluation", "text",
    "interop", "training", "diagnostics", "own_corpus", "api", "serving", "plotting", "configs",
    "commands",
]  # fmt: skip


def place(module: str) -> int:
    """Index in `ORDER` of a module without its first name, by itself or by its package."""
    parts = module.split(".")
    names = [name for name in (".".join(parts[:2]), parts[0]) if name in ORDER]
    return ORDER.index(names[0])


def edges():
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if module == "__init__" or path.name == "__main__.py":  # entry points
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                package, _, target = name.partition(".")
                if package == "transformer_jax" and target.split(".")[0] in ORDER:
                    yield module, target, path


def test_imports_follow_the_order():
    imports = list(edges())
    assert len(imports) > 30
    wrong = [
        f"{path.relative_to(ROOT)} imports {target}"
        for module, target, path in imports
        if place(target) > place(module)
    ]
    assert not wrong


def test_import_order_names_every_module():
    modules = {p.relative_to(ROOT).parts[0].removesuffix(".py") for p in ROOT.rglob("*.py")}
    assert modules - {"__init__", "__main__"} == {name for name in ORDER if "." not in name}


def test_every_package_is_installed():
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())
    packages = {
        ".".join(p.parent.relative_to(ROOT.parent).parts) for p in ROOT.rglob("__init__.py")
    }
    assert packages == {*project["tool"]["setuptools"]["packages"]}


EACH_IN_A_FORK = """
import json, os, sys
for code in json.loads(sys.argv[1]):
    if not os.fork():
        exec(code, {"__name__": "__main__"})
        print("", json.dumps([name.split(".")[0] for name in sys.modules]), sep=chr(10), flush=True)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(code)
"""


def loaded_by(*codes):
    """For each code, names of the packages that a fresh Python has loaded after it."""
    command = [sys.executable, "-c", EACH_IN_A_FORK, json.dumps(codes)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    loaded = [{*json.loads(line)} for line in done.stdout.splitlines() if line.startswith('["')]
    assert len(loaded) == len(codes)
    assert all("transformer_jax" in names for names in loaded)
    return loaded


HELP = """
import sys; sys.argv = ["transformer-jax", *"--help".split()]
from transformer_jax.commands import main
try:
    main.main()
except SystemExit as end:
    assert end.code == 0
"""
WRONG_SETTING = """
import sys; sys.argv = ["transformer-jax", "train", "--config=tiny", "--workdir=w",
                        "--config.model.num_heads=7"]
from transformer_jax.commands import main
try:
    main.main()
except SystemExit as end:
    assert end.code == 2
"""
# Packages that take longer to load than a command's help should.
HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax", "grain", "numpy", "scipy", "ml_collections",
         "sentencepiece", "sacrebleu", "tensorboardX", "tensorflow_datasets", "etils", "tqdm",
         "tensorstore", "array_record", "google"}  # fmt: skip


# Packages of extras only, by the names of their imports.
EXTRAS = ("ctranslate2", "eflomal", "fastapi", "gcsfs", "huggingface_hub", "matplotlib",
          "markdown_it", "prometheus_client", "py3langid", "pyarrow", "ray", "sacremoses",
          "sentencex", "tokenizers", "torch", "transformers", "uvicorn", "zstandard")  # fmt: skip


def test_commands_are_importable_without_extras():
    code = f"""
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({EXTRAS}))  # None: not there
import transformer_jax.commands as commands
for module in pkgutil.iter_modules(commands.__path__):
    if module.name != "__main__":
        importlib.import_module(f"transformer_jax.commands.{{module.name}}")
"""
    (loaded,) = loaded_by(code)
    assert "jax" in loaded


def test_import_and_help_load_nothing_heavy():
    for loaded in loaded_by("import transformer_jax", HELP):
        assert not loaded & HEAVY


def test_help_of_a_command_does_not_load_jax():
    codes = [HELP.replace("--help", f"{command} --help") for command in command_line.COMMANDS]
    heavy = {"jax", "orbax", "flax", "scipy", "grain", "matplotlib", "torch"}
    for command, loaded in zip(command_line.COMMANDS, loaded_by(*codes), strict=True):
        assert not loaded & heavy, command


def test_import_loads_no_other_framework():
    modules = "api", "commands.main", "data.number_words", "plotting", "training.loop"
    code = "\n".join(f"import transformer_jax.{module}" for module in modules)
    (loaded,) = loaded_by(code)
    assert not loaded & {"tensorflow", "torch", "matplotlib", "tensorflow_text", "clu"}


def test_version_is_the_same_everywhere():
    root = ROOT.parent
    done = subprocess.run(
        [sys.executable, "-c", HELP.replace("--help", "--version")],
        capture_output=True, text=True, check=True, cwd=root,
    )  # fmt: skip
    version = done.stdout.split()[1]
    assert f"\nversion: {version}\n" in (root / "CITATION.cff").read_text()
    newest = (root / "CHANGELOG.md").read_text().split("\n## ")[1]
    assert newest.startswith(f"[{version.split('.dev')[0]}] - ")


def test_settings_that_are_impossible_are_refused_before_jax_is_loaded():
    (loaded,) = loaded_by(WRONG_SETTING)
    assert not loaded & {"jax", "flax", "orbax"}
