"""The page in Chromium: what a person does with it, at three widths, with keyboard and pointer.

Two models translate in both directions, so that languages can be swapped and detected.
"""

import contextlib
import dataclasses
import random
import shutil
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright.sync_api", reason="Playwright is missing")

from playwright import sync_api

from tests.conftest import DIGITS
from tests.web_server import Server
from transformer_jax import Translator
from transformer_jax.extras.serving.app import create_app
from transformer_jax.extras.serving.keys import Keys, add_key
from transformer_jax.extras.serving.served_model import Limits, ServedModel
from transformer_jax.extras.serving.service import Service

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH"),
]
TEXT = "one two three. four five.\n\nsix."
WIDTHS = (360, 768, 1440)


@pytest.fixture(scope="module")
def service(translator):
    models = []
    for source, target in (("en", "de"), ("de", "en")):
        data = dataclasses.replace(translator.config.data, source_lang=source, target_lang=target)
        config = dataclasses.replace(translator.config, data=data)
        fresh = Translator(config, translator.tokenizers, translator.params)
        limits = Limits(max_tokens=48, max_texts=48, max_chars=2000)
        # Which texts a guard catches depends on the machine that trained the model.
        models.append(ServedModel(f"{source}-{target}", fresh, limits=limits, has_retries=False))
        models[-1].prepare()
    return Service(models)


@pytest.fixture(scope="module")
def server(service) -> Iterator[Server]:
    server = Server(create_app(service))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser, address: str, width: int = 1440, expected: str = "", **options):
    """A page that asks only `address`, and prints nothing except what contains `expected`."""
    context = browser.new_context(viewport={"width": width, "height": 640}, **options)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
    page = context.new_page()
    printed, asked = [], []
    page.on("console", lambda message: printed.append(message.text))
    page.on("pageerror", lambda error: printed.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    yield page
    context.close()
    foreign = [url for url in asked if not url.startswith((address, f"blob:{address}"))]
    assert (asked, foreign) == (asked, [])
    assert [text for text in printed if not expected or expected not in text] == []


def translated(page, text: str) -> str:
    """What the page shows after `text` was typed."""
    page.locator("#source").fill(text)
    return result(page)


def result(page) -> str:
    page.wait_for_timeout(300)  # longer than the pause after which the page asks
    page.wait_for_selector("#target[aria-busy=false]")
    page.wait_for_selector("#target:not(:has(.waiting))", state="attached")
    return page.locator("#target").text_content()


def want(service, text: str, model: str = "en-de") -> str:
    """Translations of `text`, whose sentences end with a period and a space, or a line."""
    translator = service.models[model].translator
    lines = [
        [one + "." for one in line.rstrip(".").split(". ")] if line else []
        for line in text.split("\n")
    ]
    known = iter(translator.translate([one for line in lines for one in line]))
    return "\n".join(" ".join(next(known).text for _ in line) for line in lines)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_page_fits_its_window(browser, server, service, width, scheme):
    with opened(browser, server.address, width, color_scheme=scheme) as page:
        assert translated(page, TEXT) == want(service, TEXT)
        page.locator("#shading").click()
        page.locator("#target .sentence").first.click()
        page.wait_for_selector("#details:visible")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        card = page.locator("#card").bounding_box()
        save = page.locator("#save").bounding_box()
        assert save["y"] + save["height"] <= card["y"] + card["height"]  # nothing is cut off
        for name in ("from", "swap", "to", "copy", "save", "shading", "count", "legend", "close"):
            box = page.locator(f"#{name}").bounding_box()
            assert box["x"] >= 0, name
            assert box["x"] + box["width"] <= width, name


def test_page_translates_while_one_types_and_forgets_what_is_old(browser, server, service):
    with opened(browser, server.address) as page:
        asked = []
        page.on("request", lambda request: asked.append(request.post_data or ""))
        page.locator("#source").press_sequentially("one two three.", delay=5)
        assert result(page) == want(service, "one two three.")
        texts = [body for body in asked if '"stream":true' in body]
        assert len(texts) == 1  # not one a key
        page.locator("#source").press_sequentially(" four.", delay=5)
        assert result(page) == want(service, "one two three. four.")
        assert '["four."]' in asked[-1]  # the first sentence is known
        page.locator("#clear").click()
        assert result(page) == ""
        assert page.locator("#source").evaluate("e => document.activeElement === e")


def test_page_cancels_a_request_whose_text_has_changed(browser, server, service):
    with opened(browser, server.address) as page:
        page.wait_for_selector("#from option", state="attached")
        cancelled = []
        page.on("requestfailed", lambda request: cancelled.append(request.post_data))
        unanswered: list[sync_api.Route] = []  # the first request
        page.route(
            "**/v1/translate",
            lambda route: route.continue_() if unanswered else unanswered.append(route),
        )
        with page.expect_request("**/v1/translate"):
            page.locator("#source").fill("six.")
        assert translated(page, "six. two.") == want(service, "six. two.")
        assert '["six."]' in cancelled[0]


def test_page_swaps_and_detects_languages(browser, server, service):
    with opened(browser, server.address) as page:
        names = ["Detect language", "English", "German"]
        assert page.locator("#from option").all_text_contents() == names
        page.locator("#from").select_option("en")
        first = translated(page, TEXT)
        assert page.locator("#to").input_value() == "de"
        page.locator("#swap").click()
        swapped = result(page)
        assert page.locator("#source").input_value() == first
        assert [page.locator(f"#{name}").input_value() for name in ("from", "to")] == ["de", "en"]
        assert swapped == page.locator("#target").text_content() != first
        page.locator("#from").select_option("auto")
        translated(page, "Das ist ein kleines Haus, und wir gehen nicht hinein.")
        assert page.locator("#from option:checked").text_content() == "German (detected)"
        assert page.locator("#to").input_value() == "en"
        translated(page, "This is a small house, and we are not going to walk into it.")
        assert page.locator("#from option:checked").text_content() == "English (detected)"
        assert page.locator("#to").input_value() == "de"


def test_page_lights_up_sentences_and_words_on_both_sides(browser, server, service):
    with opened(browser, server.address) as page:
        text = "😀 one two three. four é five.\nsix seven."
        translated(page, text)
        originals, results = (page.locator(f"{side} .sentence") for side in ("#marks", "#target"))
        assert originals.all_text_contents() == ["😀 one two three.", "four é five.", "six seven."]
        results.nth(1).hover()
        assert page.locator(".sentence.on").count() == 2
        assert "on" in originals.nth(1).get_attribute("class")
        number = next(n for n in range(3) if link_of(service, originals.nth(n).text_content()))
        source_word, target_word = link_of(service, originals.nth(number).text_content())
        results.nth(number).hover()
        results.nth(number).locator(f".word >> text='{target_word}'").first.hover()
        page.wait_for_timeout(50)
        lit = page.locator("#marks .word.on").all_text_contents()
        assert source_word in lit
        box = originals.nth(2).bounding_box()
        page.mouse.move(box["x"] + 5, box["y"] + box["height"] / 2)  # over the text field
        page.wait_for_timeout(50)
        assert "on" in results.nth(2).get_attribute("class")
        assert page.locator("#source").input_value() == text
        page.mouse.move(2, 2)
        page.wait_for_timeout(50)
        assert page.locator(".on").count() == 0


def link_of(service, text: str) -> tuple[str, str] | None:
    """A word of a text and of its translation that are linked, of the server's own alignment."""
    from fastapi.testclient import TestClient

    body = {"texts": [text], "model": "en-de", "alignment": True}
    answer = TestClient(create_app(service)).post("/v1/translate", json=body).json()
    (one,) = answer["translations"]
    for source, target in one["alignment"]:
        source_word, target_word = one["source_words"][source], one["words"][target]
        if source_word in text and one["words"].count(target_word) == 1 and target_word.strip():
            return source_word, target_word
    return None


def test_page_offers_other_translations_by_keyboard(browser, server, service):
    with opened(browser, server.address) as page:
        translated(page, TEXT)
        best = service.models["en-de"].translator.translate(["four five."], n_best=4)[0]
        page.locator("#source").focus()
        for _ in range(9):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.matches('#target .sentence')"):
                break
        page.keyboard.press("ArrowRight")  # one tab stop; arrows move among sentences
        page.keyboard.press("Enter")
        page.wait_for_selector("#alternatives button")
        offered = page.locator("#alternatives button").all_text_contents()
        assert offered == list(dict.fromkeys(one.text for one in best))
        assert page.locator("#alternatives button").first.evaluate(
            "e => document.activeElement === e && e.getAttribute('aria-pressed') === 'true'"
        )
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.locator("#target .sentence").nth(1).text_content() == offered[1]
        page.keyboard.press("Escape")
        assert page.locator("#details").is_hidden()
        assert (
            page.locator("#target .sentence").nth(1).evaluate("e => document.activeElement === e")
        )
        page.locator("#shading").click()
        assert page.locator("#legend").is_visible()
        page.reload()
        assert page.locator("#shading").get_attribute("aria-pressed") == "true"


def drop(page, name: str, content: bytes) -> None:
    """Drops a file on the page."""
    page.evaluate(
        """([name, bytes]) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(bytes)], name));
          for (const type of ["dragenter", "dragover", "drop"]) {
            document.querySelector("#source").dispatchEvent(
              new DragEvent(type, { dataTransfer: transfer, bubbles: true, cancelable: true }));
          }
        }""",
        [name, list(content)],
    )


def test_page_translates_a_file_and_gives_it_back(browser, server, service):
    with opened(browser, server.address) as page:
        page.locator("#from").select_option("en")
        drop(page, "notes.md", TEXT.replace("\n", "\r\n").encode())
        expected = want(service, TEXT)
        assert result(page) == expected
        assert page.locator("#status").text_content() == "notes.md is translated."
        with page.expect_download() as download:
            page.locator("#save").click()
        assert download.value.suggested_filename == "notes.de.md"
        assert download.value.path().read_text(encoding="utf-8") == expected
        page.locator("#copy").click()
        page.wait_for_selector("#status:text('Copied')")
        assert page.evaluate("navigator.clipboard.readText()") == expected
        for name, content, message in (
            ("cat.png", b"\x89PNG\r\n\x1a\n\x00\xff", "cat.png is no text in UTF-8"),
            ("book.txt", b"a" * 900_000, "book.txt is too large: this page takes 200,000"),
            ("none.txt", b" \n", "none.txt is empty"),
        ):
            drop(page, name, content)
            page.wait_for_selector(f"#file-notice:text('{message}')")
            assert page.locator("#source").input_value() == TEXT  # nothing is lost
        page.locator("#file").set_input_files(
            {"name": "wide.txt", "mimeType": "text/plain", "buffer": "six.".encode("utf-16")}
        )
        assert result(page) == want(service, "six.")
        assert page.locator("#file-notice").is_hidden()


def test_page_says_that_the_server_is_gone_and_goes_on_when_it_is_back(browser, service):
    server = Server(create_app(service))
    with opened(browser, server.address, expected="Failed to load resource") as page:
        first = translated(page, "one two.")
        server.stop()
        page.locator("#source").fill("one two. three.")
        page.wait_for_selector("#notice-text:text('The server cannot be reached.')")
        assert page.locator("#target .sentence").first.text_content() == first  # still there
        assert "Trying again in" in page.locator("#notice-wait").text_content()
        again = Server(create_app(service), server.port)
        page.locator("#retry").click()
        assert result(page) == want(service, "one two. three.")
        assert page.locator("#notice").is_hidden()
    again.stop()


def test_page_keeps_the_text_while_its_translation_is_not_complete(browser, server, service):
    with opened(browser, server.address, expected="Failed to load resource") as page:
        page.locator("#from").select_option("en")
        first = translated(page, "one two.")
        page.route("**/v1/translate", lambda route: route.abort())
        page.locator("#source").fill("one two. three.")
        page.wait_for_selector("#notice-text:text('The server cannot be reached.')")
        page.locator("#copy").click()
        page.wait_for_selector("#status:text('not complete')")
        page.locator("#target .sentence").first.hover()
        page.locator("#swap").click()
        assert page.locator("#source").input_value() == "one two. three."
        page.locator("#swap").click()
        page.unroute("**/v1/translate")
        assert translated(page, "one two. three.").startswith(first)


def test_page_breaks_words_that_are_longer_than_its_window(browser, server):
    with opened(browser, server.address, 360) as page:
        page.locator("#from").select_option("en")
        page.route(
            "**/v1/translate",
            lambda route: (
                route.continue_()
                if "stream" in route.request.post_data
                else route.fulfill(
                    json={
                        "translations": [{"text": "a" * 99, "alternatives": [{"text": "b" * 99}]}]
                    }
                )
            ),
        )
        translated(page, "six.")
        page.locator("#target .sentence").click()
        page.wait_for_selector("#details:visible")
        for button in page.locator("#alternatives button").all():
            box = button.bounding_box()
            assert box["x"] + box["width"] <= 350
            assert button.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_page_works_without_storage(browser, server, service):
    with opened(browser, server.address) as page:
        page.add_init_script(
            """for (const name of ["localStorage", "sessionStorage"]) {
              Object.defineProperty(window, name, { get() { throw new Error("forbidden"); } });
            }"""
        )
        page.reload()
        page.locator("#shading").click()
        assert translated(page, "three.") == want(service, "three.")


def test_page_waits_where_the_server_is_busy(browser, server, service):
    with opened(browser, server.address, expected="429") as page:
        refusals = iter([True])

        def refuse_once(route):
            if next(refusals, False):
                error = {"error": {"code": "too_many_requests", "message": "Too many texts wait."}}
                route.fulfill(status=429, headers={"Retry-After": "1"}, json=error)
            else:
                route.continue_()

        page.route("**/v1/translate", refuse_once)
        page.locator("#source").fill("three.")
        page.wait_for_selector("#notice-text:text('Too many texts wait.')")
        assert result(page) == want(service, "three.")
        assert page.locator("#notice").is_hidden()


def test_page_says_how_far_the_start_is_before_one_types(browser, server, service, monkeypatch):
    model = service.models["de-en"]
    monkeypatch.setattr(model, "is_ready", False)
    monkeypatch.setattr(model, "progress", (3, 40))
    known, total = (service.models["en-de"].progress[at] for at in (0, 1))
    words = f"The server is starting ({known + 3} of {total + 40} batch shapes)"
    with opened(browser, server.address, expected="503") as page:
        page.wait_for_selector(f"#notice-text:text('{words}')")
        assert page.locator("#to option").count() > 1  # one can choose, and type already
        page.locator("#source").fill("three.")
        model.is_ready = True
        page.locator("#retry").click()
        assert result(page) == want(service, "three.")
        page.wait_for_selector("#notice", state="hidden")


def test_page_asks_for_a_key_and_keeps_it_in_its_tab_only(browser, service, tmp_path):
    secret = add_key(tmp_path / "keys", "reader")
    server = Server(create_app(service, Keys.read(tmp_path / "keys")))
    with opened(browser, server.address, expected="status of 40") as page:
        page.locator("#source").fill("three.")
        page.wait_for_selector("#key-form")
        page.locator("#key").fill("wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#notice-text:text('not known')")
        page.locator("#key").fill("ключ")  # no header can have it
        page.keyboard.press("Enter")
        page.wait_for_selector("#notice-text:text('letters, digits and signs of English')")
        page.locator("#key").fill(secret)
        page.keyboard.press("Enter")
        page.wait_for_selector("#notice", state="hidden")
        assert result(page) == want(service, "three.")
        assert secret not in page.evaluate("JSON.stringify(localStorage)")
        assert secret in page.evaluate("JSON.stringify(sessionStorage)")
    server.stop()


def test_page_translates_and_keeps_50_000_characters(browser, server, service):
    rng = random.Random(0)
    lines = [" ".join(rng.choices(DIGITS, k=9)) + "." for _ in range(1100)]
    text = "\n".join(lines)[:50_000].rpartition("\n")[0]
    with opened(browser, server.address) as page:
        page.set_default_timeout(300_000)
        page.locator("#source").fill(text)
        page.wait_for_selector("#progress:visible")
        page.locator("#marks .sentence").first.evaluate("e => (e.isKept = true)")
        page.locator("#source").press("Control+End")
        page.locator("#source").press_sequentially(" seven.", delay=20)  # while it translates
        shown = result(page)
        assert page.locator("#source").input_value() == text + " seven."
        assert shown.count("\n") == text.count("\n")
        few = text.split("\n")[:3]
        assert shown.startswith(want(service, "\n".join(few)))
        # A key renders the sentences that changed, and no other.
        assert page.locator("#marks .sentence").first.evaluate("e => e.isKept")
        assert page.locator("#progress").is_hidden()


def test_page_reads_aloud_what_is_translated(browser, server, service):
    with opened(browser, server.address) as page:
        expected = translated(page, "one. two.")
        page.locator(f"#spoken:text-is('{expected}')").wait_for(state="attached")
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll("button, select, textarea, input")]
              .filter((e) => !(e.textContent.trim() || e.ariaLabel || e.labels?.length))
              .map((e) => e.id)"""
        )
        assert unnamed == []


def test_page_keeps_what_is_around_the_sentences(browser, server):
    """Marks of a list, and lines without a sentence."""
    with opened(browser, server.address) as page:
        shown = translated(page, "- one\n- two\n2024")
        assert [line[:2] for line in shown.split("\n")[:2]] == ["- ", "- "]
        assert shown.endswith("\n2024")
        page.locator("#copy").click()
        assert page.evaluate("navigator.clipboard.readText()") == shown
        assert translated(page, "42") == "42"
        assert page.locator("#copy").is_enabled()
