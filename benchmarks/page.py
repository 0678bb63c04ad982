"""Measures how fast a report answers in Chromium: seconds of the wall, from an event to the frame that shows it."""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
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
    found = {"interactive": float(tab.wait_for_function("() => window.interactive", timeout=0).json_value())}
    for name, step in STEPS.items():
        found[name], found[f"{name}, all of it"] = map(float, tab.evaluate(TIMED, list(step)))
    tab.evaluate("find('curves').scrollIntoView()")
    tab.wait_for_selector("html[data-drawn=yes]", timeout=0)  # measured_within has a limit
    tab.evaluate("scrollTo(0, 0)")
    scrolled = [float(tab.evaluate(TIMED, ["scroll", ""])[0]) for _ in range(20)]
    tab.context.close()
    return found | {"scroll, median": statistics.median(scrolled), "scroll, worst of 20": max(scrolled)}


def measured(page: Path, times: int) -> list[dict[str, float]]:
    """Starts a browser, and returns the milliseconds of each step of each opening in it."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        found = [times_of(browser, page) for _ in range(times)]
        browser.close()
    return found


def measured_within(page: Path, times: int, limit: float) -> list[dict[str, float]]:
    """Does so in a process of its own, which is ended after ``limit`` seconds, whatever it waits for."""
    words = [sys.executable, __file__, str(page), "--times", str(times), "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as child:
        try:
            said, why = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # and the browser ends, as nobody holds its pipe
            raise SystemExit(
                f"{page}: not done after {limit:g} s at load {os.getloadavg()[0]:.1f}. Measure where less runs, or "
                "raise --limit."
            ) from None
        except BaseException:  # an interruption, which a session of its own does not hear of
            os.killpg(child.pid, signal.SIGKILL)
            raise
    if child.returncode:
        lines = why.decode().strip().splitlines() or [f"its process ended with status {child.returncode}"]
        raise SystemExit(f"{page}: {next((line for line in reversed(lines) if 'Error' in line), lines[-1])}")
    return list(json.loads(said))


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, nargs="?", default=PAGE)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for all of it")
    parser.add_argument("--json", action="store_true", help="print the numbers of each opening, without a limit")
    asked = parser.parse_args()
    if not asked.page.is_file():
        raise SystemExit(f"{asked.page} is not a file. Make one with `fedatoms report runs -o {asked.page}`.")
    if asked.json:
        print(json.dumps(measured(asked.page, asked.times)))
        return
    found = measured_within(asked.page, asked.times, asked.limit)
    size, load = asked.page.stat().st_size / 1e6, os.getloadavg()[0]
    print(f"{asked.page.name}, {size:.2f} MB, {os.cpu_count()} cores, load {load:.1f}, median of {asked.times}, in ms:")
    for name in found[0]:
        each = sorted(one[name] for one in found)
        print(f"{name:36} {statistics.median(each):6.0f}  ({each[0]:.0f} to {each[-1]:.0f})")


if __name__ == "__main__":
    main()
