"""One setting: its type, its default and the rules that are written at its field."""

import dataclasses
import math
import operator
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

PathKind = Literal["one", "several", "corpora"]
_RULES = "rules"  # key in the metadata of a dataclass field
_BOUNDS = {
    "at_least": (">=", operator.ge),
    "above": (">", operator.gt),
    "at_most": ("<=", operator.le),
    "below": ("below", operator.lt),
}


@dataclasses.dataclass(frozen=True)
class Rules:
    """Facts about a setting besides its type and default.

    Attributes:
      meaning: one or two sentences for documents and `--help`.
      bounds: name in `_BOUNDS` -> bound of a number.
      resumable: whether a run may resume with another value.
      path_kind: whether the text is one path, several with commas, or several with commas if
        `data.source` is `files`; None: not a path.
      former: the value that a `config.json` without the setting stands for; MISSING: the default.
    """

    meaning: str
    bounds: dict[str, float]
    resumable: bool
    former: Any
    path_kind: PathKind | None = None


def setting(
    default: Any,
    meaning: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    resumable: bool = False,
    former: Any = dataclasses.MISSING,
) -> Any:
    """A dataclass field with its rules. Its choices, if any, are its type: `Literal[...]`.

    Args:
      default: of new runs.
      meaning: one or two sentences.
      at_least, above, at_most, below: bounds of a number.
      resumable: whether a run may resume with another value.
      former: the value that the code had before the setting existed.
    """
    bounds = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    rules = Rules(meaning, given, resumable, former)
    return dataclasses.field(default=default, metadata={_RULES: rules})


def fraction(default: float, meaning: str) -> Any:
    """A setting from 0 to below 1."""
    return setting(default, meaning, at_least=0, below=1)


def path_setting(
    default: str, meaning: str, path_kind: PathKind = "one", *, resumable: bool = True
) -> Any:
    """A setting that is a path, in which commands expand `~`."""
    rules = Rules(meaning, {}, resumable, dataclasses.MISSING, path_kind)
    return dataclasses.field(default=default, metadata={_RULES: rules})


def split_paths(value: str) -> list[str]:
    """The paths of a list with commas. A path with a comma in it counts as one if it is there.

    Corpora are named without the ending of a language, so `a,b` is there if `a,b.en` is.
    """
    parts, names = value.split(","), []
    while parts:
        joined = (",".join(parts[:count]).strip() for count in range(len(parts), 1, -1))
        names.append(next(filter(_is_there, joined), parts[0].strip()))
        del parts[: names[-1].count(",") + 1]
    return names


def _is_there(name: str) -> bool:
    """Whether there is a local path of that name, or a file of that name and an ending.

    What `` begins, in `DIR@CHECKPOINT`, is no part of the name.
    """
    path = Path(name).expanduser()
    try:
        siblings = path.parent.iterdir() if path.parent.is_dir() else ()
        is_there = path.exists() or any(one.name.startswith(f"{path.name}.") for one in siblings)
        return is_there or ("@" in path.name and _is_there(name.rpartition("@")[0]))
    except OSError:
        return False


def section(cls: type, meaning: str, *, resumable: bool = False) -> Any:
    """A field that is a section of settings; `resumable` applies to all of them."""
    rules = Rules(meaning, {}, resumable, dataclasses.MISSING)
    return dataclasses.field(default_factory=cls, metadata={_RULES: rules})


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting by its path in the tree, such as `model.d_model`."""

    path: str
    type: Any
    default: Any
    rules: Rules
    resumable: bool  # by its own rules or its section's

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values of a `Literal` type; empty for other types."""
        return typing.get_args(self.type) if typing.get_origin(self.type) is typing.Literal else ()

    @property
    def former(self) -> Any:
        """The value that a `config.json` without the setting stands for."""
        former = self.rules.former
        return self.default if former is dataclasses.MISSING else former

    def value(self, config: Any) -> Any:
        """The setting's value in a config, or in the section that `path` starts from."""
        return operator.attrgetter(self.path)(config)

    def in_range(self, value: float) -> bool:
        """Whether a number is finite and within the bounds; True for settings without bounds."""
        bounds = self.rules.bounds
        if not bounds:
            return True
        return math.isfinite(value) and all(
            _BOUNDS[name][1](value, bound) for name, bound in bounds.items()
        )

    def range_text(self) -> str:
        """The bounds, such as `>= 0 and below 1`; empty without bounds."""
        bounds = self.rules.bounds.items()
        return " and ".join(f"{_BOUNDS[name][0]} {_number(bound)}" for name, bound in bounds)


def _number(value: float) -> str:
    """A bound as text: `2^63` for the large powers of two that limit seeds."""
    power = int(abs(value)).bit_length() - 1
    if power >= 31 and abs(value) == 2**power:
        return f"{'-' if value < 0 else ''}2^{power}"
    return f"{value:.10g}"


def all_settings(cls: type, prefix: str = "", resumable: bool = False) -> Iterator[Setting]:
    """Every setting of a section and of the sections in it, in the order of the fields."""
    for field in dataclasses.fields(cls):
        rules = field.metadata[_RULES]
        path, free = f"{prefix}{field.name}", resumable or rules.resumable
        if dataclasses.is_dataclass(field.type):
            yield from all_settings(field.type, f"{path}.", free)  # type: ignore[arg-type]
        else:
            yield Setting(path, field.type, field.default, rules, free)


def section_rules(cls: type) -> dict[str, Rules]:
    """Rules of the sections of a tree, by name."""
    return {
        field.name: field.metadata[_RULES]
        for field in dataclasses.fields(cls)
        if dataclasses.is_dataclass(field.type)
    }
