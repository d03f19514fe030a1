"""Looks at a corpus, and writes a recipe that fits it and the device."""

import dataclasses
import itertools
import os
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax import interrupts, paths, waiting
from transformer_jax.config import Config, DataConfig, split_paths
from transformer_jax.config.setting import Setting, all_settings
from transformer_jax.data import text_corpora
from transformer_jax.data.corpus import Corpus
from transformer_jax.errors import UserError
from transformer_jax.extras.recipes import set_aside, sizing
from transformer_jax.extras.recipes.device import Device, find_device
from transformer_jax.extras.recipes.reasons import ChosenSettings, describe_choice, warnings
from transformer_jax.extras.recipes.run_estimate import describe_estimate, estimate_run
from transformer_jax.extras.recipes.set_aside import TRAIN
from transformer_jax.extras.recipes.settings import Pairs, choose_settings
from transformer_jax.extras.recipes.survey import (
    CorpusSurvey,
    describe_survey,
    survey_corpus,
    text_digest,
)
from transformer_jax.workdir import directory_kinds

RECIPE = "recipe.py"
DATA = "data"  # in the work directory: files of a corpus of which a share was set aside
PARTS = ("validation", "test")
UNPACK = {".gz": "gzip -dc", ".zst": "zstd -dc"}  # a file that ends so; others: cat
MANY_SHARED = 0.05  # of a set's sources in the training text
Say = Callable[[str], None]


def write_recipe(
    train: str,
    source_lang: str,
    target_lang: str,
    workdir: paths.PathLike,
    *,
    validation: str = "",
    test: str = "",
    device: str = "here",
    measure: bool = True,
    say: Say = lambda _: None,
) -> Config:
    """Writes `workdir/recipe.py` for a corpus, and sets a share aside for sets that are missing.

    Args:
      train: path without the language suffix, or a .tsv; several with commas.
      source_lang, target_lang: the direction, and the suffixes of the files.
      workdir: local folder of the run.
      validation, test: paths as `train`; empty: a share is set aside, in `workdir/data`.
      device: that will train: `here`, `cpu`, `gpu` or `tpu`.
      measure: take a few training steps if the device is here, to estimate time and memory.
      say: gets what is worth knowing, line by line.

    Returns:
      The config that the recipe has.

    Raises:
      UserError: a corpus that cannot be used, or a file that exists already.
    """
    folder, given = Path(workdir), {"validation": validation, "test": test}
    missing = [part for part in PARTS if not given[part]]
    _refuse_existing(folder, missing)
    languages = source_lang, target_lang
    corpus = _open(train, languages)
    sets = {p: text_corpora.open_text(given[p], *languages, f"`{p}`") for p in PARTS if given[p]}
    say(f"{source_lang} -> {target_lang}: {corpus.name}")
    survey, counts = _survey(corpus, sets, say)
    shares = set_aside.choose_shares(survey.num_usable, missing)
    kept = [pair for part, pair in set_aside.keep_apart(survey.sample, shares) if part == TRAIN]
    counts |= {part: round(share * survey.num_usable) for part, share in shares.items()}
    data, code = _data_config(corpus, sets, folder, missing)
    chosen_device = find_device(device)
    choice = choose_settings(survey, kept, data, counts["validation"], chosen_device)
    facts = [f"device: {chosen_device.description}", *describe_choice(choice)]
    _say_all(say, [*facts, *warnings(choice)])
    if missing:
        written = set_aside.write_parts(corpus, shares, folder / DATA)
        _say_all(say, set_aside.describe(written, folder / DATA))
    commands = _next_commands(folder, sets, data)
    head = [f"{source_lang} to {target_lang}, for {corpus.name}; by `init`.", "", *facts]
    _write(folder, choice, [*head, "", *commands], code)
    say(f"wrote {folder / RECIPE}")
    if measure and chosen_device.is_here:
        choice, facts = _measure(choice, kept, counts["validation"], chosen_device, say)
        _write(folder, choice, [*head, *facts, "", *commands], code)
    else:
        facts = ["time and memory: not measured; train --dry_run compiles the step"]
    _say_all(say, [*facts, "next:", *commands])
    return choice.config


def _write(
    folder: Path, choice: ChosenSettings, head: Sequence[str], code: Mapping[str, str]
) -> None:
    """Writes the recipe; `head` is its docstring, in which only commands have long lines."""
    lines = [
        part
        for line in head
        for part in ([line] if line[:1] in ("", " ") else textwrap.wrap(line, 100))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    text = recipe_text(choice.config, "\n".join(lines), choice.reasons, code)
    paths.write_atomically(folder / RECIPE, text)


def _say_all(say: Say, lines: Sequence[str]) -> None:
    for line in lines:
        say(line)


def _refuse_existing(folder: Path, missing: Sequence[str]) -> None:
    """Refuses a folder that has what would be written.

    Raises:
      UserError: names the paths.
    """
    if paths.is_remote(folder):
        raise UserError(f"`workdir={folder}`: the recipe is written into a local folder.")
    for path in (folder, *folder.parents):
        if path.exists() and not path.is_dir():
            raise UserError(f"`workdir={folder}`: {path} is a file; name a folder for the run.")
    if directory_kinds.is_run(folder):
        raise UserError(
            f"{folder} has a run, which needs the files that it has; use another `workdir`, or "
            f"remove the folder to start again."
        )
    targets = [folder / RECIPE, *([folder / DATA] if missing else [])]
    existing = [str(path) for path in targets if path.exists()]
    if existing:
        raise UserError(
            f"{' and '.join(existing)} would be replaced. Use another `workdir`. If they are of "
            f"an earlier init, and are not needed: rm -r {shlex.join(existing)}"
        )


def _open(train: str, languages: tuple[str, str]) -> Corpus:
    """All corpora that `train` names, as one."""
    names = split_paths(train)
    corpora = [text_corpora.open_text(name, *languages, "`train`") for name in names]
    for number, corpus in enumerate(corpora):
        if corpus.name in [earlier.name for earlier in corpora[:number]]:
            raise UserError(
                f"`train={train}` names {corpus.name} twice; a corpus is named once, without its "
                f"languages: `train={corpus.name}`."
            )
    if len(corpora) == 1:
        return corpora[0]

    def read() -> itertools.chain[tuple[str, str]]:
        return itertools.chain.from_iterable(corpus.read() for corpus in corpora)

    return Corpus(",".join(corpus.name for corpus in corpora), *languages, read, "")


def _data_config(
    corpus: Corpus, sets: Mapping[str, Corpus], folder: Path, missing: Sequence[str]
) -> tuple[DataConfig, dict[str, str]]:
    """Paths and languages; and the code that names the paths in the work directory."""
    names = {
        part: ",".join(
            name if paths.is_remote(name) else os.path.abspath(name)
            for name in split_paths(of_part.name)
        )
        for part, of_part in {TRAIN: corpus, **sets}.items()
    }
    in_folder = (TRAIN, *missing) if missing else ()
    names |= {part: os.path.abspath(folder / DATA / part) for part in in_folder}
    data = DataConfig(
        source="files",
        train=names[TRAIN],
        validation=names["validation"],
        test=names["test"],
        source_lang=corpus.source_lang,
        target_lang=corpus.target_lang,
    )
    # A work directory may be moved, with the text in it.
    return data, {f"data.{part}": f'str(HERE / "{DATA}" / "{part}")' for part in in_folder}


def _survey(
    corpus: Corpus, sets: Mapping[str, Corpus], say: Say
) -> tuple[CorpusSurvey, dict[str, int]]:
    """The survey and the sizes of `sets`; says how much of these is in the training text too.

    Raises:
      UserError: the corpus is too small.
    """
    of_part = {
        part: [text_digest(source.strip()) for source, _ in other.read()]
        for part, other in sets.items()
    }
    survey = survey_corpus(corpus, {*itertools.chain.from_iterable(of_part.values())})
    _say_all(say, [f"  {line}" for line in describe_survey(survey)])
    if survey.num_usable < sizing.MIN_PAIRS:
        raise UserError(
            f"{corpus.name} has {survey.num_usable:,} different pairs, and from fewer than "
            f"{sizing.MIN_PAIRS:,} a model learns nothing of use. Fine-tune a published model: "
            "docs/fine_tune.md, the section on few pairs."
        )
    for part, digests in of_part.items():
        num_shared = sum(digest in survey.seen for digest in digests)
        say(
            f"{part}: {len(digests):,} pairs of {sets[part].name}; the training text has the "
            f"sources of {num_shared:,} of them too"
        )
        if num_shared > MANY_SHARED * len(digests):
            say(
                f"WARNING: scores of this {part} set will be too good. Remove its pairs from the "
                f"training text, or omit `{part}`: a share is then set aside."
            )
    return survey, {part: len(digests) for part, digests in of_part.items()}


def _measure(
    choice: ChosenSettings, sample: Pairs, num_validation: int, device: Device, say: Say
) -> tuple[ChosenSettings, list[str]]:
    """Settings that fit the memory, and an estimate of time and memory. Ctrl-C leaves it out."""
    say("taking a few steps to estimate time and memory; Ctrl-C leaves this out")
    num_validation = min(num_validation, choice.config.train.eval_sentences or num_validation)
    try:
        doing = "still compiling or taking steps after {:.0f} s".format
        with interrupts.left_to_caller(), waiting.reminded(doing, say):
            estimate = estimate_run(
                choice.config, sample, num_validation, choice.tokens.most, device.memory
            )
    except KeyboardInterrupt:
        return choice, ["time and memory: not measured"]
    reasons = {"train.accumulate_steps": "Parts of a step, one after the other, to fit the memory."}
    choice = dataclasses.replace(choice, config=estimate.config, reasons=choice.reasons)
    if estimate.config.train.accumulate_steps > 1:
        choice = dataclasses.replace(choice, reasons=choice.reasons | reasons)
    return choice, describe_estimate(estimate, device.memory)


def _next_commands(folder: Path, sets: Mapping[str, Corpus], data: DataConfig) -> list[str]:
    """Commands that train, evaluate and translate, to paste."""
    workdir, read = shlex.quote(str(folder)), ""
    files: Sequence[paths.PathLike] = (folder / DATA / f"test.{data.source_lang}",)
    if test := sets.get("test"):
        first = test.parts[0] if test.parts else test  # of a pattern
        files = first.files or (f"text.{data.source_lang}",)  # of the user: not Parquet
    file = shlex.quote(os.fspath(files[0]))
    given = f" --input={file}"
    if os.fspath(files[0]).endswith(text_corpora.COLUMNS):
        unpack = UNPACK.get(os.path.splitext(files[0])[1], "cat")
        read, given = f"{unpack} {file} | cut -f 1 | ", ""
    output = shlex.quote(str(folder / f"test.{data.target_lang}"))
    return [
        f"  transformer-jax train --config={shlex.quote(str(folder / RECIPE))} --workdir={workdir}",
        f"  transformer-jax eval --workdir={workdir}",
        f"  {read}transformer-jax decode --workdir={workdir}{given} --output={output}",
    ]


_COLUMNS = 100


def recipe_text(
    config: Config, head: str, reasons: Mapping[str, str], code: Mapping[str, str]
) -> str:
    """The file as text; `get_config()` in it returns `config`.

    Settings that have their default value and no reason are left out.

    Args:
      config: what the recipe returns.
      head: the file's docstring, without quotation marks.
      reasons: path of a setting, such as `model.d_model` -> comment. Neighbours with the same
        comment share it.
      code: path of a setting -> Python expression that is written instead of its value. `HERE` in
        it is the folder of the recipe.
    """
    sections: dict[str, list[str]] = {"": []}
    last_reason: dict[str, str] = {}
    for setting in all_settings(Config):
        reason = reasons.get(setting.path, "")
        if setting.value(config) == setting.default and not reason and setting.path not in code:
            continue
        section, _, name = setting.path.rpartition(".")
        lines = sections.setdefault(section, [])
        if reason != last_reason.get(section):
            lines += [f"# {line}" for line in textwrap.wrap(reason, _COLUMNS - 14)]
        last_reason[section] = reason
        lines.append(f"{name}={code.get(setting.path) or _literal(setting, config)},")
    classes = {
        field.name: field.type.__name__ for field in _section_fields() if sections.get(field.name)
    }
    body = [f"        {line}" for line in sections[""]]
    for section, class_name in classes.items():
        body += [f"        {section}={class_name}("]
        body += [f"            {line}" for line in sections[section]] + ["        ),"]
    imports = ["from transformer_jax.config import ("]
    imports += [f"    {name}," for name in sorted(["Config", *classes.values()])] + [")"]
    uses_here = any("HERE" in expression for expression in code.values())
    parts = [f'"""{_escaped(head.strip())}\n"""', ""]
    if uses_here:
        parts += ["from pathlib import Path", ""]
    parts += imports
    if uses_here:
        parts += ["", "HERE = Path(__file__).resolve().parent"]
    parts += ["", "", "def get_config() -> Config:", "    return Config(", *body, "    )", ""]
    return "\n".join(parts)


def _section_fields() -> list[Any]:
    """The fields of `Config` that are sections of settings."""
    return [field for field in dataclasses.fields(Config) if dataclasses.is_dataclass(field.type)]


def _literal(setting: Setting, config: Config) -> str:
    """A setting's value in Python, large numbers with underscores."""
    value = setting.value(config)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:_}"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


def _escaped(text: str) -> str:
    """`text` as it may be written between three quotation marks."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
