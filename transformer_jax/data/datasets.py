"""Public data sets that `transformer-jax data` fetches: where their files are and what they hold.

All of it is data. `download.py` fetches and verifies the files, `unpacking.py` makes texts of them.
"""

import dataclasses
from typing import Literal

Format = Literal["text", "segments", "talks"]


@dataclasses.dataclass(frozen=True)
class Download:
    """A file on the internet.

    Attributes:
      name: of the file in `downloads/`.
      urls: where it is, the first choice first.
      num_bytes: its size.
      sha256: its digest; empty where none is published that this project knows.
    """

    name: str
    urls: tuple[str, ...]
    num_bytes: int
    sha256: str = ""


@dataclasses.dataclass(frozen=True)
class Part:
    """Parallel files: one for each language.

    Attributes:
      files: language -> name of a download, and of the file in it; "" if the download is the file.
      format: text: a sentence a line; segments: SGML or XML with `<seg>` elements; talks: lines of
        text, titles and descriptions among other elements, as in `train.tags.*` of IWSLT.
      num_lines: sentences of each language; 0 where the number is not known.
    """

    files: dict[str, tuple[str, str]]
    format: Format = "text"
    num_lines: int = 0


@dataclasses.dataclass(frozen=True)
class Split:
    """Parallel texts that are written as `NAME.LANGUAGE`: the parts one after the other.

    Attributes:
      name: of the files.
      parts: what they are made of, each with the same languages.
      held_out: name of another split that gets every 23rd pair, as fairseq's scripts do; "" if
        none. Pairs with an empty side are then left out first.
    """

    name: str
    parts: tuple[Part, ...]
    held_out: str = ""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A public data set.

    Attributes:
      about: what it is.
      page: where its authors describe it.
      licence: what they allow.
      checksums: where the digests of its files are published.
      downloads: its files.
      splits: the texts.
      command: the next command to give; `{train}` and so on become paths of splits.
    """

    about: str
    page: str
    licence: str
    checksums: str
    downloads: tuple[Download, ...]
    splits: tuple[Split, ...]
    command: str


# --- Multi30k -----------------------------------------------------------------------------------

_MULTI30K_URLS = (
    "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/",
    "https://github.com/multi30k/dataset/raw/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/",
)
_MULTI30K_SIZES = {
    "train": 29_000,
    "val": 1014,
    "test_2016_flickr": 1000,
    "test_2017_flickr": 1000,
    "test_2017_mscoco": 461,
    "test_2018_flickr": 1071,
}
# Name, bytes and SHA-256 of the files of https://github.com/multi30k/dataset at a3d2e0d26b56.
_MULTI30K_FILES = """
train.cs.gz 593827 a65adb8b32e3bc664f21ecba7a6e7f6950fd1f405e135f7c312faabdb6255077
train.de.gz 637044 726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6
train.en.gz 568929 d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f
train.fr.gz 604242 622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c
val.cs.gz 22096 b63226e05c4bd5dd6a42897d74b86a1b9d2c31498252c572b1ea7f7996927fcc
val.de.gz 24681 f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a
val.en.gz 21650 14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28
val.fr.gz 23001 ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9
test_2016_flickr.cs.gz 22572 200a4a74cc9560f051924abb9803be008d1908d77f747e9141aeb86dfd2797f1
test_2016_flickr.de.gz 22890 9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8
test_2016_flickr.en.gz 21077 611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9
test_2016_flickr.fr.gz 22310 6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90
test_2017_flickr.de.gz 21471 a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee
test_2017_flickr.en.gz 19138 76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074
test_2017_flickr.fr.gz 20434 3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496
test_2017_mscoco.de.gz 10230 799e4854c25d601cb6cb6be29eabe5667734c61ace2f495e03e429031a0bc338
test_2017_mscoco.en.gz 8844 aab300bfb4427697987e02cd0aacd44bfe8aa50456231b6474c08038bbed2b58
test_2017_mscoco.fr.gz 9751 754f3072ba9f124569ba5258b32730fc1d214bbf8e0c6dfb2b74401676220db0
test_2018_flickr.cs.gz 25181 7d0a9db904f94c554a8c58049a9f3a5357c27f46cc3d710d70cb0b4a2585b8c2
test_2018_flickr.de.gz 26461 ddd0130c7d97482dc5197a02141dae8dd79f20f03586c480d675c09a32daf608
test_2018_flickr.en.gz 23514 ef4f4844037d4c5dea75c9a8ed5fd78905967a26f67c255e230cc9780032654d
test_2018_flickr.fr.gz 25321 fb2b83fcceb937a4f7e3e93c1c51c22aba92f1e342391e6b5ba392b16a920501
"""
_MULTI30K_DOWNLOADS = tuple(
    Download(name, tuple(f"{url}{name}" for url in _MULTI30K_URLS), int(size), digest)
    for name, size, digest in map(str.split, _MULTI30K_FILES.strip().splitlines())
)


def _multi30k_split(name: str, num_lines: int) -> Split:
    names = [download.name for download in _MULTI30K_DOWNLOADS]
    by_language = {file.split(".")[1]: (file, "") for file in names if file.startswith(f"{name}.")}
    return Split(name, (Part(by_language, num_lines=num_lines),))


MULTI30K = Dataset(
    about="captions of photographs in English, German, French and Czech",
    page="https://github.com/multi30k/dataset",
    licence="see its page; the English captions are those of Flickr30k, for research",
    checksums="the files of https://github.com/multi30k/dataset at commit a3d2e0d26b56",
    downloads=_MULTI30K_DOWNLOADS,
    splits=tuple(_multi30k_split(name, lines) for name, lines in _MULTI30K_SIZES.items()),
    command="transformer-jax train --config=multi30k --workdir=runs/multi30k "
    "--config.data.train={train} --config.data.validation={val} "
    "--config.data.test={test_2016_flickr}",
)

# --- WMT 2014 -----------------------------------------------------------------------------------

# Sizes and digests: tensorflow_datasets/url_checksums/wmt14_translate.txt and wmt13_translate.txt.
_EUROPARL = Download(
    "training-parallel-europarl-v7.tgz",
    (
        "https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
        "http://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
    ),
    657_632_379,
    "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)
_COMMON_CRAWL = Download(
    "training-parallel-commoncrawl.tgz",
    (
        "https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
        "http://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
    ),
    918_311_367,
    "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)
_NEWS_COMMENTARY = Download(
    "training-parallel-nc-v9.tgz",
    (
        "https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",
        "http://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",
    ),
    80_418_416,
    "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
)
_UNITED_NATIONS = Download(
    "training-parallel-un.tgz",
    (
        "https://www.statmt.org/wmt13/training-parallel-un.tgz",
        "http://www.statmt.org/wmt13/training-parallel-un.tgz",
    ),
    2_365_634_246,
    "29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47",
)
_GIGA = Download(
    "training-giga-fren.tar",
    (
        "https://www.statmt.org/wmt10/training-giga-fren.tar",
        "http://www.statmt.org/wmt10/training-giga-fren.tar",
    ),
    2_595_102_720,
    "3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a",
)
_NEWS_TESTS = Download(
    "dev.tgz",
    (
        "https://data.statmt.org/wmt19/translation-task/dev.tgz",
        "http://data.statmt.org/wmt19/translation-task/dev.tgz",
    ),
    38_654_961,
    "7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7",
)


def _wmt_part(download: Download, pattern: str, language: str) -> Part:
    """A corpus of `language` and English; `{pair}` and `{side}` of the file's name vary."""
    return Part(
        {
            side: (download.name, pattern.format(pair=f"{language}-en", side=side))
            for side in (language, "en")
        }
    )


def _wmt_splits(language: str, more: tuple[Part, ...] = ()) -> tuple[Split, ...]:
    test = f"dev/newstest2014-{language}en"
    return (
        Split(
            "train",
            (
                _wmt_part(_EUROPARL, "training/europarl-v7.{pair}.{side}", language),
                _wmt_part(_COMMON_CRAWL, "commoncrawl.{pair}.{side}", language),
                *more,
                _wmt_part(_NEWS_COMMENTARY, "training/news-commentary-v9.{pair}.{side}", language),
            ),
        ),
        Split(
            "newstest2013",
            (
                Part(
                    {
                        side: (_NEWS_TESTS.name, f"dev/newstest2013.{side}")
                        for side in (language, "en")
                    },
                    num_lines=3000,
                ),
            ),
        ),
        Split(
            "newstest2014",
            (
                Part(
                    {
                        language: (_NEWS_TESTS.name, f"{test}-src.{language}.sgm"),
                        "en": (_NEWS_TESTS.name, f"{test}-ref.en.sgm"),
                    },
                    "segments",
                    num_lines=3003,
                ),
            ),
        ),
    )


def _wmt_command(recipe: str, name: str) -> str:
    return (
        f"transformer-jax train --config={recipe} --workdir=runs/{name} "
        "--config.data.source=files --config.data.train={train} "
        "--config.data.validation={newstest2013} --config.data.test={newstest2014}"
    )


_WMT_PAGE = "https://www.statmt.org/wmt14/translation-task.html"
_WMT_LICENCE = "for research; see its page and those of the corpora"
_WMT_CHECKSUMS = "tensorflow_datasets/url_checksums (wmt13_translate.txt, wmt14_translate.txt)"

WMT14 = Dataset(
    about="WMT 2014 English-German: Europarl v7, Common Crawl, News Commentary v9",
    page=_WMT_PAGE,
    licence=_WMT_LICENCE,
    checksums=_WMT_CHECKSUMS,
    downloads=(_EUROPARL, _COMMON_CRAWL, _NEWS_COMMENTARY, _NEWS_TESTS),
    splits=_wmt_splits("de"),
    command=_wmt_command("wmt14_en_de_base", "wmt14"),
)
WMT14_EN_FR = Dataset(
    about="WMT 2014 English-French: the same, with the United Nations and Giga corpora",
    page=_WMT_PAGE,
    licence=_WMT_LICENCE,
    checksums=_WMT_CHECKSUMS,
    downloads=(_EUROPARL, _COMMON_CRAWL, _UNITED_NATIONS, _GIGA, _NEWS_COMMENTARY, _NEWS_TESTS),
    splits=_wmt_splits(
        "fr",
        (
            _wmt_part(_UNITED_NATIONS, "un/undoc.2000.{pair}.{side}", "fr"),
            _wmt_part(_GIGA, "giga-fren.release2.fixed.{side}.gz", "fr"),
        ),
    ),
    command=_wmt_command("wmt14_en_fr_big", "wmt14_fr"),
)

# --- IWSLT 2014 ---------------------------------------------------------------------------------

_IWSLT = "de-en.tgz"


def _iwslt_test(name: str, num_lines: int) -> Part:
    files = {side: (_IWSLT, f"de-en/IWSLT14.{name}.de-en.{side}.xml") for side in ("de", "en")}
    return Part(files, "segments", num_lines)


IWSLT14 = Dataset(
    about="IWSLT 2014 German-English: subtitles of TED talks",
    page="https://wit3.fbk.eu/2014-01",
    licence="Creative Commons BY-NC-ND, as the talks",
    checksums="none known: checked by its size and numbers of lines",
    downloads=(
        Download(
            _IWSLT,
            (
                "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
                "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
            ),
            19_982_877,
        ),
    ),
    splits=(
        Split(
            "train",
            (
                Part(
                    {side: (_IWSLT, f"de-en/train.tags.de-en.{side}") for side in ("de", "en")},
                    "talks",
                    174_443,
                ),
            ),
            held_out="valid",
        ),
        Split(  # in the order of fairseq's prepare-iwslt14.sh, which makes one test set of them
            "test",
            (
                _iwslt_test("TED.dev2010", 887),
                _iwslt_test("TEDX.dev2012", 1165),
                _iwslt_test("TED.tst2010", 1565),
                _iwslt_test("TED.tst2011", 1433),
                _iwslt_test("TED.tst2012", 1700),
            ),
        ),
    ),
    command="transformer-jax init --train={train} --source_lang=de --target_lang=en "
    "--workdir=runs/iwslt14",
)

DATASETS = {"multi30k": MULTI30K, "iwslt14": IWSLT14, "wmt14": WMT14, "wmt14_en_fr": WMT14_EN_FR}
