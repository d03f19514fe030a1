"""Paths as users write them are expanded once, for every part of a command."""

import contextlib
import dataclasses
import importlib.util

import pytest
from absl import flags

from configs import tiny
from tests.conftest import begin_run, run_command, tiny_config
from transformer_jax import Translator, paths
from transformer_jax.commands import command_help, corpus_translation, main
from transformer_jax.config import Config, all_settings, split_paths
from transformer_jax.data import text_corpora
from transformer_jax.errors import UserError
from transformer_jax.translator import pretrained
from transformer_jax.workdir import folder as workdir_lib


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return str(tmp_path)


def test_expand_replaces_home_folders_only(home):
    assert paths.expand("~") == home
    assert paths.expand("~/a/~b") == f"{home}/a/~b"
    for kept in ("a/~/b", "/a", "", "-", "gs://bucket/~x", "./~x"):
        assert paths.expand(kept) == kept
    with pytest.raises(UserError, match=r"--input=~no-user/x: ~no-user is no user.*\./~no"):
        paths.expand("~no-user/x", "--input")


def test_expand_config_expands_every_path(home):
    config = tiny.get_config()
    config.data.source, config.data.train = "files", "~/a, ~/b.tsv"
    config.data.validation, config.data.test = "~/v", "plain"
    config.data.tokenizer_model, config.data.cache_dir = "~/s.model,t.model", "~/cache,1"
    config.data.data_dir, config.train.init_from = "~/tfds", "~/base"
    expanded = paths.expand_config(config)
    assert (expanded.data.train, expanded.data.validation) == (
        f"{home}/a,{home}/b.tsv",
        f"{home}/v",
    )
    assert (expanded.data.test, expanded.data.tokenizer_model) == (
        "plain",
        f"{home}/s.model,t.model",
    )
    assert (expanded.data.cache_dir, expanded.data.data_dir) == (f"{home}/cache,1", f"{home}/tfds")
    assert expanded.train.init_from == f"{home}/base"
    assert config.data.train == "~/a, ~/b.tsv"  # the caller's config is unchanged


def test_path_settings_are_complete():
    """By the names of all text settings."""
    words, names = (
        {"dir", "path", "file", "from"},
        ["tokenizer_model", "train", "validation", "test"],
    )
    named_as_paths = set()
    for setting in all_settings(Config):
        name = setting.path.rpartition(".")[2]
        if setting.type is str and (name in names or words & set(name.split("_"))):
            named_as_paths.add(setting.path)
    config = tiny.get_config()
    config.data.source = "files"
    assert named_as_paths == {setting.path for setting in paths._path_settings(config)}


def test_path_flags_are_complete_and_expanded(home):
    words = (
        "file",
        "folder",
        "director",
        "where the translations",
        "text, one sentence",
        "text: path",
        "set, files as",
        "further models",
        "source text to check",
    )
    others = {"config", "report", "distributed", "allow_pickle", "metrics", "source_lang"}
    others.add("model")  # of `serve` NAME=DIR, which `Translator.load` expands
    for command in main.COMMANDS:
        with command_help.defined_flags(command) as defined:
            places = {f.name for f in defined if any(word in f.help.lower() for word in words)}
            places -= others
            path_flags = {f.name for f in defined if command_help.is_path(f)}
            assert ("model" in path_flags) == (command == "translate-corpus")
            assert places == path_flags - {"model"}, command
    with command_help.defined_flags("decode"):
        flags.FLAGS(["x", "--input=~/in", "--ensemble=~/a@best,b@3", "--workdir=~/run"])
        main._expand_paths()
        assert (flags.FLAGS.input, flags.FLAGS.output) == (f"{home}/in", "-")
        assert flags.FLAGS.ensemble == [f"{home}/a@best", "b@3"]
        assert flags.FLAGS.workdir == f"{home}/run"


def test_train_uses_one_folder_for_any_spelling_of_its_path(home, tmp_path, monkeypatch):
    """Before, `~/x` held lock and checkpoints, `./~/x` config and tokenizer."""
    from tests.conftest import tiny_config
    from transformer_jax.training.loop import train

    monkeypatch.chdir(tmp_path)
    config = tiny_config(tmp_path, num_steps=2, eval_every_steps=0)
    assert train(config, "~/run")
    assert not (tmp_path / "~").exists()
    assert workdir_lib.has_checkpoints(tmp_path / "run")
    assert workdir_lib.read_config(tmp_path / "run").train.num_steps == 2
    changed = dataclasses.replace(config, model=dataclasses.replace(config.model, d_ff=48))
    with pytest.raises(UserError, match=r"config\.model\.d_ff was .*, is 48"):
        train(changed, "~/run")


def test_require_refuses_paths_that_cannot_be_opened(monkeypatch):
    with pytest.raises(UserError, match="--output=s3://b/x: only local paths and gs://"):
        paths.require("s3://b/x", "--output")
    with pytest.raises(UserError, match="--workdir=gs:/b/x: a path in a bucket begins with gs://"):
        paths.require("gs:/b/x", "--workdir")
    original = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == "gcsfs" else original(name, *a),
    )
    with pytest.raises(UserError, match=r"pip install 'gcsfs>="):
        paths.require("gs://bucket/run", "--workdir")
    paths.require("runs/mine")


@pytest.mark.parametrize("is_folder", [False, True])
def test_new_path_is_there_when_it_is_complete_and_errors_leave_nothing(tmp_path, is_folder):
    def write(path, text):
        if is_folder:
            path.mkdir()
        (path / "file" if is_folder else path).write_text(text)

    target = tmp_path / "target"
    for path in (target, tmp_path / "new" / "folder" / "target"):
        with contextlib.suppress(KeyboardInterrupt), paths.new_path(path) as temporary:
            write(temporary, "half")
            raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    with paths.new_path(target) as temporary:
        write(temporary, "first")
        assert not target.exists()
        assert list(tmp_path.glob(paths.TEMPORARY)) == [temporary]
    assert list(tmp_path.iterdir()) == [target]
    # A file replaces the former one. A folder with something in it is not replaced.
    expected = pytest.raises(OSError) if is_folder else contextlib.nullcontext()
    with expected, paths.new_path(target) as temporary:
        write(temporary, "second")
    with paths.new_path(target, is_cache=True) as temporary:
        write(temporary, "third")
    content = (target / "file" if is_folder else target).read_text()
    assert content == ("first" if is_folder else "third")
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("name", ["folder", ".", "../folder", "link"])
def test_new_path_fills_an_empty_folder_without_replacing_it(name, tmp_path, monkeypatch):
    """As a mount point and the current folder of a shell need it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    number = folder.stat().st_ino
    monkeypatch.chdir(tmp_path if name in ("folder", "link") else folder)
    expected = pytest.raises(OSError, match="not empty")
    with expected, paths.new_path(name) as temporary:
        temporary.mkdir()
        (folder / "other").touch()
    (folder / "other").unlink()  # was kept
    assert not list(folder.iterdir())
    with paths.new_path(name) as temporary:
        (temporary / "inside").mkdir(parents=True)
        (temporary / "inside/file").write_text("text")
    assert (folder / "inside/file").read_text() == "text"
    assert [path.name for path in folder.iterdir()] == ["inside"]
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "link"}
    assert folder.stat().st_ino == number


# What shells, globs, lists, URLs and formats read as more than a name.
ANY_NAME = "a[b]*? en,de 'q' \"u\" @x:1%#"


def test_folders_of_any_name_hold_texts_runs_and_bundles(tmp_path):
    folder = tmp_path / ANY_NAME
    folder.mkdir()
    begin_run(tiny_config(folder), folder / "run")
    assert Translator.load(folder / "run").checkpoint_step == 0
    model = f"--workdir={folder}/run"
    done = run_command("bundle", model, f"--output={folder}/m.bundle", "--licence=cc0-1.0")
    assert done.returncode == 0, done.stderr
    assert pretrained.read_config(f"{folder}/m.bundle").model.d_model == 16
    # A name that is there is no pattern; in the folder there may be one.
    (file,) = corpus_translation.find_files(f"{folder}/test.en", str(tmp_path))
    assert str(file.source) == f"{folder}/test.en"
    corpus = text_corpora.open_text(f"{folder}/t????", "en", "de", "train")
    assert corpus.count() == 400
    (folder / "one*.tsv").write_text("a\tb\n")
    (folder / "one more.tsv").write_text("c\td\n")
    for name, pairs in (("one*.tsv", [("a", "b")]), ("one?more.tsv", [("c", "d")])):
        assert list(text_corpora.open_text(f"{folder}/{name}", "en", "de", "x").read()) == pairs


def test_paths_with_commas_are_split_where_the_whole_is_not_there(tmp_path):
    (tmp_path / "a,b").mkdir()
    for name in ("a,b/c.en", "d,e,f.de", "g"):
        (tmp_path / name).write_text("")
    for value, parts in (
        ("g", ["g"]),
        ("g, a,b/c", ["g", "a,b/c"]),
        ("a,b,g", ["a,b", "g"]),
        ("d,e,f,d,e,f@best", ["d,e,f", "d,e,f@best"]),
        ("d,e", ["d", "e"]),
        ("x,,y", ["x", "", "y"]),
    ):
        absolute = [f"{tmp_path}/{part}" if part else "" for part in parts]
        assert split_paths(",".join(absolute)) == absolute, value
    assert split_paths("gs://a/b, c") == ["gs://a/b", "c"]
