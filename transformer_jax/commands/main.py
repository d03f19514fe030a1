"""The commands: flags, then one call into the package. Here is what all of them share.

The root scripts and the installed `transformer-jax COMMAND` both call `run`.
"""

import contextlib
import functools
import importlib
import io
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from absl import app, flags
from absl import logging as absl_logging

from transformer_jax import __version__, interrupts, paths
from transformer_jax.commands import command_help, command_line, config_flags
from transformer_jax.commands.command_line import COMMANDS
from transformer_jax.config import Config, validate
from transformer_jax.errors import UserError, did_you_mean, is_out_of_memory
from transformer_jax.workdir import compilation_cache, host_memory

FLAGS = flags.FLAGS
USAGE_STATUS = 2
# Words in the errors of a process that lost its connection to the others.
CONNECTION_WORDS = ("gloo", "connection", "unavailable", "barrier", "deadline", "nccl", "heartbeat")


def main() -> None:
    """Entry point of `transformer-jax COMMAND [flags]`, and of `python -m transformer_jax`."""
    _write_utf8()
    is_module = Path(sys.argv[0]).name == "__main__.py"
    program = "python -m transformer_jax" if is_module else "transformer-jax"
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if "--version" in sys.argv[1:3] and command in ("--version", *COMMANDS):
        print(f"transformer-jax {__version__}")
    elif command == "help" and sys.argv[2:3] and sys.argv[2] in COMMANDS:
        run(sys.argv[2], [f"{program} {sys.argv[2]}", "--help"])
    elif command in ("help", *command_line.HELP_FLAGS):
        print(command_help.command_list(program, COMMANDS))
    elif command in COMMANDS:
        run(command, [f"{program} {command}", *sys.argv[2:]])
    elif not command:
        print(command_help.command_list(program, COMMANDS), file=sys.stderr)
        sys.exit(USAGE_STATUS)
    else:
        print(
            f"error: There is no command {command}{_suggestion(command)} There are "
            f"{', '.join(COMMANDS)}. {program} --help explains them.",
            file=sys.stderr,
        )
        sys.exit(USAGE_STATUS)


def _suggestion(command: str) -> str:
    """The end of a sentence about an unknown command."""
    if command in importlib.import_module("transformer_jax.commands.plot").PICTURES:
        return f"; did you mean plot {command}?"
    return did_you_mean(command, COMMANDS)


def run(command: str, argv: Sequence[str]) -> NoReturn:
    """Runs a command with its flags and ends the process; `argv[0]` is the program's name."""
    _write_utf8()
    module = importlib.import_module(command_line.module_of(command))
    text: command_help.CommandHelp = module.HELP
    if text.keeps_memory:
        host_memory.keep_freed_memory()

    def call(remaining: Sequence[str]) -> None:
        with _errors_as_sentences(text):
            interrupts.raise_errors(_interrupted(text))
            words = remaining[1:]
            _check_words(words, text)
            _check_required(text.required)
            if no_recipe:
                raise no_recipe
            _expand_paths()
            if "config" in FLAGS:  # before JAX, which takes seconds
                validate(FLAGS.config)
            with _jax_prepared() if text.uses_jax else contextlib.nullcontext():
                module.run(*([words] if text.words else []))
            if interrupts.goes_on():  # Python's own end would wait for it, and then crash in it
                _flush()
                os._exit(0)
            if _is_one_of_several():
                from transformer_jax import distributed

                _flush()
                distributed.disconnect()
                distributed.exit_process(0)

    others = set(FLAGS)
    no_recipe: config_flags.NoRecipeError | None = None
    program = f"python {argv[0]}" if argv[0].endswith(".py") else argv[0]
    with _errors_as_sentences(text):
        _check_utf8(argv)
        argv = command_line.with_flag_files(argv)
        config_flags.check_overrides(argv)
        try:
            remaining = module.define_flags(list(argv))
        except config_flags.NoRecipeError as error:  # wrong flags and words may be the reason
            no_recipe, remaining = error, argv
        if command_line.wants_help(argv):
            defined = [FLAGS[name] for name in FLAGS if name not in others]
            print(_help(command, program, argv, defined, text), flush=True)
            sys.exit(0)
    app.run(call, argv=remaining, flags_parser=functools.partial(_parse, program))


@contextlib.contextmanager
def _jax_prepared() -> Iterator[None]:
    """Inside, JAX keeps compiled programs and has the package's settings in this thread."""
    compilation_cache.keep_programs()
    _quiet_logs()
    from transformer_jax.ops import platforms

    with platforms.settings_of_package():
        yield


def _write_utf8() -> None:
    """Writes text as UTF-8, whatever the locale is."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _check_utf8(argv: Sequence[str]) -> None:
    """Refuses names that are not UTF-8, in which records, pages and Orbax could not write them."""
    words = [(word, "argument") for word in argv]
    with contextlib.suppress(FileNotFoundError):  # the folder was removed
        words.append((os.getcwd(), "current folder"))
    for word, what in words:
        data = os.fsencode(word)
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            raise UserError(
                f"The {what} {data.decode('utf-8', 'backslashreplace')} is not UTF-8; rename it, "
                "or make a symbolic link with another name."
            ) from None


def _help(
    command: str,
    program: str,
    argv: Sequence[str],
    defined: Sequence[flags.Flag],
    text: command_help.CommandHelp,
) -> str:
    """What `COMMAND --help` prints; defaults are of the recipe or model that `argv` names."""
    config = FLAGS["config"].default if "config" in FLAGS else None
    name = command_line.value_of(argv, "config") or command_line.value_of(argv, "workdir") or ""
    request = command_help.HelpRequest(
        command, program, COMMANDS[command], defined, config or Config(), name, config is not None
    )
    return command_help.command_help(request, text)


def _parse(program: str, argv: Sequence[str]) -> list[str]:
    """Sets the flags; returns the arguments that are none. A wrong flag ends the process."""
    try:
        return FLAGS(argv)
    except flags.Error as error:
        text = f"error: {command_line.sentence(error)} {program} --help lists the flags."
        print(text, file=sys.stderr)
        sys.exit(USAGE_STATUS)


def _check_words(words: Sequence[str], text: command_help.CommandHelp) -> None:
    """Refuses arguments that are no flags, where the command has none or others."""
    allowed = text.words
    if allowed is not None and not allowed.choices:
        return
    most = 0 if allowed is None else 1
    if len(words) > most:
        word, advice = words[most], "settings are given as --flag=value"
        if "--config=" in text.usage and config_flags.is_recipe_name(word):
            advice = f"write --config={word}"
        raise UserError(f"Unexpected argument {word!r}; {advice}.")
    if allowed is not None and not set(words) & set(allowed.choices):
        unknown = [
            f"There is no {allowed.name} {w}{did_you_mean(w, allowed.choices)}" for w in words
        ]
        width = max(map(len, allowed.choices))
        known = [f"\n  {name:<{width}}  {what}" for name, what in allowed.choices.items()]
        raise UserError(" ".join([*unknown, f"Name the {allowed.name}:"]) + "".join(known))


def _check_required(names: Sequence[str]) -> None:
    """Refuses a command line without a flag that is required."""
    for name in names:
        if FLAGS[name].value in (None, "", []):
            meaning = command_help.meaning(FLAGS[name])
            raise UserError(
                f"--{name}={command_help.value_name(FLAGS[name])} is missing: "
                f"{meaning[0].lower()}{meaning[1:]}"
            )


def _expand_paths() -> None:
    """Expands `~` in every flag and setting that holds a path, once for the entire command.

    Raises:
      UserError: a path cannot be opened, because of its kind or a missing package.
    """
    for name in FLAGS:
        value = FLAGS[name].value
        if not value or not command_help.is_path(FLAGS[name]):
            continue
        given = value if isinstance(value, list) else [value]
        expanded = [paths.expand(path, f"--{name}") for path in given]
        for path in expanded:
            paths.require(path, f"--{name}")
        FLAGS[name].value = expanded if isinstance(value, list) else expanded[0]
    if "config" in FLAGS:
        FLAGS.config = paths.expand_config(FLAGS.config)


def _quiet_logs() -> None:
    """Hides what libraries log, unless it is asked for."""
    if not any(a.lstrip("-").startswith(("verbosity", "v=")) for a in sys.argv[1:]):
        absl_logging.set_verbosity(absl_logging.WARNING)
        logging.getLogger().setLevel(logging.WARNING)


@contextlib.contextmanager
def _errors_as_sentences(text: command_help.CommandHelp) -> Iterator[None]:
    """Ends the process with one sentence for each error that the user can fix.

    Args:
      text: of the command.
    """
    try:
        with paths.store_errors():
            yield
        return
    except BrokenPipeError:  # the reader has ended, as in `decode.py | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _exit(0)
    except KeyboardInterrupt:
        _end_interrupted(text)
    except Exception as error:
        if interrupts.was_asked():  # an import replaces the interrupt by its own error
            _end_interrupted(text)
        message = _message(error, text.less_memory)
        if message is None:
            if _is_one_of_several():
                traceback.print_exception(error)
                _exit(1)
            raise
    print(f"error: {message}", file=sys.stderr)
    _exit(USAGE_STATUS)


def _interrupted(text: command_help.CommandHelp) -> str:
    """What Ctrl-C prints. What was written to standard output cannot be resumed."""
    resumes = text.resumes and not ("output" in FLAGS and FLAGS["output"].value == "-")
    return f"interrupted{'; the same command resumes' if resumes else ''}."


def _end_interrupted(text: command_help.CommandHelp) -> NoReturn:
    print(_interrupted(text), file=sys.stderr)
    if interrupts.was_asked():
        _flush()
        # At once: threads may compile, and Python's own end waits for them or crashes in them.
        os._exit(interrupts.STATUS)
    _exit(interrupts.STATUS)


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
    if is_out_of_memory(error):
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


def _exit(status: int) -> NoReturn:
    """Ends the process, where it is one of several without waiting for the others."""
    _flush()
    if _is_one_of_several():
        from transformer_jax import distributed

        distributed.exit_process(status)
    sys.exit(status)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
