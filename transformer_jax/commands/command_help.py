"""What `--help` prints for a command, from data in the command's module.

Nothing here loads JAX, so that help is immediate.
"""

import contextlib
import dataclasses
import importlib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from transformer_jax.commands import command_line
from transformer_jax.config import Config, Setting, all_settings

WIDTH = 80
# Module that defines flags of several commands -> the heading of these flags.
SEARCH, PROCESSES = "Search settings", "Several processes"
GROUPS = {
    "transformer_jax.commands.search_flags": SEARCH,
    "transformer_jax.commands.process_flags": PROCESSES,
}


@dataclasses.dataclass(frozen=True)
class Words:
    """What the arguments of a command are that are no flags, as in `plot curves`.

    Attributes:
      name: of one, such as "picture".
      choices: one of them has to be given -> what it is; empty: any number of folders.
    """

    name: str
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class CommandHelp:
    """What a command says about itself besides its flags, and what the frame has to know of it.

    Attributes:
      usage: words and flags, such as `--workdir=DIR [flags]`. Those before `[` are required.
      about: what the command does, in a few sentences.
      less_memory: what to change where the device is out of memory.
      words: its arguments that are no flags, which `run` gets; None: it has none.
      uses_jax: False for commands that only read files.
      keeps_memory: False where the model decides whether freed memory is kept (`Translator.load`).
      resumes: whether the same command resumes where an interrupted one ended. False for `train`,
        which says so itself once it has saved.
      examples: (purpose, command line) of each; a line starts with `transformer-jax COMMAND`.
      fields: the settings that are changed most often, such as `train.num_steps`.
      pages: (document, what it has) of where the rest is, such as `docs/training_speed.md`.
    """

    usage: str
    about: str
    less_memory: str
    examples: tuple[tuple[str, str], ...]
    fields: tuple[str, ...] = ()
    pages: tuple[tuple[str, str], ...] = ()
    words: Words | None = None
    uses_jax: bool = True
    keeps_memory: bool = True
    resumes: bool = False

    @property
    def required(self) -> list[str]:
        """Names of the flags that have to be given."""
        return re.findall(r"--(\w+)=", self.usage.partition("[")[0])


@dataclasses.dataclass(frozen=True)
class HelpRequest:
    """The command that is described, with the defaults that are shown.

    Attributes:
      command: its name.
      program: how the user calls it, such as `python decode.py`.
      summary: one line.
      flags: of the command, in the order of their definition.
      config: the config whose values are the defaults of settings.
      name: of the model or recipe that the command line names, such as `runs/quickstart`; or empty.
      is_read: whether the config is that of `name`.
    """

    command: str
    program: str
    summary: str
    flags: Sequence[flags.Flag]
    config: Config
    name: str
    is_read: bool


def command_list(program: str, commands: dict[str, str]) -> str:
    """The commands with their summaries."""
    return "\n".join(
        [
            "transformer_jax: train, evaluate and use translators, with JAX.",
            "",
            f"usage: {program} COMMAND [flags]",
            "",
            *_rows(commands),
            "",
            f"{program} COMMAND --help",
            "      explains a command: examples, flags with defaults, settings",
            f"{program} --version",
            "      prints the version",
        ]
    )


def command_help(request: HelpRequest, text: CommandHelp) -> str:
    """What `COMMAND --help` prints, at most `WIDTH` columns wide where words allow it."""
    summary = request.summary[0].lower() + request.summary[1:]
    usage = wrapped(f"usage: {request.program} {text.usage}", indent=" " * 4)
    parts = [wrapped(f"{request.program}: {summary}"), wrapped(text.about), usage]
    parts.append("\n".join(["Examples", *_examples(request, text)]))
    of = f", with the defaults of {request.name}" if request.name else ""
    if request.name and not request.is_read:
        of = f", not with the defaults of {request.name}, which is not read for help"
    sections: dict[str, list[str]] = {}
    if text.words and text.words.choices:
        sections[f"{text.words.name.capitalize()}s"] = list(_rows(text.words.choices))
    for title, members in flag_groups(request.flags).items():
        heading = f"{title}{of}" if title == SEARCH else title
        members = sorted(members, key=lambda flag: f"--{flag.name}=" not in text.usage)
        sections[heading] = [
            _flag(flag, request, title == SEARCH, flag.name in text.required) for flag in members
        ]
    processes = sections.pop(PROCESSES, [])
    if text.fields:
        sections[f"Settings that are changed most often{of}"] = [
            _setting(setting, request.config) for setting in _settings(text.fields)
        ]
    if processes:
        sections[PROCESSES] = processes
    parts += ["\n".join([heading, *lines]) for heading, lines in sections.items()]
    parts.append("\n".join(["More", *_more(text)]))
    return "\n\n".join(parts)


@contextlib.contextmanager
def defined_flags(command: str) -> Iterator[list[flags.Flag]]:
    """The flags of a command while it is only described; they are removed afterwards."""
    others = set(flags.FLAGS)
    try:
        module = importlib.import_module(command_line.module_of(command))
        module.define_flags([command, "--help"])
        yield [flags.FLAGS[name] for name in flags.FLAGS if name not in others]
    finally:
        for name in set(flags.FLAGS) - others:
            delattr(flags.FLAGS, name)


def flag_groups(command_flags: Sequence[flags.Flag]) -> dict[str, list[flags.Flag]]:
    """The flags by heading: those of the command first, then those of several commands."""
    module_of = {
        flag.name: module
        for module, members in flags.FLAGS.flags_by_module_dict().items()
        for flag in members
    }
    groups: dict[str, list[flags.Flag]] = {"Flags": [], **{title: [] for title in GROUPS.values()}}
    for flag in command_flags:
        if flag.help and not flag.name.startswith("config."):
            groups[GROUPS.get(module_of.get(flag.name, ""), "Flags")].append(flag)
    return {title: members for title, members in groups.items() if members}


def value_name(flag: flags.Flag) -> str:
    """What `--help` writes for the value of a flag: its choices, or a word such as FILE."""
    if isinstance(flag, flags.EnumFlag):
        return "|".join(flag.parser.enum_values)
    if isinstance(flag.parser, command_line.TextParser | command_line.PathsParser):
        return flag.parser.value_name
    if flag.name == "config":  # defined by ml_collections
        return "RECIPE"
    kind = flag.flag_type()
    return {"int": "N", "float": "X"}.get(kind, "A,B" if "list" in kind else "TEXT")


def is_path(flag: flags.Flag) -> bool:
    """Whether the value of a flag is a path, or several."""
    return isinstance(flag.parser, command_line.PathParser | command_line.PathsParser)


def meaning(flag: flags.Flag) -> str:
    """A flag's text without the choices that absl adds."""
    return re.sub(r"^<.*?>: ", "", " ".join(flag.help.split())).removesuffix(
        "; repeat this option to specify a list of values"
    )


def default_text(value: Any) -> str:
    """A default as the command line has it; empty for none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value) if isinstance(value, str | int | float) else ""


def _flag(flag: flags.Flag, request: HelpRequest, is_search: bool, is_required: bool) -> str:
    """A flag with its values, default and range, and its meaning below."""
    default, bounds = flag.default, ""
    if is_search:
        (setting,) = _settings([f"decode.{flag.name}"])
        default, bounds = setting.value(request.config), setting.range_text()
    elif getattr(flag.parser, "lower_bound", None) is not None:
        bounds = f">= {flag.parser.lower_bound}"
    name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}={value_name(flag)}"
    return _entry(name, default, bounds, meaning(flag), is_required)


def _setting(setting: Setting, config: Config) -> str:
    value = "True|False" if setting.type is bool else "|".join(setting.choices) or "VALUE"
    default = setting.value(config)
    return _entry(
        f"--config.{setting.path}={value}",
        str(default) if setting.type is bool else default,
        setting.range_text(),
        setting.rules.meaning,
    )


def _entry(name: str, default: Any, bounds: str, text: str, is_required: bool = False) -> str:
    facts = ["required"] if is_required else []
    facts += [f"default: {default_text(default)}"] if default_text(default) else []
    facts += [bounds] if bounds else []
    if len(name) > WIDTH - 4:  # too many choices for one line
        name, _, choices = name.partition("=")
        name, text = f"{name}=NAME", f"{text} One of {choices.replace('|', ', ')}."
    title = f"{name}  ({'; '.join(facts)})" if facts else name
    return f"{wrapped(title, '  ', '      ')}\n{wrapped(text, '      ', '      ')}"


def _settings(paths: Sequence[str]) -> list[Setting]:
    by_path = {setting.path: setting for setting in all_settings(Config)}
    return [by_path[path] for path in paths]


def _examples(request: HelpRequest, text: CommandHelp) -> Iterator[str]:
    """Each example: its purpose, then the command, at most `WIDTH` columns wide."""
    others = request.program.removesuffix(f" {request.command}")
    for purpose, line in text.examples:
        line = line.replace(f"transformer-jax {request.command} ", f"{request.program} ")
        if others != request.program:  # not a root script, which is one command only
            line = line.replace("transformer-jax ", f"{others} ")
        yield wrapped(purpose, "  ", "  ")
        yield shell_lines(line)


def shell_lines(command: str, width: int = WIDTH, indent: str = "    ") -> str:
    """A command line, continued on further lines before a flag or operator."""
    lines, current = [], indent
    for part in re.split(r" (?=--|\||<|>)", command):
        if len(current) > len(indent) and len(current) + len(part) > width - 3:
            lines.append(f"{current} \\")
            current = indent + "  "
        current += f" {part}" if current.strip() else part
    return "\n".join([*lines, current])


def _more(text: CommandHelp) -> Iterator[str]:
    settings = ("python -m transformer_jax.config", "every setting, as docs/settings.md")
    yield from _rows(dict([*text.pages, *([settings] if text.fields else [])]))
    yield "  --helpfull lists the flags of libraries too."


def _rows(meanings: Mapping[str, str]) -> Iterator[str]:
    """A line for each name with its meaning, all meanings in one column."""
    width = max(map(len, meanings)) + 2
    for name, what in meanings.items():
        yield wrapped(what, f"  {name:<{width}}", " " * (width + 2))


def wrapped(text: str, first: str = "", indent: str = "", width: int = WIDTH) -> str:
    """The text in lines of at most `width` columns, if its words are not longer."""
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
