"""The direction of imports, and packages that an import must not load."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from transformer_jax.commands import command_line

ROOT = Path(__file__).parent.parent / "transformer_jax"
# Each imports only from those before it, or from itself. A module that is named apart from its
# package may be imported by packages that the rest of it imports.
ORDER = [
    "errors", "units", "config", "paths", "ops", "model", "data", "distributed", "runs",
    "evaluation.bleu_tokenizers", "decoding", "evaluation", "text", "interop", "training",
    "diagnostics", "own_corpus", "api", "serving", "plotting", "configs", "commands",
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


def loaded_by(code):
    """Names of the packages that a fresh Python has loaded after `code`."""
    code += "\nimport sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


HELP = """
import sys; sys.argv = ["transformer-jax", *"--help".split()]
from transformer_jax.commands import main
try:
    main.main()
except SystemExit as end:
    assert end.code == 0
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
    assert "transformer_jax" in loaded_by(code)


@pytest.mark.parametrize("code", ["import transformer_jax", HELP])
def test_import_and_help_load_nothing_heavy(code):
    loaded = loaded_by(code)
    assert "transformer_jax" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize("command", command_line.COMMANDS)
def test_help_of_a_command_does_not_load_jax(command):
    loaded = loaded_by(HELP.replace("--help", f"{command} --help"))
    assert not loaded & {"jax", "orbax", "flax", "scipy", "grain", "matplotlib", "torch"}


@pytest.mark.parametrize(
    "module",
    ["transformer_jax", "transformer_jax.commands.main", "transformer_jax.api",
     "transformer_jax.plotting", "transformer_jax.training.loop",
     "transformer_jax.data.number_words"],
)  # fmt: skip
def test_import_loads_no_other_framework(module):
    others = {"tensorflow", "torch", "matplotlib", "tensorflow_text", "clu"}
    assert not loaded_by(f"import {module}") & others


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
