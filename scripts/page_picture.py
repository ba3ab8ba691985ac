"""Takes the picture of the chat page that README shows, from a running `divine serve`.

    divine serve MODEL -md SMALLER &
    python scripts/page_picture.py http://127.0.0.1:8080/ docs/page.png

Needs Debian's chromium, playwright and pillow. What the picture says is what that run did.
"""

from __future__ import annotations

import argparse
import shutil

from PIL import Image
from playwright.sync_api import sync_playwright

PROMPT = """\
Add type hints to this function. Show the code, then say in three short points how it works.

```python
def fold(items, start, step):
    total = start
    for item in items:
        total = step(total, item)
    return total
```"""
PATIENCE = 300_000  # milliseconds for an answer


def main() -> None:
    """Ask, wait for the answer, show where its tokens came from, take the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("picture")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--size", default="1100x1290", help="width x height in pixels")
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("no chromium found; apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme="dark" if options.dark else "light",
            device_scale_factor=1.5,
        )
        page.goto(options.url)
        page.click("#open-settings")
        page.fill("#set-temperature", "0")
        page.keyboard.press("Escape")
        page.keyboard.press("Alt+d")
        page.fill("#prompt", options.prompt)
        page.keyboard.press("Enter")
        page.locator(".details").wait_for(timeout=PATIENCE)
        page.mouse.move(2, 400)
        page.wait_for_timeout(300)
        page.screenshot(path=options.picture)
        browser.close()
    # A palette is enough for flat colours and a third of the size.
    Image.open(options.picture).convert("RGB").quantize(256).save(options.picture, optimize=True)


if __name__ == "__main__":
    main()
