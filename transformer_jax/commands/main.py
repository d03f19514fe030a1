"""The commands: flags, then one call into the package; what all of them have in common.

The root scripts and the installed `transformer-jax COMMAND` both come here.
"""

import contextlib
import glob
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence

from absl import app, flags
from absl import logging as absl_logging

from transformer_jax import __version__, paths
from transformer_jax.commands import config_flags
from transformer_jax.errors import UserError

FLAGS = flags.FLAGS
# Devices of NVIDIA, AMD, and TPUs of older and newer machines.
ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
# Each a module of this package: `define_flags`, `run`, and how it is made to need less memory.
COMMANDS = ("train", "eval", "decode", "export", "plot")
USAGE_STATUS = 2
INTERRUPTED_STATUS = 130
# Flags of any command that hold a path, or a list of paths. DIR@CHECKPOINT begins with one too.
PATH_FLAGS = ("workdir", "json", "replay", "output", "compare", "input", "prefixes", "phrases",
              "score", "ensemble", "sentences", "scores")  # fmt: skip


def main() -> None:
    """Entry point of `transformer-jax COMMAND [flags]`."""
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    if asked == "--version":
        print(f"transformer-jax {__version__}")
        sys.exit(0)
    if asked not in COMMANDS:
        wants_help = asked in ("--help", "-h")
        print(
            f"usage: transformer-jax {{{'|'.join(COMMANDS)}}} [flags]; "
            "transformer-jax COMMAND --help lists a command's flags, "
            "transformer-jax --version shows the version.",
            file=sys.stdout if wants_help else sys.stderr,
        )
        sys.exit(0 if wants_help else USAGE_STATUS)
    run(sys.argv[1], [f"transformer-jax {sys.argv[1]}", *sys.argv[2:]])


def run(command: str, argv: Sequence[str]) -> None:
    """Runs a command with its flags; `argv[0]` is the program's name. Does not return."""
    _set_up_malloc()
    module = importlib.import_module(f"transformer_jax.commands.{command}")

    def call(rest: Sequence[str]) -> None:
        with _one_sentence(module.LESS_MEMORY):
            if len(rest) > 1:
                raise UserError(
                    f"Unexpected argument {rest[1]!r}; settings are given as --flag=value."
                )
            _expand_paths()
            _configure_jax()
            module.run()
            if _has_others():
                from transformer_jax import distributed

                distributed.disconnect()
                _exit(0, at_once=True)

    with _one_sentence(module.LESS_MEMORY):
        config_flags.check_overrides(argv)
        arguments = module.define_flags(list(argv))
    app.run(call, argv=arguments)


def _expand_paths() -> None:
    """Expands `~` in every flag and setting that holds a path, once for the whole command.

    Raises:
      UserError: a path that cannot be opened, by its kind or for lack of a package.
    """
    for name in PATH_FLAGS:
        if name not in FLAGS or not FLAGS[name].value:
            continue
        value = FLAGS[name].value
        given = value if isinstance(value, list) else [value]
        expanded = [paths.expand(path, f"--{name}") for path in given]
        for path in expanded:
            paths.require(path, f"--{name}")
        FLAGS[name].value = expanded if isinstance(value, list) else expanded[0]
    if "config" in FLAGS:
        FLAGS.config = paths.expand_config(FLAGS.config)


def _set_up_malloc() -> None:
    """Starts the program again where glibc is to allocate otherwise: it reads that at start-up."""
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ:
        return
    os.environ["GLIBC_TUNABLES"] = malloc_settings()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def malloc_settings() -> str:
    """What `GLIBC_TUNABLES` is to be.

    XLA on CPU takes and returns the memory of its buffers at every step, and glibc would ask the
    system for each large one, which comes as small pages to be filled with zeros. So pages are huge
    and what was taken is kept. Only the first arena keeps; as threads that tokenise wait for each
    other when it is the only one, this is for machines without an accelerator.
    """
    settings = ["hugetlb=1"]
    if not any(glob.glob(pattern) for pattern in ACCELERATORS):
        settings += ["mmap_max=0", f"trim_threshold={2**40}", "arena_max=1"]
    return ":".join(f"glibc.malloc.{setting}" for setting in settings)


@contextlib.contextmanager
def _one_sentence(less_memory: str) -> Iterator[None]:
    """Turns what the user can mend into one sentence and an exit status."""
    try:
        with paths.store_errors():
            yield
        return
    except UserError as error:
        message = str(error)
    except BrokenPipeError:  # as in `decode.py | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _exit(0)
    except OSError as error:
        message = f"{error.filename or 'a file'}: {error.strerror or error}."
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with what is done.", file=sys.stderr)
        _exit(INTERRUPTED_STATUS)
    except RuntimeError as error:
        if _lost_others(error):
            message = (
                f"Another process of this run has ended ({str(error).splitlines()[0][:200]}); "
                "start all of them again: the run goes on from its newest checkpoint."
            )
        elif "RESOURCE_EXHAUSTED" not in str(error):
            _leave_others(error)
            raise
        else:
            message = f"The device is out of memory ({str(error).splitlines()[0]}); {less_memory}."
    except Exception as error:
        _leave_others(error)
        raise
    print(f"error: {message}", file=sys.stderr)
    _exit(USAGE_STATUS)


def _exit(status: int, at_once: bool = False) -> None:
    """Ends the process; one of several at once: at its exit JAX would wait for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    if at_once or _has_others():
        os._exit(status)
    sys.exit(status)


def _has_others() -> bool:
    """Whether this is one of several processes; does not load JAX to know."""
    return "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()


def _lost_others(error: RuntimeError) -> bool:
    words = ("gloo", "connection", "unavailable", "barrier", "deadline", "nccl", "heartbeat")
    return _has_others() and any(word in str(error).lower() for word in words)


def _leave_others(error: BaseException) -> None:
    """Ends one of several processes after an error that nobody foresaw."""
    if _has_others():
        traceback.print_exception(error)
        _exit(1)


def _configure_jax() -> None:
    """Keeps compiled programs for the next start; quiet logs unless asked for."""
    import jax

    from transformer_jax.data.sources import cache_folder

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    if not any(a.lstrip("-").startswith(("verbosity", "v=")) for a in sys.argv[1:]):
        absl_logging.set_verbosity(absl_logging.WARNING)
        logging.getLogger().setLevel(logging.WARNING)
