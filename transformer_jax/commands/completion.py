"""The command `completion`: a script by which a shell completes commands, flags and values.

The script asks `transformer-jax complete WORD...`, which prints the `candidates`.
"""

import importlib
import re
from collections.abc import Iterator, Sequence

from absl import flags

from transformer_jax.commands import command_help, command_line, config_flags
from transformer_jax.commands.command_help import CommandHelp, Words
from transformer_jax.commands.command_line import COMMANDS
from transformer_jax.config import Config, Setting, all_settings

HELP = CommandHelp(
    usage="bash|zsh|fish",
    about="Prints a script. Where the shell has read it, the tabulator key completes commands, "
    "flags, their choices, settings, recipes and files.",
    less_memory="close other programs",
    uses_jax=False,
    words=Words(
        "shell",
        {
            "bash": "completes words",
            "zsh": "shows what each word means, too",
            "fish": "shows what each word means, too",
        },
    ),
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
# Candidates instead of paths, which the shell completes itself.
FOLDERS, FILES = "@folders", "@files"
# Each completes the last word of the line.
SCRIPTS = {
    "bash": r"""
_transformer_jax() {
  local line="${COMP_LINE:0:COMP_POINT}" breaks="" flag="" start="" found kind
  local cur="${line##*[[:space:]]}"
  local words
  read -ra words <<< "${line%"$cur"}"
  [[ $COMP_WORDBREAKS == *=* ]] && breaks+="="
  [[ $COMP_WORDBREAKS == *:* ]] && breaks+=":"
  if [[ -n $breaks && $cur == *[$breaks]* ]]; then
    start="${cur%"${cur##*[$breaks]}"}"  # readline replaces only what follows it
  fi
  [[ $cur == --*=* ]] && flag="${cur%%=*}="
  COMPREPLY=()
  while IFS=$'\t' read -r found _; do
    kind=""
    [[ $found == @folders ]] && kind=d
    [[ $found == @files ]] && kind=f
    if [[ -z $kind ]]; then
      COMPREPLY+=("${found#"$start"}")
      continue
    fi
    compopt -o filenames 2>/dev/null
    while IFS= read -r found; do
      found="$flag$found"
      COMPREPLY+=("${found#"$start"}")
    done < <(compgen "-$kind" -- "${cur#"$flag"}")
  done < <("${words[0]/#\~\//$HOME/}" complete "${words[@]:1}" "$cur" 2>/dev/null)
  if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=.:] ]]; then
    compopt -o nospace 2>/dev/null
  fi
}
complete -F _transformer_jax transformer-jax
""",
    "zsh": r"""
#compdef transformer-jax
_transformer_jax() {
  local line paths
  local -a values begun
  for line in "${(@f)$(${~words[1]} complete "${(@)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)}"; do
    case "$line" in
      @folders) paths=-/ ;;
      @files) paths=-f ;;
      *[=.:]$'\t'*) begun+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
      ?*) values+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
    esac
  done
  _describe value values -- begun -S ''
  if [[ -n $paths ]]; then
    compset -P '--[a-z_.]#='
    _path_files $paths
  fi
}
if [[ $funcstack[1] == _transformer-jax ]]; then
  _transformer_jax "$@"  # loaded from a folder of fpath
else
  compdef _transformer_jax transformer-jax
fi
""",
    "fish": r"""
function __transformer_jax
  set -l words (commandline -opc)
  set -l cur (commandline -ct)
  set -l flag (string match -r -- '^--[^=]*=' "$cur")
  set -l path (string replace -r -- '^--[^=]*=' '' "$cur")
  for line in ($words[1] complete $words[2..] "$cur" 2>/dev/null)
    switch $line
      case @folders
        __fish_complete_directories "$path" | string replace -r -- '^' "$flag"
      case @files
        __fish_complete_path "$path" | string replace -r -- '^' "$flag"
      case '*'
        echo $line
    end
  end
end
complete -c transformer-jax -f -a '(__transformer_jax)'
""",
}


def define_flags(argv: list[str]) -> list[str]:
    """The command has no flags; returns `argv`."""
    return argv


def run(words: Sequence[str]) -> None:
    """Prints the script."""
    print(SCRIPTS[words[0]].strip())


def candidates(words: Sequence[str]) -> list[str]:
    """What the last word of a command line may become, for the scripts of the shells.

    Args:
      words: of the line, after the program's name; the last one is not complete, and may be empty.

    Returns:
      Lines `WORD<tab>MEANING`, or `folders` or `files` for paths.
    """
    *before, word = words or [""]
    if before == ["help"]:
        offered = COMMANDS
    elif not before:
        offered = {**COMMANDS, "--help": "Explain the commands.", "--version": "Print the version."}
    elif before[0] not in COMMANDS:
        return []
    else:
        with command_help.defined_flags(before[0]) as defined:
            offered = dict(_after_command(before, word, [flag for flag in defined if flag.help]))
    return [
        name
        if name in (FOLDERS, FILES)
        else f"{name}\t{re.split('[.;:] ', meaning)[0].rstrip('.')}"
        for name, meaning in offered.items()
        if name in (FOLDERS, FILES) or name.startswith(word)
    ]


def _after_command(
    before: Sequence[str], word: str, defined: Sequence[flags.Flag]
) -> Iterator[tuple[str, str]]:
    """(candidate, meaning), whatever `word` begins with."""
    text: CommandHelp = importlib.import_module(command_line.module_of(before[0])).HELP
    options = {f"--{flag.name}": flag for flag in defined}
    if text.fields:
        settings = {f"--config.{setting.path}": setting for setting in all_settings(Config)}
    else:
        settings = {}
    flag, equals, _ = word.partition("=")
    if not equals:
        flag = before[-1]  # `word` may be its value
    if flag in options and not options[flag].boolean:
        yield from _flag_values(options[flag], flag + "=" if equals else "")
    elif flag in settings:
        yield from _setting_values(settings[flag], flag + "=" if equals else "")
    elif word.startswith("--config."):
        for name, setting in settings.items():
            yield f"{name}=", setting.rules.meaning
    elif word.startswith("-"):
        yield "--help", "Explain the command."
        for name, option in options.items():
            meaning = command_help.meaning(option)
            yield (name if option.boolean else f"{name}="), meaning
            if option.boolean:
                yield f"--no{option.name}", f"Not: {meaning}"
        if settings:
            yield "--config.", "A setting."
    elif text.words and not text.words.choices:
        yield FOLDERS, ""
    elif text.words and len(before) == 1:
        yield from text.words.choices.items()


def _flag_values(flag: flags.Flag, prefix: str) -> Iterator[tuple[str, str]]:
    """Values of a flag, after `prefix`."""
    values = command_help.value_name(flag).split("|")
    if flag.name == "config":
        values = list(config_flags.built_in_recipes())
        yield FILES, ""
    elif command_help.is_path(flag):
        yield (FOLDERS if set(values) <= {"DIR", "DIR,DIR"} else FILES), ""
        return
    elif flag.name == "checkpoint":
        values = ["best", "latest", "average:"]
    elif not isinstance(flag, flags.EnumFlag):
        return
    for value in values:
        yield prefix + value, ""


def _setting_values(setting: Setting, prefix: str) -> Iterator[tuple[str, str]]:
    """Values of a setting, after `prefix`."""
    if setting.rules.path_kind:
        yield FILES, ""
    for value in ("True", "False") if setting.type is bool else setting.choices:
        yield prefix + value, ""
