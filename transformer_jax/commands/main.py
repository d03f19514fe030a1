"""The commands: flags, then one call into the package. Here is what all of them share.

The root scripts and the installed `transformer-jax COMMAND` both call `run`.
"""

import contextlib
import importlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import NoReturn

from absl import app, flags
from absl import logging as absl_logging

from transformer_jax import __version__, paths
from transformer_jax.commands import config_flags
from transformer_jax.errors import UserError
from transformer_jax.runs import host_memory

FLAGS = flags.FLAGS
# Each is a module of this package with `define_flags`, `run`, and `LESS_MEMORY`: what to change
# where the device is out of memory. With `TAKES_FOLDERS`, `run` gets the arguments that are no
# flags. Commands that read files only set `USES_JAX` to False.
COMMANDS = ("train", "eval", "decode", "export", "convert", "data", "plot", "runs")
USAGE_STATUS = 2
INTERRUPTED_STATUS = 130
# Flags of any command that hold a path or a list of paths. DIR@CHECKPOINT begins with a path too.
PATH_FLAGS = (
    "workdir",
    "json",
    "replay",
    "output",
    "compare",
    "input",
    "prefixes",
    "phrases",
    "score",
    "ensemble",
    "sentences",
    "scores",
)
# Words in the errors of a process that lost its connection to the others.
CONNECTION_WORDS = ("gloo", "connection", "unavailable", "barrier", "deadline", "nccl", "heartbeat")


def main() -> None:
    """Entry point of `transformer-jax COMMAND [flags]`."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "--version":
        print(f"transformer-jax {__version__}")
        sys.exit(0)
    if command not in COMMANDS:
        wants_help = command in ("--help", "-h")
        print(
            f"usage: transformer-jax {{{'|'.join(COMMANDS)}}} [flags]; "
            "transformer-jax COMMAND --help lists a command's flags, "
            "transformer-jax --version shows the version.",
            file=sys.stdout if wants_help else sys.stderr,
        )
        sys.exit(0 if wants_help else USAGE_STATUS)
    run(command, [f"transformer-jax {command}", *sys.argv[2:]])


def run(command: str, argv: Sequence[str]) -> NoReturn:
    """Runs a command with its flags and ends the process; `argv[0]` is the program's name."""
    host_memory.keep_freed_memory()
    module = importlib.import_module(f"transformer_jax.commands.{command}")

    def call(remaining: Sequence[str]) -> None:
        with _errors_as_sentences(module.LESS_MEMORY):
            takes_folders = getattr(module, "TAKES_FOLDERS", False)
            if len(remaining) > 1 and not takes_folders:
                raise UserError(
                    f"Unexpected argument {remaining[1]!r}; settings are given as --flag=value."
                )
            _expand_paths()
            if getattr(module, "USES_JAX", True):
                _configure_jax()
            module.run(*([remaining[1:]] if takes_folders else []))
            if _is_one_of_several():
                from transformer_jax import distributed

                distributed.disconnect()
                _exit(0, immediately=True)

    others = set(FLAGS)
    with _errors_as_sentences(module.LESS_MEMORY):
        config_flags.check_overrides(argv)
        arguments = module.define_flags(list(argv))
        if {"--help", "-help", "-h"} & set(arguments):
            defined = [FLAGS[name] for name in FLAGS if name not in others]
            print(_help(module.__doc__ or "", defined), flush=True)
            sys.exit(0)
    app.run(call, argv=arguments)


def _help(about: str, command_flags: Sequence[flags.Flag]) -> str:
    """The flags of a command, with their defaults."""
    lines = [about]
    for flag in command_flags:
        name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}"
        has_default = flag.default not in (None, "", [])
        default = f" (default: {flag.default_as_str})" if has_default else ""
        meaning = " ".join(f"{flag.help}{default}".split())
        lines += [f"  {name}", flags.text_wrap(meaning, length=100, indent=" " * 6)]
    lines.append("\n  --helpfull lists the flags of libraries too.")
    return "\n".join(lines)


def _expand_paths() -> None:
    """Expands `~` in every flag and setting that holds a path, once for the entire command.

    Raises:
      UserError: a path cannot be opened, because of its kind or a missing package.
    """
    for name in PATH_FLAGS:
        value = FLAGS[name].value if name in FLAGS else None
        if not value or isinstance(value, bool):
            continue
        given = value if isinstance(value, list) else [value]
        expanded = [paths.expand(path, f"--{name}") for path in given]
        for path in expanded:
            paths.require(path, f"--{name}")
        FLAGS[name].value = expanded if isinstance(value, list) else expanded[0]
    if "config" in FLAGS:
        FLAGS.config = paths.expand_config(FLAGS.config)


def _configure_jax() -> None:
    """Caches compiled programs for later starts; keeps logs quiet unless they are asked for."""
    import jax

    from transformer_jax.data.sources import cache_folder

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    if not any(a.lstrip("-").startswith(("verbosity", "v=")) for a in sys.argv[1:]):
        absl_logging.set_verbosity(absl_logging.WARNING)
        logging.getLogger().setLevel(logging.WARNING)


@contextlib.contextmanager
def _errors_as_sentences(less_memory: str) -> Iterator[None]:
    """Ends the process with one sentence for each error that the user can fix.

    Args:
      less_memory: what to change where the device is out of memory.
    """
    try:
        with paths.store_errors():
            yield
        return
    except BrokenPipeError:  # the reader has ended, as in `decode.py | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _exit(0)
    except KeyboardInterrupt:
        print("interrupted; the same command resumes.", file=sys.stderr)
        _exit(INTERRUPTED_STATUS)
    except Exception as error:
        message = _message(error, less_memory)
        if message is None:
            if _is_one_of_several():
                traceback.print_exception(error)
                _exit(1)
            raise
    print(f"error: {message}", file=sys.stderr)
    _exit(USAGE_STATUS)


def _message(error: Exception, less_memory: str) -> str | None:
    """What the user is shown of an error; None for an error that should not happen."""
    text = str(error)
    if isinstance(error, UserError):
        return with_flags(text)
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'}: {error.strerror or error}."
    if not isinstance(error, RuntimeError | ValueError):  # gloo raises both
        return None
    first_line = text.partition("\n")[0]
    if _is_one_of_several() and any(word in text.lower() for word in CONNECTION_WORDS):
        return (
            f"Another process of this run has ended ({first_line[:200]}); "
            "start all of them again: the run resumes from its newest checkpoint."
        )
    if "RESOURCE_EXHAUSTED" in text:
        return f"The device is out of memory ({first_line}); {less_memory}."
    return None


def with_flags(message: str) -> str:
    """A message of the package, with `--name=value` where it names the argument of a flag."""

    def flag(match: re.Match[str]) -> str:
        return f"--{match[1]}{match[2]}" if match[1] in FLAGS else match[0]

    return re.sub(r"`(\w+)((?:=[^`]*)?)`", flag, message)


def _is_one_of_several() -> bool:
    """Whether this is one of several processes; does not load JAX to know."""
    return "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()


def _exit(status: int, immediately: bool = False) -> NoReturn:
    """Ends the process; one of several immediately, because JAX would wait for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    if immediately or _is_one_of_several():
        os._exit(status)
    sys.exit(status)
