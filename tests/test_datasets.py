"""Public data sets: downloads from a local server, and the texts that are made of them."""

import dataclasses
import gzip
import hashlib
import http.server
import io
import re
import tarfile
import threading
from pathlib import Path

import pytest
from absl import flags

from transformer_jax.commands import command_help
from transformer_jax.commands import data as command
from transformer_jax.data import number_words, text_corpora
from transformer_jax.errors import UserError
from transformer_jax.extras.corpora import download, unpacking
from transformer_jax.extras.corpora.dataset import Dataset, Download, Part, Split
from transformer_jax.extras.corpora.tables import DATASETS

ROOT = Path(__file__).parents[1]
LINE_SEPARATOR = "\N{LINE SEPARATOR}"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_tar(files: dict[str, bytes | None], mode: str = "w:gz") -> bytes:
    """An archive; None makes a link to /etc/passwd."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            info.size = len(content or b"")
            archive.addfile(info, io.BytesIO(content or b""))
    return buffer.getvalue()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.files`; the first answers with a name in `server.cut` end after a half."""

    def do_GET(self):
        name, server = self.path.lstrip("/"), self.server
        start = int(self.headers.get("Range", "bytes=0-")[len("bytes=") : -1])
        server.requests.append((name, start))
        content = server.files.get(name)
        if content is None:
            self.send_error(404)
            return
        if not server.supports_ranges:
            start = 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        stop = len(content)
        if name in server.cut:
            server.cut.remove(name)
            stop = (start + stop) // 2
        self.wfile.write(content[start:stop])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.cut, server.requests = {}, [], []
        server.supports_ranges = True
        server.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def served(server, name: str, content: bytes, **fields) -> Download:
    """A file of the server, with its true size and digest unless `fields` say otherwise."""
    server.files[name] = content
    true = Download(name, (server.url + name,), len(content), sha256(content))
    return dataclasses.replace(true, **fields)


def no_lines(_: str) -> None:
    pass


# --- Downloads -----------------------------------------------------------------------------------


def test_download_verifies_and_keeps_the_file(server, tmp_path):
    wanted = served(server, "a.gz", b"content" * 1000)
    lines = []
    for _ in range(2):
        path = download.fetch(wanted, tmp_path / "downloads", lines.append)
    assert path.read_bytes() == b"content" * 1000
    assert [p.name for p in path.parent.iterdir()] == ["a.gz"]
    assert len(server.requests) == len(lines) == 1
    assert f"{server.url}a.gz (7 kB)" in lines[0]


def test_download_with_a_wrong_digest_is_refused_and_not_kept(server, tmp_path):
    wanted = served(server, "a.gz", b"other", sha256="0" * 64)
    with pytest.raises(download.DownloadError) as error:
        download.fetch(wanted, tmp_path, no_lines)
    for words in ("a.gz: has 5 bytes", f"SHA-256 {sha256(b'other')}", "expected " + "0" * 64):
        assert words in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_download_uses_the_next_address_after_a_404_and_a_wrong_file(server, tmp_path):
    wanted = served(server, "right", b"right")
    server.files["wrong"] = b"wrong"
    urls = tuple(server.url + name for name in ("absent", "wrong", "right"))
    wanted = dataclasses.replace(wanted, urls=urls)
    assert download.fetch(wanted, tmp_path, no_lines).read_bytes() == b"right"
    assert [name for name, _ in server.requests] == ["absent", "wrong", "right"]
    with pytest.raises(download.DownloadError, match=r"absent: 404 Not Found; .*wrong: has 5"):
        download.fetch(dataclasses.replace(wanted, urls=urls[:2]), tmp_path / "elsewhere", no_lines)


@pytest.mark.parametrize("supports_ranges", [True, False])
def test_download_that_was_cut_continues_where_it_ended(server, tmp_path, supports_ranges):
    content = bytes(range(256)) * 40
    wanted = served(server, "a", content)
    server.cut, server.supports_ranges = ["a"], supports_ranges
    assert download.fetch(wanted, tmp_path, no_lines).read_bytes() == content
    assert server.requests == [("a", 0), ("a", len(content) // 2)]


def test_download_that_was_interrupted_continues_in_the_next_process(server, tmp_path):
    wanted = served(server, "a", b"0123456789")
    (tmp_path / "a.part").write_bytes(b"01234")
    assert download.fetch(wanted, tmp_path, no_lines).read_bytes() == b"0123456789"
    assert server.requests == [("a", 5)]
    # Of another file: as long as this one, or with another beginning.
    for other in (b"9876543210", b"98765"):
        (tmp_path / "a").unlink(missing_ok=True)
        (tmp_path / "a.part").write_bytes(other)
        wanted = dataclasses.replace(wanted, urls=wanted.urls * 2)
        assert download.fetch(wanted, tmp_path, no_lines).read_bytes() == b"0123456789"


def test_download_that_always_ends_early_names_the_bytes(server, tmp_path):
    wanted = served(server, "a", bytes(1000))
    server.cut = ["a"] * 10
    with pytest.raises(download.DownloadError, match="ended after 875 of 1,000 bytes"):
        download.fetch(wanted, tmp_path, no_lines)
    assert (tmp_path / "a.part").stat().st_size == 875  # the next call continues


def test_file_that_was_placed_by_hand_is_verified(server, tmp_path):
    wanted = Download("a", ("http://127.0.0.1:9/a",), 4, sha256(b"good"))
    (tmp_path / "a").write_bytes(b"good")
    assert download.fetch(wanted, tmp_path, no_lines) == tmp_path / "a"
    (tmp_path / "a").write_bytes(b"evil")
    with pytest.raises(UserError, match=rf"a has 4 bytes and SHA-256 {sha256(b'evil')}, expected"):
        download.fetch(wanted, tmp_path, no_lines)
    assert (tmp_path / "a").read_bytes() == b"evil"  # the user's
    without_digest = dataclasses.replace(wanted, sha256="", num_bytes=5)
    with pytest.raises(UserError, match="a has 4 bytes, expected 5; remove it"):
        download.fetch(without_digest, tmp_path, no_lines)


# --- Texts ---------------------------------------------------------------------------------------

SGML = """<refset setid="x" srclang="any">
<doc docid="1" genre="news">
<hl>
<seg id="1">A &amp; B &lt;i&gt; &quot;c&quot; &#39;d&#x27; R&D &nbsp; 5 < 6</seg>
</hl>
<p><seg id="2"></seg>
<SEG id="3"> two
lines{separator}and one\u00a0more </SEG></p>
</doc></refset>
"""
SEGMENTS = [
    "A & B <i> \"c\" 'd' R&D &nbsp; 5 < 6",
    "",
    f"two lines{LINE_SEPARATOR}and one\u00a0more",
]


def dataset_of(downloads, *splits) -> Dataset:
    return Dataset("about", "page", "licence", "checksums", tuple(downloads), splits, "run {train}")


def read(path) -> list[str]:
    """Lines, split at line feeds only."""
    return path.read_bytes().decode().split("\n")[:-1]


def parallel(archive: str, pattern: str, **fields) -> Part:
    return Part({side: (archive, pattern.format(side)) for side in ("de", "en")}, **fields)


def test_texts_of_archives_are_joined_and_keep_every_line(server, tmp_path):
    first = [f"eins{LINE_SEPARATOR}zwei", "", " drei\t", "vier\r"]
    tar = make_tar(
        {
            "training/a.de-en.de": "\n".join(first).encode(),  # no line feed at the end
            "training/a.de-en.en": b"one two\n\nthree\nfo\0ur\n",
            "training/a.de-en.annotation": b"not wanted",
        }
    )
    inner = make_tar({"b.de.gz": gzip.compress(b"f\n"), "b.en.gz": gzip.compress(b"five\n")}, "w")
    downloads = [served(server, "a.tgz", tar), served(server, "b.tar", inner)]
    parts = (parallel("a.tgz", "training/a.de-en.{}"), parallel("b.tar", "b.{}.gz", num_lines=1))
    unpacking.make_texts("x", dataset_of(downloads, Split("train", parts)), tmp_path, no_lines)
    assert read(tmp_path / "train.de") == [first[0], "", " drei\t", "vier", "f"]
    assert read(tmp_path / "train.en") == ["one two", "", "three", "four", "five"]
    assert {p.name for p in tmp_path.iterdir()} == {
        "downloads",
        "train.de",
        "train.en",
        "SHA256SUMS",
    }
    sums = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert sums[1] == f"{sha256((tmp_path / 'train.en').read_bytes())}  train.en"


def test_texts_of_sgml_have_entities_replaced_and_blank_segments_kept(server, tmp_path):
    sgml = SGML.format(separator=LINE_SEPARATOR).encode()
    tar = make_tar({"dev/src.de.sgm": sgml, "dev/src.en.sgm": sgml})
    part = parallel("dev.tgz", "dev/src.{}.sgm", format="segments", num_lines=3)
    dataset = dataset_of([served(server, "dev.tgz", tar)], Split("test", (part,)))
    unpacking.make_texts("x", dataset, tmp_path, no_lines)
    assert read(tmp_path / "test.de") == SEGMENTS


def test_talks_lose_their_elements_and_every_23rd_pair_is_held_out(server, tmp_path):
    head = "<url>http://x</url>\n<keywords>talks</keywords>\n<talkid>1</talkid>\n"
    head += "<speaker>Al Gore</speaker>\n<title>{0} title</title>\n<description>{0} text"
    head += "</description>\n"
    body = [f" {{0}} {n} &amp; <b>{LINE_SEPARATOR}" for n in range(50)]
    body[7] = ""  # in both languages
    text = head + "\n".join(body) + "\n"
    files = {f"de-en/train.tags.de-en.{side}": text.format(side).encode() for side in ("de", "en")}
    files["de-en/train.tags.de-en.en"] = files["de-en/train.tags.de-en.en"].replace(
        b" en 3 &amp; <b>" + LINE_SEPARATOR.encode(), b""
    )
    content = make_tar(files)
    wanted = served(server, "de-en.tgz", content, sha256="")
    # The lines of the element `speaker` count, as in fairseq's script.
    part = parallel("de-en.tgz", "de-en/train.tags.de-en.{}", format="talks", num_lines=53)
    dataset, lines = dataset_of([wanted], Split("train", (part,), held_out="valid")), []
    unpacking.make_texts("x", dataset, tmp_path, lines.append)
    pairs = ["{} title", "{} text"]
    pairs += [f"{{}} {n} & <b>{LINE_SEPARATOR}" for n in range(50) if n not in (3, 7)]
    for side in ("de", "en"):
        expected = [pair.format(side) for pair in pairs]
        assert read(tmp_path / f"valid.{side}") == [expected[22], expected[45]]
        del expected[45], expected[22]
        assert read(tmp_path / f"train.{side}") == expected
    (line,) = (line for line in lines if "no published checksum" in line.replace("\n", " "))
    assert sha256(content) in line


def test_archive_reads_no_links_and_writes_nothing_outside_the_folder(server, tmp_path):
    outside = tmp_path / "outside.txt"
    tar = make_tar({str(outside): b"x", "../../outside.txt": b"x", "a.de": None, "a.en": b"one\n"})
    dataset = dataset_of(
        [served(server, "a.tgz", tar)], Split("train", (parallel("a.tgz", "a.{}"),))
    )
    with pytest.raises(UserError, match=r"a\.tgz has no file a\.de; it is another archive"):
        unpacking.make_texts("x", dataset, tmp_path / "out" / "in", no_lines)
    assert not outside.exists()
    files = [p.name for p in (tmp_path / "out").rglob("*") if p.is_file()]
    assert files == ["a.tgz"]


@pytest.mark.parametrize(
    ("content", "num_lines", "words"),
    [
        (make_tar({"a.de": b"1\n2\n", "a.en": b"1\n"}), 0, "have different numbers of lines"),
        (make_tar({"a.de": b"1\n", "a.en": b"1\n"}), 2, "has 1 sentences, expected 2"),
        (make_tar({"a.de": b"1\n" * 9999, "a.en": b"1\n" * 9999})[:-40], 0, "damaged"),
        (make_tar({"a.de": b"\xff\n", "a.en": b"1\n"}), 0, "a.de, line 1: invalid UTF-8"),
        (b"<html>sign in</html>", 0, "damaged"),
        (make_tar({"b.de": b""}), 0, "another archive"),
    ],
    # Archives hold the time, and every process of the tests needs the same names.
    ids=["unequal", "fewer", "cut", "encoding", "page", "other"],
)
def test_texts_of_a_wrong_archive_are_refused_and_leave_nothing(
    server, tmp_path, content, num_lines, words
):
    part = parallel("a.tgz", "a.{}", num_lines=num_lines)
    dataset = dataset_of([served(server, "a.tgz", content)], Split("train", (part,)))
    with pytest.raises(UserError, match=re.escape(words)):
        unpacking.make_texts("x", dataset, tmp_path, no_lines)
    assert [p.name for p in tmp_path.iterdir()] == ["downloads"]


def test_texts_are_kept_while_they_are_unchanged(server, tmp_path):
    wanted = served(server, "a.tgz", make_tar({"a.de": b"1\n", "a.en": b"2\n"}))
    dataset = dataset_of([wanted], Split("train", (parallel("a.tgz", "a.{}"),)))
    unpacking.make_texts("x", dataset, tmp_path, no_lines)
    (tmp_path / "downloads" / "a.tgz").unlink()
    unpacking.make_texts("x", dataset, tmp_path, no_lines)
    assert len(server.requests) == 1
    (tmp_path / "train.en").write_text("changed\n")
    with pytest.raises(UserError, match=r"train\.en is there with another content; move it away"):
        unpacking.make_texts("x", dataset, tmp_path, no_lines)
    assert read(tmp_path / "train.en") == ["changed"]
    (tmp_path / "train.en").unlink()
    unpacking.make_texts("x", dataset, tmp_path, no_lines)
    assert read(tmp_path / "train.en") == ["2"]
    assert len(server.requests) == 2
    assert {p.name for p in tmp_path.iterdir()} == {
        "SHA256SUMS",
        "downloads",
        "train.de",
        "train.en",
    }


def test_texts_that_do_not_fit_the_disk_are_one_sentence_and_leave_room(server, small_disk):
    text = b"a line\n" * 300_000  # 2 MB in each language
    wanted = served(server, "a.tgz", make_tar({"a.de": text, "a.en": text}))
    dataset = dataset_of([wanted], Split("train", (parallel("a.tgz", "a.{}"),)))
    with pytest.raises(UserError, match="train cannot be written: No space left on device; the"):
        unpacking.make_texts("x", dataset, small_disk, no_lines)
    assert [p.name for p in small_disk.iterdir()] == ["downloads"]


# --- The command and its table -------------------------------------------------------------------


def test_data_command_without_a_connection_names_files_and_then_uses_them(
    tmp_path, monkeypatch, capsys
):
    content = gzip.compress(b"1\n2\n")
    names = ("train.de.gz", "train.en.gz")
    downloads = [
        Download(name, (f"http://127.0.0.1:9/{name}",), len(content), sha256(content))
        for name in names
    ]
    part = Part({"de": (names[0], ""), "en": (names[1], "")}, num_lines=2)
    dataset = dataset_of(downloads, Split("train", (part,)))
    folder = tmp_path / "my data"
    monkeypatch.setitem(DATASETS, "multi30k", dataset)
    with command_help.defined_flags("data"):
        flags.FLAGS(["data", f"--output={folder}"])
        with pytest.raises(UserError) as error:
            command.run(["multi30k"])
        assert not folder.exists()
        text = str(error.value)
        assert f"put it into {folder / 'downloads'}, and give the same command again:\n" in text
        for name in names:
            assert f"\n  http://127.0.0.1:9/{name}  ({len(content)} bytes, SHA-256 " in text
        (folder / "downloads").mkdir(parents=True)
        for name in names:
            (folder / "downloads" / name).write_bytes(content)
        command.run(["multi30k"])
    assert read(folder / "train.en") == ["1", "2"]
    assert capsys.readouterr().out.endswith(f"next: run '{folder / 'train'}'\n")


def test_data_command_refuses_a_folder_in_a_bucket():
    with command_help.defined_flags("data"):
        flags.FLAGS(["data", "--output=gs://bucket/x"])
        with pytest.raises(UserError, match="made in a local folder"):
            command.run(["wmt14"])


def test_data_command_writes_the_embedded_corpus_without_a_network(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "my numbers"
    sizes = {"train": 1003, "validation": 2, "test": 3}
    monkeypatch.setattr(number_words, "SIZES", sizes)
    with command_help.defined_flags("data"):
        flags.FLAGS(["data", f"--output={folder}"])
        command.run(["number_words"])
    printed = capsys.readouterr().out
    for split, size in sizes.items():
        assert f"{folder / split}.{{en,de,fr,es,cs}}: {size:,} lines each\n" in printed
        for language in ("en", "de", "fr", "es", "cs"):
            assert len(read(folder / f"{split}.{language}")) == size
        assert f"--{split}='{folder / split}' " in printed
    assert read(folder / "train.en")[34] == "thirty-four"
    assert read(folder / "train.de")[34] == "vierunddreißig"
    assert not set(read(folder / "test.en")) & set(read(folder / "train.en"))


def test_missing_text_of_a_public_data_set_names_the_command(tmp_path):
    for folder, hint in (
        (tmp_path / "multi30k", f"`transformer-jax data multi30k --output={tmp_path}/multi30k` f"),
        (tmp_path / "mine", r"a \.tsv file\.$"),
    ):
        with pytest.raises(UserError, match=rf"no file .*{hint}"):
            text_corpora.open_text(str(folder / "train"), "en", "de", "config.data.train")


@pytest.mark.parametrize("name", DATASETS)
def test_dataset_tables_are_complete(name):
    """Each file of a text is downloaded; each download has addresses, and a digest or a reason.

    The page for users has the same digests.
    """
    page = (ROOT / "docs" / "datasets.md").read_text()
    dataset = DATASETS[name]
    downloads = {d.name: d for d in dataset.downloads}
    used = set()
    for split in dataset.splits:
        languages = {tuple(part.files) for part in split.parts}
        assert len(languages) == 1
        used |= {file for part in split.parts for file, _ in part.files.values()}
    assert used == downloads.keys()
    for wanted in downloads.values():
        assert all(url.endswith(f"/{wanted.name}") for url in wanted.urls)
        assert wanted.num_bytes > 0
        if wanted.sha256:
            assert re.fullmatch("[0-9a-f]{64}", wanted.sha256)
            assert len(wanted.urls) >= 2
            if name != "multi30k_tok":
                assert f"\n{wanted.sha256}  {wanted.name}\n" in page
        else:  # nothing else would show that it was changed on its way
            assert "none known" in dataset.checksums
            assert all(url.startswith("https://") for url in wanted.urls)
    names = {split.name for split in dataset.splits} | {split.held_out for split in dataset.splits}
    assert set(re.findall(r"{(\w+)}", dataset.command)) <= names


def test_wmt_digests_are_those_that_tfds_publishes():
    tfds = pytest.importorskip("tensorflow_datasets")

    folder = Path(tfds.__file__).parent / "url_checksums"
    published = {}
    for path in folder.glob("wmt1*_translate.txt"):
        for line in path.read_text().splitlines():
            url, size, digest = line.split("\t")[:3]
            published[url.split("://")[1]] = int(size), digest
    for wanted in DATASETS["wmt14"].downloads:
        (known,) = {
            published[url.split("://")[1]]
            for url in wanted.urls
            if url.split("://")[1] in published
        }
        assert known == (wanted.num_bytes, wanted.sha256)
