"""The public data sets that `transformer-jax data` fetches: addresses, sizes, SHA-256, texts."""

import shlex

from transformer_jax.extras.corpora.dataset import Dataset, Download, Part, Split


def _both(address: str) -> tuple[str, ...]:
    return f"https://{address}", f"http://{address}"


# --- Multi30k -----------------------------------------------------------------------------------

_MULTI30K_URLS = (
    "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/",
    "https://github.com/multi30k/dataset/raw/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/",
)
_MULTI30K_SIZES = {
    "train": 29_000,
    "val": 1014,
    "test_2016_flickr": 1000,
    "test_2017_flickr": 1000,
    "test_2017_mscoco": 461,
    "test_2018_flickr": 1071,
}
# Split, language, bytes and SHA-256 of files of https://github.com/multi30k/dataset at commit
# a3d2e0d26b56.
_MULTI30K_RAW = """
train.cs 593827 a65adb8b32e3bc664f21ecba7a6e7f6950fd1f405e135f7c312faabdb6255077
train.de 637044 726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6
train.en 568929 d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f
train.fr 604242 622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c
val.cs 22096 b63226e05c4bd5dd6a42897d74b86a1b9d2c31498252c572b1ea7f7996927fcc
val.de 24681 f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a
val.en 21650 14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28
val.fr 23001 ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9
test_2016_flickr.cs 22572 200a4a74cc9560f051924abb9803be008d1908d77f747e9141aeb86dfd2797f1
test_2016_flickr.de 22890 9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8
test_2016_flickr.en 21077 611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9
test_2016_flickr.fr 22310 6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90
test_2017_flickr.de 21471 a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee
test_2017_flickr.en 19138 76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074
test_2017_flickr.fr 20434 3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496
test_2017_mscoco.de 10230 799e4854c25d601cb6cb6be29eabe5667734c61ace2f495e03e429031a0bc338
test_2017_mscoco.en 8844 aab300bfb4427697987e02cd0aacd44bfe8aa50456231b6474c08038bbed2b58
test_2017_mscoco.fr 9751 754f3072ba9f124569ba5258b32730fc1d214bbf8e0c6dfb2b74401676220db0
test_2018_flickr.cs 25181 7d0a9db904f94c554a8c58049a9f3a5357c27f46cc3d710d70cb0b4a2585b8c2
test_2018_flickr.de 26461 ddd0130c7d97482dc5197a02141dae8dd79f20f03586c480d675c09a32daf608
test_2018_flickr.en 23514 ef4f4844037d4c5dea75c9a8ed5fd78905967a26f67c255e230cc9780032654d
test_2018_flickr.fr 25321 fb2b83fcceb937a4f7e3e93c1c51c22aba92f1e342391e6b5ba392b16a920501
"""
_MULTI30K_TOK = """
train.cs 1791955 7645fb91efa18f94c83d493f740a5d5a941e4b01efa6a124bf2d4af040e133e0
train.de 2150008 cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505
train.en 1837696 08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119
train.fr 2235588 8fa41bb718412bcb7c5dfa58603842810a01543eae86a51279f9886b901266e1
val.cs 61492 b87ee4917f4a0f9ca6cca03e402026c9f4437dc1bd6a7dadfd2544ecfb6c5501
val.de 77273 97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00
val.en 64608 46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec
val.fr 78242 b303e301aa21fe7822a846b2b3fb2d5a1121ec807cd5b1d006fb7b2b5507168a
test_2016_flickr.cs 63566 748c8816de928732365176e5c5d2f9bbabcec9b8d4448fba2d230feb057898a7
test_2016_flickr.de 71917 c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4
test_2016_flickr.en 63307 5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2
test_2016_flickr.fr 76394 1463bd5960f9bfe098ec3cd752d3df0c49c84dc646fb518964a29232658cd836
test_2017_flickr.de 65228 02067e4a9402786a4fcb8c1b6f4307e4a5073ced64800abead5273b54f5f31f6
test_2017_flickr.en 56123 c9d1dfd7a26add989382e534af235af9f0f658b2a30e7eb0efdaf142496ee54f
test_2017_flickr.fr 69537 c0583117a47b31e8a6c6a97cfe8de153e462074668f4e994764fcc80b21d33b4
test_2017_mscoco.de 30464 e2825990b8a4e5289d2cdba801d57c187810bab9b4f5d87a30c35800a0d871b6
test_2017_mscoco.en 25380 fe69ae004d71c42ead0301e70c57de5b1b6b5fb7f52210d42b22801e98e656f3
test_2017_mscoco.fr 31725 0b6a4620f02b6b9acf7811fda23f90fed9c6baa0b96aa224db50a273078c84d1
test_2018_flickr.cs 70515 09a4987a524dea4852ccfef35329281b2cd577780691b732341ccecc4015aa4c
test_2018_flickr.de 82274 45ce6b121708adf538d3a8c71dc1acbcb1e0f2bca74ace8e58652f9ea5b96335
test_2018_flickr.en 71617 a66e25cbb8323d74a40873dcd222659f39e30ee7687a6ed5445833aed0673239
test_2018_flickr.fr 90128 22d44a4ba21e050f218399f2c4f9e1a36875f209820c1f1c9af5b76a2947a71c
"""


def _multi30k(kind: str, name: str, files: str, about: str) -> Dataset:
    """The files of `data/task1/KIND`, whose names are `name` with a split and a language."""
    downloads, by_split = [], dict[str, dict[str, tuple[str, str]]]()
    for row in files.strip().splitlines():
        text, size, digest = row.split()
        split, language = text.split(".")
        file = name.format(split=split, language=language)
        urls = tuple(f"{url}{kind}/{file}" for url in _MULTI30K_URLS)
        downloads.append(Download(file, urls, int(size), digest))
        by_split.setdefault(split, {})[language] = (file, "")
    recipe = "multi30k" if kind == "raw" else f"multi30k_{kind}"
    return Dataset(
        about=about,
        page="https://github.com/multi30k/dataset",
        licence="see its page; the English captions are those of Flickr30k, for research",
        checksums="the files of https://github.com/multi30k/dataset at commit a3d2e0d26b56",
        downloads=tuple(downloads),
        splits=tuple(
            Split(split, (Part(by_language, num_lines=_MULTI30K_SIZES[split]),))
            for split, by_language in by_split.items()
        ),
        command=f"transformer-jax train --config={recipe} --workdir=runs/{recipe} "
        "--config.data.train={train} --config.data.validation={val} "
        "--config.data.test={test_2016_flickr}",
    )


MULTI30K = _multi30k(
    "raw",
    "{split}.{language}.gz",
    _MULTI30K_RAW,
    "captions of photographs in English, German, French and Czech",
)
MULTI30K_TOK = _multi30k(
    "tok",
    "{split}.lc.norm.tok.{language}",
    _MULTI30K_TOK,
    "those captions lower-cased and tokenised, as papers measure it",
)

# --- WMT 2014 -----------------------------------------------------------------------------------

# Sizes and digests: tensorflow_datasets/url_checksums/wmt14_translate.txt and wmt13_translate.txt.
_EUROPARL = Download(
    "training-parallel-europarl-v7.tgz",
    _both("www.statmt.org/wmt13/training-parallel-europarl-v7.tgz"),
    657_632_379,
    "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)
_COMMON_CRAWL = Download(
    "training-parallel-commoncrawl.tgz",
    _both("www.statmt.org/wmt13/training-parallel-commoncrawl.tgz"),
    918_311_367,
    "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)
_NEWS_COMMENTARY = Download(
    "training-parallel-nc-v9.tgz",
    _both("www.statmt.org/wmt14/training-parallel-nc-v9.tgz"),
    80_418_416,
    "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
)
_NEWS_TESTS = Download(
    "dev.tgz",
    _both("data.statmt.org/wmt19/translation-task/dev.tgz"),
    38_654_961,
    "7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7",
)


def _wmt_part(download: Download, pattern: str) -> Part:
    return Part({side: (download.name, pattern.format(side)) for side in ("de", "en")})


_NEWSTEST2014 = {"de": "dev/newstest2014-deen-src.de.sgm", "en": "dev/newstest2014-deen-ref.en.sgm"}

WMT14 = Dataset(
    about="WMT 2014 English-German: Europarl v7, Common Crawl, News Commentary v9",
    page="https://www.statmt.org/wmt14/translation-task.html",
    licence="for research; see its page and those of the corpora",
    checksums="tensorflow_datasets/url_checksums (wmt13_translate.txt, wmt14_translate.txt)",
    downloads=(_EUROPARL, _COMMON_CRAWL, _NEWS_COMMENTARY, _NEWS_TESTS),
    splits=(
        Split(
            "train",
            (
                _wmt_part(_EUROPARL, "training/europarl-v7.de-en.{}"),
                _wmt_part(_COMMON_CRAWL, "commoncrawl.de-en.{}"),
                _wmt_part(_NEWS_COMMENTARY, "training/news-commentary-v9.de-en.{}"),
            ),
        ),
        Split(
            "newstest2013",
            (
                Part(
                    {side: (_NEWS_TESTS.name, f"dev/newstest2013.{side}") for side in ("de", "en")},
                    num_lines=3000,
                ),
            ),
        ),
        Split(
            "newstest2014",
            (
                Part(
                    {side: (_NEWS_TESTS.name, file) for side, file in _NEWSTEST2014.items()},
                    "segments",
                    num_lines=3003,
                ),
            ),
        ),
    ),
    command="transformer-jax train --config=wmt14_en_de_base --workdir=runs/wmt14 "
    "--config.data.source=files --config.data.train={train} "
    "--config.data.validation={newstest2013} --config.data.test={newstest2014}",
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
            # Not over HTTP: no digest would show that it was changed on its way.
            ("https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",),
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
    command="transformer-jax init --train={train} --validation={valid} --test={test} "
    "--source_lang=de --target_lang=en --workdir=runs/iwslt14",
)

DATASETS = {
    "multi30k": MULTI30K,
    "multi30k_tok": MULTI30K_TOK,
    "iwslt14": IWSLT14,
    "wmt14": WMT14,
}


def fetch_hint(prefix: str) -> str:
    """The command that fetches a missing text whose folder is named as a data set; else empty."""
    folder, _, _ = prefix.rpartition("/")
    name = folder.rpartition("/")[2]
    if name not in DATASETS:
        return ""
    return f" `transformer-jax data {name} --output={shlex.quote(folder)}` fetches the data set."
