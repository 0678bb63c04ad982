"""Chromium for tests, and what axe-core says of a page in it."""

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from fedatoms.evidence.page.serve import server

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
LOOKS = ("phone, light", "phone, dark", "screen, light", "screen, dark")
SIZES: dict[str, ViewportSize] = {"phone": {"width": 390, "height": 844}, "screen": {"width": 1440, "height": 900}}


@contextmanager
def a_browser() -> Iterator[Browser]:
    """Starts the Chromium that is installed; skips where there is none."""
    if CHROMIUM is None:
        pytest.skip("no chromium was found; on Debian: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def a_page(browser: Browser, look: str) -> Page:
    """Opens a page of one of the LOOKS, in a context of its own."""
    size, scheme = look.split(", ")
    dark = scheme == "dark"
    context = browser.new_context(viewport=SIZES[size], color_scheme="dark" if dark else "light")
    return context.new_page()


@contextmanager
def a_site(folders: Sequence[Path]) -> Iterator[str]:
    """Serves the live page of some folders, and gives its address."""
    with server(folders, 0) as site:
        thread = threading.Thread(target=site.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield site.address
        finally:
            site.shutdown()
            thread.join()


def violations(page: Page) -> list[tuple[str, str]]:
    """Returns the rules of axe-core that a page breaks, each with the first place."""
    found = Axe().run(page).response["violations"]
    return [(each["id"], each["nodes"][0]["html"][:200]) for each in found]
