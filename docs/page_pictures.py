"""Pictures of the server's page at three widths, for `serving.md`.

python docs/page_pictures.py http://127.0.0.1:8080/ docs/pictures
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

TEXT = (
    "A man in an orange hat looks at something. Two young men are outside near many bushes.\n\n"
    "A little girl climbs into a wooden playhouse. Several men in hard hats are at work."
)
SIZES = {360: (360, 760, "light"), 768: (768, 800, "dark"), 1440: (1440, 760, "light")}
NUM_COLORS = 128
SENTENCE, WORD = 1, 2  # that are pointed at


def picture(browser: Browser, address: str, width: int, height: int, scheme: str) -> bytes:
    """The page after a text was translated, a sentence was chosen, and a word is pointed at."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    page.locator("#source").fill(TEXT)
    page.wait_for_selector("#copy:enabled")
    page.locator("#shading").click()
    sentence = page.locator("#target .sentence").nth(SENTENCE)
    sentence.click()
    page.wait_for_selector("#alternatives button")
    sentence.locator(".word").nth(WORD).hover()
    page.wait_for_selector(".word.on")
    page.wait_for_timeout(300)  # until colours have changed
    content = page.screenshot(full_page=True)
    context.close()
    return content


def main(address: str, folder: str) -> None:
    """Writes `page_WIDTH.png` into a folder."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, size in SIZES.items():
            image = Image.open(io.BytesIO(picture(browser, address, *size))).convert("RGB")
            small = image.quantize(NUM_COLORS, dither=Image.Dither.NONE)
            small.save(Path(folder) / f"page_{name}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
