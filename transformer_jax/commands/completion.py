"""The command `completion`: a script by which a shell completes commands, flags and values.

The script is made from the tables that `--help` prints. It is static: completing starts no Python.
"""

import dataclasses
import importlib
import re
from collections.abc import Iterable, Iterator

from absl import flags

from transformer_jax.commands import command_help, config_flags
from transformer_jax.commands.command_help import CommandHelp
from transformer_jax.config import Config, Setting, all_settings
from transformer_jax.errors import UserError

FLAGS = flags.FLAGS
LESS_MEMORY = "close other programs"
FIRST_WORD, USES_JAX = "shell", False
SHELLS = ("bash", "zsh", "fish")
HELP = CommandHelp(
    usage="bash|zsh|fish",
    about="Prints a script. Where the shell has read it, the tabulator key completes commands, "
    "flags, their choices, settings, recipes and files. Print it again after an update.",
    examples=(
        (
            "bash, for all later shells (with the package bash-completion):",
            "transformer-jax completion bash "
            "> ~/.local/share/bash-completion/completions/transformer-jax",
        ),
        (
            "zsh, with a folder that is in `fpath` before `compinit` is called:",
            "transformer-jax completion zsh > ~/.zsh/completions/_transformer-jax",
        ),
        (
            "fish:",
            "transformer-jax completion fish > ~/.config/fish/completions/transformer-jax.fish",
        ),
    ),
    pages=(("docs/install.md", "where the shells look for the script"),),
)


@dataclasses.dataclass(frozen=True)
class Option:
    """A flag, or a setting as a flag.

    Attributes:
      name: without dashes.
      meaning: its first sentence.
      choices: allowed or proposed values.
      path: DIR or FILE if the value is a path; empty: not a path.
      is_switch: whether `--name` and `--noname` have no value.
    """

    name: str
    meaning: str
    choices: tuple[str, ...] = ()
    path: str = ""
    is_switch: bool = False


@dataclasses.dataclass(frozen=True)
class Completion:
    """What can follow a command.

    Attributes:
      options: its flags.
      words: choices of the word after the command.
      takes_folders: whether words after the command are folders.
      takes_settings: whether it has `--config.SECTION.NAME`.
    """

    options: tuple[Option, ...]
    words: tuple[str, ...]
    takes_folders: bool
    takes_settings: bool


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv`."""
    flags.DEFINE_enum("shell", None, SHELLS, "The shell, as the first word; or by this flag.")
    return argv


def run() -> None:
    """Prints the script."""
    shell = FLAGS.shell
    if shell is None:
        raise UserError(f"Name the shell: {', '.join(SHELLS)}.")
    del FLAGS.shell  # it is defined again among the flags of all commands
    print(script(shell), end="")


def script(shell: str) -> str:
    """The script of a shell."""
    from transformer_jax.commands.main import COMMANDS

    commands = {command: _completion(command) for command in COMMANDS}
    settings = [_setting_option(setting) for setting in all_settings(Config)]
    make = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    return "\n".join(make(COMMANDS, commands, settings)) + "\n"


def _completion(command: str) -> Completion:
    module = importlib.import_module(f"transformer_jax.commands.{command}")
    with command_help.defined_flags(command) as defined:
        options = tuple(_option(flag) for flag in defined if flag.help)
    word = getattr(module, "FIRST_WORD", "")
    words = next((option.choices for option in options if option.name == word), ())
    takes_folders = getattr(module, "TAKES_FOLDERS", False)
    return Completion(options, words, takes_folders, bool(module.HELP.fields))


def _option(flag: flags.Flag) -> Option:
    meaning = _first_sentence(command_help.meaning(flag))
    if flag.boolean:
        return Option(flag.name, meaning, is_switch=True)
    is_path = flag.name in command_help.PATH_FLAGS
    path = re.split("[,|]", command_help.value_name(flag))[-1] if is_path else ""
    choices = command_help.value_name(flag) if isinstance(flag, flags.EnumFlag) else ""
    if flag.name == "config":
        return Option(flag.name, meaning, tuple(config_flags.built_in_recipes()), "FILE")
    if flag.name == "checkpoint":
        choices = "best|latest|average:"
    return Option(flag.name, meaning, tuple(filter(None, choices.split("|"))), path)


def _setting_option(setting: Setting) -> Option:
    choices = ("True", "False") if setting.type is bool else setting.choices
    path = "FILE" if setting.rules.path_kind else ""
    return Option(f"config.{setting.path}", _first_sentence(setting.rules.meaning), choices, path)


def _first_sentence(text: str) -> str:
    return re.split(r"[.;:] ", text)[0].rstrip(".")


def _quoted(text: str) -> str:
    """The text in single quotes for bash, zsh and fish."""
    return "'" + text.replace("'", "'\\''") + "'"


# --- bash ---------------------------------------------------------------------------------------

BASH = r"""
_transformer_jax() {
  local line="${COMP_LINE:0:COMP_POINT}" command="${COMP_WORDS[1]}"
  local flag="" head="" words="" paths="" found
  local cur="${line##*[[:space:]]}"
  local before=(${line%"$cur"})
  local previous="${before[${#before[@]}-1]}" value="$cur"
  COMPREPLY=()
  if [[ ${#before[@]} == 1 ]]; then
    words="$_transformer_jax_commands --help --version"
  elif [[ $cur == --*=* ]]; then
    flag="${cur%%=*}" value="${cur#*=}"
    [[ $COMP_WORDBREAKS == *=* ]] || head="$flag="
  elif [[ $previous == --* && $previous != *=* && $cur != -* ]]; then
    flag="$previous"
  elif [[ $cur == --config.* ]]; then
    words="$(_transformer_jax_flags "$command" settings)"
  elif [[ $cur == -* ]]; then
    words="$(_transformer_jax_flags "$command") --help"
  fi
  if [[ -z $words ]]; then
    words="$(_transformer_jax_values "$command" "$flag")"
    case "$words" in
      @DIR*) paths=d ;;
      @FILE*) paths=f ;;
    esac
    words="${words#@DIR}" words="${words#@FILE}"
  fi
  if [[ $COMP_WORDBREAKS == *:* && $value == *:* ]]; then
    words=""  # readline would replace only what follows the colon
  fi
  while IFS= read -r found; do
    COMPREPLY+=("$head$found")
  done < <(compgen -W "$words" -- "$value"; [[ -n $paths ]] && compgen -"$paths" -- "$value")
  [[ -n $paths ]] && compopt -o filenames 2>/dev/null
  if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=.:] ]]; then
    compopt -o nospace 2>/dev/null
  fi
}
complete -F _transformer_jax transformer-jax
""".strip()


def _bash(
    summaries: dict[str, str], commands: dict[str, Completion], settings: list[Option]
) -> Iterator[str]:
    yield "# Completion of transformer-jax; `transformer-jax completion bash` wrote it."
    yield f"_transformer_jax_commands={_quoted(' '.join(commands))}"
    yield "_transformer_jax_flags() {"
    yield '  case "$1 $2" in'
    for command, completion in commands.items():
        names = " ".join(_bash_names(completion.options))
        prefix = " --config." if completion.takes_settings else ""
        yield f"    {_quoted(f'{command} ')}) echo {_quoted(names + prefix)} ;;"
    takers = "|".join(
        _quoted(f"{name} settings") for name, c in commands.items() if c.takes_settings
    )
    yield f"    {takers}) echo {_quoted(' '.join(_bash_names(settings)))} ;;"
    yield "  esac\n}"
    yield "_transformer_jax_values() {"
    yield '  case "$1 $2" in'
    for command, completion in commands.items():
        for option in completion.options:
            yield from _bash_value(f"{command} --{option.name}", option)
        first = Option("", "", completion.words, "DIR" if completion.takes_folders else "")
        yield from _bash_value(f"{command} ", first)
    for setting in settings:
        for command, completion in commands.items():
            if completion.takes_settings:
                yield from _bash_value(f"{command} --{setting.name}", setting)
    yield "  esac\n}"
    yield BASH


def _bash_names(options: Iterable[Option]) -> Iterator[str]:
    for option in options:
        yield from (
            (f"--{option.name}", f"--no{option.name}")
            if option.is_switch
            else (f"--{option.name}=",)
        )


def _bash_value(pattern: str, option: Option) -> Iterator[str]:
    values = ([f"@{option.path}"] if option.path else []) + list(option.choices)
    if values:
        yield f"    {_quoted(pattern)}) echo {_quoted(' '.join(values))} ;;"


# --- zsh ----------------------------------------------------------------------------------------

ZSH = r"""
  [[ $words[CURRENT] == --config.* ]] && specs+=($settings)
  shift words
  (( CURRENT-- ))
  _arguments $specs
}
if [[ $funcstack[1] == _transformer-jax ]]; then
  _transformer_jax "$@"  # loaded from a folder of fpath
else
  compdef _transformer_jax transformer-jax
fi
""".strip("\n")


def _zsh(
    summaries: dict[str, str], commands: dict[str, Completion], settings: list[Option]
) -> Iterator[str]:
    yield "#compdef transformer-jax"
    yield "# `transformer-jax completion zsh` wrote it."
    yield "_transformer_jax() {"
    yield "  local -a commands specs settings"
    yield "  commands=("
    for name, summary in summaries.items():
        yield f"    {_quoted(f'{name}:{summary}')}"
    yield "  )"
    yield "  if (( CURRENT == 2 )); then"
    yield "    _describe command commands"
    yield "    return"
    yield "  fi"
    yield "  case $words[2] in"
    for name, completion in commands.items():
        yield f"    {name}) specs=('--help[Explain the command]'"
        if completion.words:
            yield f"      {_quoted('1:word:(' + ' '.join(completion.words) + ')')}"
        if completion.takes_folders:
            yield "      '*:folder:_files -/'"
        for option in completion.options:
            yield from _zsh_specs(option)
        yield "    ) ;;"
    yield "  esac"
    takers = "|".join(name for name, c in commands.items() if c.takes_settings)
    yield f"  [[ $words[2] == ({takers}) ]] && settings=("
    for setting in settings:
        yield from _zsh_specs(setting)
    yield "  )"
    yield ZSH


def _zsh_specs(option: Option) -> Iterator[str]:
    text = re.sub(r"([\[\]:\\])", r"\\\1", option.meaning)
    if option.is_switch:
        for name, meaning in ((option.name, text), (f"no{option.name}", f"Not: {text}")):
            yield f"      {_quoted(f'--{name}[{meaning}]')}"
        return
    choices = " ".join(choice.replace(":", "\\:") for choice in option.choices)
    if option.path and choices:
        action = f"{{compadd - {choices}; _files}}"
    elif option.path:
        action = "_files -/" if option.path == "DIR" else "_files"
    else:
        action = f"({choices})" if choices else ""
    yield f"      {_quoted(f'--{option.name}=[{text}]:value:{action}')}"


# --- fish ---------------------------------------------------------------------------------------


def _fish(
    summaries: dict[str, str], commands: dict[str, Completion], settings: list[Option]
) -> Iterator[str]:
    yield "# Completion of transformer-jax; `transformer-jax completion fish` wrote it."
    first = "complete -c transformer-jax"
    yield f"{first} -f"
    for name, summary in summaries.items():
        yield f"{first} -n __fish_use_subcommand -a {name} -d {_fish_quoted(summary)}"
    for name, completion in commands.items():
        of_command = f"{first} -n '__fish_seen_subcommand_from {name}'"
        yield f"{of_command} -l help -d 'Explain the command'"
        if completion.words:
            yield f"{of_command} -a {_fish_quoted(' '.join(completion.words))}"
        if completion.takes_folders:
            yield f"{of_command} -a '(__fish_complete_directories)'"
        for option in completion.options:
            yield from _fish_lines(of_command, option)
    takers = " ".join(name for name, c in commands.items() if c.takes_settings)
    condition = (
        f"__fish_seen_subcommand_from {takers}; "
        'and string match -q -- "--config.*" (commandline -ct)'
    )
    for setting in settings:
        yield from _fish_lines(f"{first} -n {_fish_quoted(condition)}", setting)


def _fish_lines(start: str, option: Option) -> Iterator[str]:
    text = _fish_quoted(option.meaning)
    if option.is_switch:
        yield f"{start} -l {option.name} -d {text}"
        yield f"{start} -l no{option.name} -d {_fish_quoted(f'Not: {option.meaning}')}"
        return
    values = f" -a {_fish_quoted(' '.join(option.choices))}" if option.choices else ""
    yield f"{start} -l {option.name} {'-rF' if option.path else '-x'}{values} -d {text}"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
