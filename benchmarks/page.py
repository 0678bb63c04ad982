"""Measures how fast a report answers in Chromium: seconds of the wall, from an event to the frame that shows it."""

import os
import shutil
import statistics
from argparse import ArgumentParser
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

PAGE = Path(__file__).parent.parent / "docs" / "report.html"
# A frame is shown when the callback of the one after it runs; a page that cannot filter yet is asked again.
FRAMES = "const shown = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));"
INTERACTIVE = f"""{FRAMES}
addEventListener("DOMContentLoaded", async () => {{
  const before = document.getElementById("matches").textContent;
  const box = document.getElementById("search");
  box.value = "scaffold";
  box.dispatchEvent(new Event("input"));
  await shown();
  window.interactive = document.getElementById("matches").textContent !== before && performance.now();
}});"""
TIMED = f"""async ([what, word]) => {{
  {FRAMES}
  const box = find("search"), began = performance.now();
  if (what === "scroll") scrollBy(0, 900);
  if (what === "setting") {{
    find("setting").value = box.value = "";
    find("setting").dispatchEvent(new Event("change"));
  }}
  if (what === "search") {{ box.value = word; box.dispatchEvent(new Event("input")); }}
  await shown();
  const first = performance.now() - began;
  while (waiting.length) await shown();
  return [first, performance.now() - began];
}}"""
STEPS = {  # in this order, on one page
    "show all settings": ("setting", ""),
    "filter by a word": ("search", "scaffold"),
    "filter by a longer word": ("search", "scaffold atoms"),
    "show all rows again": ("search", ""),
}


def times_of(browser: Browser, page: Path) -> dict[str, float]:
    """Opens the page anew, and returns the milliseconds of each step."""
    tab = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    tab.add_init_script(INTERACTIVE)
    tab.goto(page.resolve().as_uri())
    found = {"interactive": float(tab.wait_for_function("window.interactive").json_value())}
    for name, step in STEPS.items():
        found[name], found[f"{name}, all of it"] = map(float, tab.evaluate(TIMED, list(step)))
    tab.evaluate("find('curves').scrollIntoView()")
    tab.wait_for_selector("html[data-drawn=yes]", timeout=300_000)
    tab.evaluate("scrollTo(0, 0)")
    scrolled = [float(tab.evaluate(TIMED, ["scroll", ""])[0]) for _ in range(20)]
    tab.context.close()
    return found | {"scroll, median": statistics.median(scrolled), "scroll, worst of 20": max(scrolled)}


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, nargs="?", default=PAGE)
    parser.add_argument("--times", type=int, default=5)
    asked = parser.parse_args()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        found = [times_of(browser, asked.page) for _ in range(asked.times)]
        browser.close()
    size, load = asked.page.stat().st_size / 1e6, os.getloadavg()[0]
    print(f"{asked.page.name}, {size:.2f} MB, {os.cpu_count()} cores, load {load:.1f}, median of {asked.times}, in ms:")
    for name in found[0]:
        each = sorted(one[name] for one in found)
        print(f"{name:36} {statistics.median(each):6.0f}  ({each[0]:.0f} to {each[-1]:.0f})")


if __name__ == "__main__":
    main()
