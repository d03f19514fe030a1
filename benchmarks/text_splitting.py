"""Compares libraries that split text into sentences, on cases whose sentences are known.

    pip install sentencex pysbd syntok blingfire sentence-splitter
    python benchmarks/text_splitting.py

A case is right if all of its sentences are. `ours` is `extras.documents.sentences`. Libraries that
are not installed, or do not know a language, are left out there.
"""

import collections
import importlib.util
import re
import statistics
import time
from collections.abc import Callable, Iterator

from absl import app, flags

from transformer_jax.extras.documents import sentences

FLAGS = flags.FLAGS
flags.DEFINE_bool("show", False, "Show each case that a library gets wrong.")
SEPARATOR = " | "  # between the sentences of a case; in scripts without spaces it is nothing
# (kind, language, sentences with `SEPARATOR` between them)
CASES = [
    ("plain", "en", "A dog runs. | The cat sleeps."),
    ("plain", "en", "Is it late? | Yes! | Let us go."),
    ("plain", "en", "I said no. | She left."),
    ("plain", "en", "People are admiring a work of art. | A dog sleeps."),
    ("plain", "en", "He fell ill. | He died in May. | It was in Dec. | No one came."),
    ("plain", "en", "It was a hit and a miss. | They tried again."),
    ("plain", "en", "They found ore. | The mine grew."),
    ("plain", "en", "Look at the fig. | It is ripe."),
    ("plain", "en", "Wait… | Is that all?"),
    ("plain", "de", "Ein Hund rennt. | Die Katze schläft."),
    ("plain", "de", "Er kam am Abend. | Sie war schon weg. | Niemand lachte!"),
    ("plain", "de", "Das ist gut so. | Es geht weiter."),
    ("plain", "fr", "Un chien court. | Le chat dort. | Où est-il ?"),
    ("plain", "es", "Un perro corre. | ¿Dónde está el gato? | ¡Aquí!"),
    ("plain", "ru", "Собака бежит. | Кошка спит. | Где она?"),
    ("plain", "it", "Un cane corre. | Il gatto dorme."),
    ("plain", "cs", "Pes běží. | Kočka spí. | Kde je?"),
    ("plain", "el", "Ο σκύλος τρέχει. | Πού είναι η γάτα;"),
    ("abbreviations", "en", "Dr. Smith met Mr. Jones at 3 p.m. on Monday. | They talked."),
    ("abbreviations", "en", "She works for Acme Inc. in Boston. | He does not."),
    ("abbreviations", "en", "Fruit, e.g. apples, is good. | Other food, i.e. bread, is too."),
    ("abbreviations", "en", "J. K. Rowling wrote it. | I read it."),
    ("abbreviations", "en", "The U.S. government said so. | No one agreed."),
    ("abbreviations", "en", "See Fig. 3 and Sec. 2. | Both are new."),
    ("abbreviations", "en", "Prof. Lee and Gen. Grant met St. Peter. | It was odd."),
    ("abbreviations", "en", "It costs approx. 5 dollars. | That is cheap."),
    ("abbreviations", "en", "No. 5 is alive. | Nos. 6 and 7 are not."),
    ("abbreviations", "en", "Smith et al. showed it in vol. 2. | Others did not."),
    ("abbreviations", "de", "Das gilt z. B. für Hunde. | Katzen sind anders."),
    ("abbreviations", "de", "Dr. Müller wohnt in der Hauptstr. 5. | Er ist Arzt."),
    ("abbreviations", "de", "Obst, z.B. Äpfel, ist gesund. | Brot, d.h. Getreide, auch."),
    ("abbreviations", "de", "Die Fa. Meyer GmbH u. Co. zahlt ca. 5 Euro. | Das ist wenig."),
    ("abbreviations", "de", "Vgl. S. 12 ff. und Abb. 3. | Dort steht es."),
    ("abbreviations", "fr", "M. Dupont et Mme. Durand sont là. | Ils parlent."),
    ("abbreviations", "fr", "Voir p. ex. la page 3. | Elle est belle."),
    ("abbreviations", "es", "El Sr. López y la Dra. Ruiz llegaron. | Comieron."),
    ("abbreviations", "es", "Vive en la Av. Central núm. 5. | Es grande."),
    ("abbreviations", "ru", "В 1999 г. он жил в г. Москве. | Потом уехал."),
    ("abbreviations", "it", "Il dott. Rossi e la sig.ra Bianchi parlano. | Ridono."),
    ("abbreviations", "cs", "Pan Ing. Novák bydlí v ul. Dlouhé č. 5. | Je doma."),
    ("numbers", "en", "It cost $3.50 in 1990. | Now it is 4.5 times that."),
    ("numbers", "en", "Version 2.0.1 is out. | Get it."),
    ("numbers", "en", "The year was 1984. | No one knew."),
    ("numbers", "en", "He has 3. | She has 4."),
    ("numbers", "en", "It starts at 10.30 a.m. and ends at noon. | Be there."),
    ("numbers", "de", "Am 3. Oktober 1990 war es so weit. | Alle feierten."),
    ("numbers", "de", "Es kostet 3,50 Euro. | Das sind 1.000 Cent mehr."),
    ("numbers", "de", "Im 19. Jahrhundert gab es das nicht. | Heute schon."),
    ("numbers", "de", "Das war 1984. | Niemand wusste es."),
    ("numbers", "fr", "Il coûte 3,50 euros. | C'est 4,5 fois plus."),
    ("numbers", "cs", "Bylo to 3. října 1990. | Všichni slavili."),
    ("numbers", "ru", "Это стоит 3.50 рубля. | Дорого."),
    ("quotes", "en", '"Who is it?" she asked. | "It is me."'),
    ("quotes", "en", '"I am here." | She smiled.'),
    ("quotes", "en", "He said “Go!” and left. | No one moved."),
    ("quotes", "en", "(This is a note.) | It has an end."),
    ("quotes", "en", "She asked 'Why?' again. | He was silent."),
    ("quotes", "de", "„Wer ist da?“, fragte sie. | „Ich bin es.“"),
    ("quotes", "de", "Er sagte: „Geh!“ | Dann ging er."),
    ("quotes", "de", "(Das ist ein Hinweis.) | Er endet hier."),
    ("quotes", "fr", "« Qui est-ce ? » demanda-t-elle. | « C'est moi. »"),
    ("quotes", "ru", "«Кто там?» — спросила она. | Он молчал."),
    ("quotes", "es", "«¿Quién es?», preguntó. | Nadie contestó."),
    ("CJK", "zh", "你好。 | 今天天气很好！ | 我们走吧？"),
    ("CJK", "zh", "他说：“你好。” | 她笑了。"),
    ("CJK", "zh", "价格是3.5元。 | 很便宜。"),
    ("CJK", "ja", "こんにちは。 | 今日はいい天気ですね！ | 行きましょうか？"),
    ("CJK", "ja", "「行こう。」と彼は言った。 | 彼女は笑った。"),
    ("CJK", "ja", "値段は3.5円です。 | 安いです。"),
    ("CJK", "ko", "안녕하세요. | 오늘 날씨가 좋네요! | 갈까요?"),
    ("other scripts", "hi", "कुत्ता दौड़ता है। | बिल्ली सोती है।"),
    ("other scripts", "ar", "الكلب يجري. | أين القطة؟"),
    ("other scripts", "hy", "Շունը վազում է։ | Կատուն քնում է։"),
    ("other scripts", "th", "สุนัขวิ่ง"),
]


def case_text(language: str, case: str) -> tuple[str, list[str]]:
    """The text of a case, and its sentences."""
    parts = case.split(SEPARATOR)
    return ("" if language in ("zh", "ja") else " ").join(parts), parts


def libraries() -> Iterator[tuple[str, Callable[[str, str], list[str]]]]:
    """Name of each library, and what splits a text in a language."""
    yield "ours", lambda text, lang: [s.text for s in sentences.split(text, lang)]
    if importlib.util.find_spec("sentencex"):
        import sentencex

        yield "sentencex", lambda text, lang: sentencex.segment(lang, text)
    if importlib.util.find_spec("pysbd"):
        import pysbd

        yield "pysbd", lambda text, lang: pysbd.Segmenter(lang, clean=False).segment(text)
    if importlib.util.find_spec("syntok"):
        from syntok import segmenter

        def by_syntok(text: str, lang: str) -> list[str]:
            if lang not in ("en", "de", "es"):
                raise ValueError(lang)
            return [
                "".join(token.spacing + token.value for token in sentence)
                for paragraph in segmenter.analyze(text)
                for sentence in paragraph
            ]

        yield "syntok", by_syntok
    if importlib.util.find_spec("blingfire"):
        import blingfire

        yield "blingfire", lambda text, lang: blingfire.text_to_sentences(text).split("\n")
    if importlib.util.find_spec("sentence_splitter"):
        import sentence_splitter

        yield (
            "sentence-splitter",
            lambda text, lang: sentence_splitter.split_text_into_sentences(text, language=lang),
        )


def main(_: list[str]) -> None:
    """Prints, for each kind of case, how many each library gets right, and its speed."""
    kinds = dict.fromkeys(kind for kind, _, _ in CASES)
    totals = collections.Counter(kind for kind, _, _ in CASES)
    print("| library |", " | ".join(f"{kind} ({totals[kind]})" for kind in kinds), "| all | MB/s |")
    for name, split in libraries():
        right: collections.Counter[str] = collections.Counter()
        missing: collections.Counter[str] = collections.Counter()
        for kind, language, case in CASES:
            text, wanted = case_text(language, case)
            try:
                parts = [part.strip() for part in split(text, language) if part.strip()]
            except Exception:
                missing[kind] += 1
                continue
            right[kind] += parts == wanted
            if FLAGS.show and parts != wanted:
                print(f"  {name} {language}: {SEPARATOR.join(parts)}")
        columns = [
            f"{right[kind]}" + (f" ({missing[kind]} unknown)" if missing[kind] else "")
            for kind in kinds
        ]
        print(f"| {name} |", " | ".join(columns), f"| {right.total()} | {speed(split):.2f} |")


def speed(split: Callable[[str, str], list[str]]) -> float:
    """Megabytes of English a second."""
    text = " ".join(re.sub(r" \| ", " ", case) for _, lang, case in CASES if lang == "en") * 20
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        split(text, "en")
        seconds.append(time.perf_counter() - started)
    return len(text.encode()) / 1e6 / statistics.median(seconds)


if __name__ == "__main__":
    app.run(main)
