"""The page in a real browser: it draws, sorts, fits phones and screens, and asks nobody for anything."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Page
from support import ROOT
from support.browser import a_browser
from support.results import a_measure, a_private_run, a_run, an_explanation

from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.page.assemble import report
from fedatoms.evidence.page.serve import server
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import to_json
from fedatoms.runs.lock import locked
from fedatoms.runs.results import read_result

pytestmark = pytest.mark.slow

RUNS = ROOT / "paper-results"
NAME = "<script>document.title='broken'</script>"


class Opened(NamedTuple):
    """A page in a browser, what the browser complained of, what it asked for, and when a click was answered."""

    page: Page
    complaints: list[str]
    requests: list[str]
    seconds: float
    why: str  # the place of our explanation among those of the repository, which hangs on the names of folders


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder = tmp_path_factory.mktemp("report")
    for seed in (0, 1):
        a_run(folder / "runs" / f"{NAME.replace('/', '|')}{seed}", accuracy=50.0 + seed, seed=seed)
    for name in MEASURES:
        a_measure(folder / "measures" / name, name)
    mine = an_explanation(folder / "runs" / "explained").parent
    done = report([RUNS, folder / "runs", folder / "measures"], folder / "report.html")
    why = f"why-{[each.folder for each in done.found.explanations].index(mine)}"
    with a_browser() as browser:
        page = browser.new_context(
            viewport={"width": 1440, "height": 900}, offline=True, reduced_motion="reduce"
        ).new_page()
        complaints, requests = list[str](), list[str]()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        began = time.perf_counter()
        page.goto(done.page.as_uri())
        page.click("#theme")
        seconds = time.perf_counter() - began
        page.click("#theme")
        page.evaluate("document.getElementById('curves').scrollIntoView()")
        page.wait_for_selector("html[data-drawn=yes]", timeout=120_000)
        yield Opened(page, complaints, requests, seconds, why)


def column(page: Page, table: str, number: int) -> list[str]:
    return page.eval_on_selector_all(f"#{table} tbody tr", f"rows => rows.map(row => keyOf(row.cells[{number}]))")


def test_the_page_opens_offline_asks_for_nothing_and_is_small(opened: Opened) -> None:
    assert opened.requests == [opened.page.url]
    size, runs = Path(opened.page.url.removeprefix("file://")).stat().st_size, len([*RUNS.rglob("result.json")])
    assert size < 6.5e3 * runs  # Plotly is half of it, and folders' names a part
    assert opened.page.title() == "fedatoms report"
    assert opened.seconds < 5  # 0.3 s where nothing else runs


def test_tables_sort_by_click_and_by_keyboard(opened: Opened) -> None:
    head = opened.page.locator("#table-1 th", has_text="ours").first
    head.locator("button").click()
    found = [float(key) for key in column(opened.page, "table-1", 3) if key]
    assert found and found == sorted(found) and head.get_attribute("aria-sort") == "ascending"
    opened.page.keyboard.press("Enter")  # the button has the focus
    assert [float(key) for key in column(opened.page, "table-1", 3) if key] == sorted(found, reverse=True)
    assert not any(column(opened.page, "table-1", 3)[len(found) :])  # what was not run stays last
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("Space")
    assert head.get_attribute("aria-sort") is None
    differences = [float(key) for key in column(opened.page, "table-1", 4) if key]
    assert differences == sorted(differences)


def test_curves_bytes_and_splits_are_drawn(opened: Opened) -> None:
    page = opened.page
    assert page.locator(".modebar-btn").count() and not page.locator(".modebar-btn[data-title^=Share]").count()
    assert page.eval_on_selector_all(".modebar-btn", "all => all.every(one => one.tabIndex < 0)")
    assert page.input_value("#curve-setting").startswith("digits")  # the reader's own runs first
    page.select_option("#curve-setting", "cifar100, 100 clients with 20 classes each")
    page.wait_for_function("() => find('curve-figure').data.length > 4")
    names = page.evaluate("document.getElementById('curve-figure').data.map(trace => trace.name ?? null)")
    assert "fedavg + 9 atoms, init fourier-bessel" in names and None in names  # means, and unnamed ranges over seeds
    assert page.locator("#curve-figure path.js-line").count() == len(names)
    off = page.locator("#curve-lines input:not(:checked)").evaluate_all("boxes => boxes.map(box => box.value)")
    assert "fedavg + 25 atoms, atoms-lr 2" in off and not {*off} & {*names}
    assert "in none of the paper's tables are switched off at first" in page.text_content("#curve-note")
    page.select_option("#curve-setting", "digits, 20 clients with 2 classes each")
    wait_for_traces(page, 2)
    digits = page.evaluate("document.getElementById('curve-figure').data.map(trace => trace.y)")
    assert digits == [[51, 51, 51, 50, 50, 50], [50.5, 50.5, 50.5]]  # the range over seeds, and their mean
    assert page.locator("#curve-lines input:not(:checked)").count() == 0  # of digits the paper has no table
    assert "switched off" not in page.text_content("#curve-note")
    page.locator("#curve-lines input").first.focus()
    page.keyboard.press("Space")
    wait_for_traces(page, 0)
    page.keyboard.press("Space")
    wait_for_traces(page, 2)
    assert page.evaluate("find('bytes-figure').data.map(trace => trace.name)") == ["head", "rest"]
    page.select_option("#bytes-setting", "cifar100, 100 clients with 20 classes each")
    page.wait_for_function("() => find('bytes-figure').data.length > 2")
    counts = page.evaluate("document.getElementById('split-figure').data[0].z")
    assert len(counts) == 20 and max(sum(map(bool, client)) for client in counts) == 2


def wait_for_traces(page: Page, count: int) -> None:
    page.wait_for_function(f"() => document.getElementById('curve-figure').data.length === {count}")


def test_curves_go_over_bytes_and_seconds_are_smoothed_and_differ_from_the_baseline(opened: Opened) -> None:
    page = opened.page
    page.select_option("#curve-setting", "digits, 20 clients with 2 classes each")
    wait_for_traces(page, 2)
    for axis, last in (("bytes", 3 * 13e6 / 1e9), ("seconds", 1.5), ("rounds", 3)):
        page.select_option("#curve-axis", axis)
        page.wait_for_function(f"() => Math.abs(find('curve-figure').data[1].x.at(-1) - {last}) < 1e-4")
    assert page.evaluate("find('curve-figure').layout.hovermode") == "x unified"
    page.check("#curve-difference")
    wait_for_traces(page, 1)  # no ranges
    assert page.evaluate("find('curve-figure').data[0].y") == [0, 0, 0]  # the only one is the baseline
    assert page.evaluate("find('curve-figure').data[0].hovertemplate").endswith(" points")  # and no %
    assert page.evaluate("find('curve-figure').layout.yaxis.title.text") == "accuracy (points), minus fedavg"
    page.uncheck("#curve-difference")
    wait_for_traces(page, 2)
    assert page.evaluate("smoothed([1, 2, 6, 2], 3)") == [1, 1.5, 3, 10 / 3]


def test_seconds_that_are_withheld_are_no_curve(opened: Opened, tmp_path: Path) -> None:
    a_private_run(tmp_path / "runs" / "private")
    done, page = report([tmp_path / "runs"], tmp_path / "report.html"), opened.page.context.new_page()
    complaints = list[str]()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(done.page.as_uri())
    page.evaluate("document.getElementById('curves').scrollIntoView()")
    page.wait_for_selector("html[data-drawn=yes]", timeout=120_000)
    wait_for_traces(page, 1)
    page.select_option("#curve-axis", "seconds")
    wait_for_traces(page, 0)
    assert "withheld" in page.evaluate("find('curve-figure').layout.xaxis.title.text") and not complaints
    page.close()


def test_figures_made_of_runs_are_drawn(opened: Opened) -> None:
    names = opened.page.evaluate("document.getElementById('study-0-0').data.map(trace => trace.name)")
    assert names == ["feddyn", "feddyn + 9 atoms"]
    last = opened.page.evaluate("document.getElementById('study-0-0').data.map(trace => trace.y.at(-1))")
    files = [read_result(RUNS / f"feddyn{kind}-cifar10-5") for kind in ("", "-atoms")]
    assert last == pytest.approx([result.accuracy["all"].final for result in files], abs=0.01)


def test_measures_are_drawn_with_contours_and_trajectories(opened: Opened) -> None:
    ours = '#measures .measure:has-text("/measures/") .figure'
    kinds = opened.page.eval_on_selector_all(ours, "all => all.map(one => one.data.map(trace => trace.type))")
    assert kinds == [["scatter"] * 3] * 3 + [  # of filters, of filters made of atoms, and of the factors themselves
        ["contour", "scatter", "scatter"],
        ["contour", "scatter"],
        ["scatter"] * 3,
    ] + [
        ["scatter"] * 2,
        ["contour", "scatter", "scatter"],
    ]
    assert opened.page.eval_on_selector_all(ours, "all => all[0].data[1].y") == [0.5, 0.125]
    assert opened.page.locator("#measures .contourlayer path").count() > 0
    assert opened.page.evaluate("document.getElementById('measure-0-0').layout.yaxis.type") == "log"
    before = len(opened.complaints)
    opened.page.evaluate("draw()")  # the same again, as when the system's colours change and change back
    assert opened.complaints[before:] == []


def test_an_explanation_is_drawn_with_real_clients_on_the_diagonal(opened: Opened) -> None:
    page, why = opened.page, opened.why
    latent, spread, fork = (page.evaluate(f"document.getElementById('{why}-{n}').data") for n in range(3))
    heat, real = latent
    assert heat["z"] == [[1.5 + i + j / 8 for j in range(3)] for i in range(3)]
    assert heat["x"] == heat["y"] == real["x"] == real["y"] == ["0", "10", "20"]
    rows, columns = page.evaluate(f"['yaxis', 'xaxis'].map(axis => find('{why}-0').layout[axis].title.text)")
    assert rows == "coefficients of client" and columns == "atoms of client, in round 18"
    assert page.locator(f"#{why}-0 .scatterlayer path.point").count() == 3
    assert [line["y"] for line in spread] == [[value] * 2 for value in (0.5, 0.0625, 0.015625)]
    assert [(line["x"], line["y"]) for line in fork] == [([18, 19], [61, 62]), ([18, 19], [60, 64])]
    diagonal = "all => all.map(one => [one.parentNode.rowIndex, one.cellIndex])"
    assert page.eval_on_selector_all(f"#{why}-latent td.real", diagonal) == [[1, 1], [2, 2], [3, 3]]
    page.evaluate("document.querySelectorAll('#why details').forEach(part => part.open = true)")
    page.locator(f"#{why}-fork th button").nth(2).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert [float(key) for key in column(page, f"{why}-fork", 2)] == [64.0, 60.0]


def test_figures_in_sight_are_drawn_first(opened: Opened) -> None:
    page = opened.page.context.new_page()
    page.add_init_script(
        """window.order = [];
        new MutationObserver((changes) => {
          for (const { target } of changes)
            if (target.matches(".js-plotly-plot") && !order.includes(target.id)) order.push(target.id);
        }).observe(document, { subtree: true, attributeFilter: ["class"] });"""
    )
    page.goto(opened.page.url)
    page.evaluate("document.getElementById('splits').scrollIntoView()")
    page.wait_for_selector("html[data-drawn=yes]", timeout=120_000)
    assert page.evaluate("order")[0] == "split-figure" and "curve-figure" in page.evaluate("order")
    page.close()


def test_nothing_overflows_on_a_phone_or_a_screen(opened: Opened) -> None:
    for width in (390, 1440):
        opened.page.set_viewport_size({"width": width, "height": 844})
        opened.page.wait_for_timeout(300)  # figures follow the width
        opened.page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        assert opened.page.evaluate("document.documentElement.scrollWidth") == width
        wide = "all => all.filter(one => one.getBoundingClientRect().right > innerWidth).map(one => one.id)"
        assert opened.page.eval_on_selector_all("section, .box, .figure, .claim, .lines, select, h2", wide) == []


def test_dark_and_light_by_system_and_by_button(opened: Opened) -> None:
    page, ground = opened.page, "getComputedStyle(document.body).backgroundColor"
    page.evaluate("delete document.documentElement.dataset.theme")
    seen, heats = [], []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        seen.append(page.evaluate(ground))
        page.evaluate("draw()")  # waits until all is drawn
        heats.append(page.evaluate("find('why-0-0').data[0].colorscale"))
    page.click("#theme")
    assert seen[0] != seen[1] and page.evaluate(ground) == seen[0] and heats[0] != heats[1]
    assert page.evaluate("document.getElementById('curve-figure').layout.font.color") == page.evaluate(
        "getComputedStyle(document.body).color"
    )


def test_the_keyboard_reaches_the_skip_link_first_and_focus_shows(opened: Opened) -> None:
    page = opened.page
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.evaluate("document.body.tabIndex = -1; document.body.focus()")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_another_baseline_changes_the_gains_and_stands_in_the_address(opened: Opened) -> None:
    page = opened.page.context.new_page()
    page.goto(opened.page.url.split("#")[0])
    first = "#versus tbody tr:not([hidden])"
    page.select_option("#setting", label="cifar100, 100 clients with 20 classes each")
    before = page.locator(first).count()
    page.select_option("#base", "feddc")
    page.wait_for_selector("html[data-base=feddc]")
    rows = dict(
        page.eval_on_selector_all(first, "all => all.map(row => [row.cells[0], row.cells[2]].map(c => c.innerText))")
    )
    assert rows["feddc"] == "baseline" and rows["fedavg"].startswith("\u2212")
    page.fill("#search", "scaffold 25")
    assert 0 < page.locator(first).count() < before and "base=feddc" in page.url and "search=scaffold" in page.url
    shown = page.eval_on_selector_all(first, "all => all.map(row => row.innerText)")
    page.reload()
    page.wait_for_selector("html[data-base=feddc]")
    assert page.eval_on_selector_all(first, "all => all.map(row => row.innerText)") == shown
    copied = page.evaluate("asMarkdown(versus)").splitlines()
    assert len(copied) == len(shown) + 2 and "\u2212" not in "".join(copied) and any(" -" in line for line in copied)
    assert page.evaluate("asLatex(versus)").startswith("\\begin{tabular}{lrr")
    page.close()


@pytest.mark.parametrize("place", ["provenance", "why", "measures", "bytes"])
def test_a_jump_lands_where_it_says_also_when_figures_are_drawn_on_the_way(place: str, opened: Opened) -> None:
    page = opened.page.context.new_page()
    page.goto(opened.page.url.split("#")[0])
    page.click(f"nav a[href='#{place}']")
    page.wait_for_selector("html[data-drawn=yes]", timeout=120_000)
    top, end = page.evaluate(
        f"[find('{place}').getBoundingClientRect().top, scrollY + innerHeight >= document.body.scrollHeight - 1]"
    )
    assert abs(top) < 20 or end
    page.close()


def test_a_swipe_over_a_figure_scrolls_the_page(opened: Opened) -> None:
    browser = opened.page.context.browser
    assert browser is not None
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(opened.page.url.split("#")[0])
    page.evaluate("find('curve-figure').scrollIntoView({block: 'center'})")
    page.wait_for_selector("html[data-drawn=yes]", timeout=120_000)
    before = page.evaluate("scrollY")
    finger = context.new_cdp_session(page)
    finger.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": 195, "y": 500}]})
    for y in range(490, 250, -20):
        finger.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [{"x": 195, "y": y}]})
    finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for_timeout(300)
    assert page.evaluate("scrollY") - before > 150
    context.close()


def test_a_phone_shows_the_answer_and_numbers_without_scrolling(opened: Opened) -> None:
    browser = opened.page.context.browser
    assert browser is not None
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(opened.page.url.split("#")[0])
    assert page.evaluate("document.querySelector('.lead').getBoundingClientRect().bottom") < 400
    ends = "all => all.map(one => one.getBoundingClientRect().right)"
    assert all(
        right <= 390 for right in page.eval_on_selector_all("#versus tbody tr:first-child td:nth-child(-n+3)", ends)
    )
    assert page.evaluate("find('bytes-figure').clientHeight") < 600
    page.close()


def test_without_scripts_and_on_paper_every_figure_is_a_still_one(opened: Opened) -> None:
    browser = opened.page.context.browser
    assert browser is not None
    count = "all => all.filter(one => one.getBoundingClientRect().height > 50).length"
    boxes = opened.page.locator(".figure").count() - 3  # of curves, bytes and splits: a still one for each setting
    for scripts in (False, True):
        context = browser.new_context(java_script_enabled=scripts)
        page = context.new_page()
        page.goto(opened.page.url.split("#")[0])
        if scripts:
            page.emulate_media(media="print")
            page.evaluate("dispatchEvent(new Event('beforeprint'))")
            assert page.locator("details:not([open])").count() == 0
            assert "Setting: " in page.inner_text("#compare-chosen")
        assert page.eval_on_selector_all("#splits .still", count) == 2  # each seed has its own
        assert "every setting over rounds" in page.inner_text("#curves") and "every split" in page.inner_text("#splits")
        assert not page.locator("#theme:visible, th i:visible").count()
        assert page.eval_on_selector_all(".still", count) > boxes + 10 and not page.locator(".figure:visible").count()
        assert not page.locator(".controls:visible").count()
        context.close()


def test_the_live_page_shows_the_next_round_by_itself(opened: Opened, tmp_path: Path) -> None:
    folder = a_run(tmp_path / "runs" / NAME.replace("/", "|"), 47.5)
    (folder / "result.json").unlink()
    (folder / "experiment.json").write_text(json.dumps(to_json(replace(Experiment(), rounds=9))))
    browser = opened.page.context.browser
    assert browser is not None
    with server([tmp_path / "runs"], 0) as site, locked(folder):
        thread = threading.Thread(target=site.serve_forever, args=(0.02,))
        thread.start()
        page = browser.new_page()
        page.goto(site.address)
        page.wait_for_selector("text=round 3 of 9")
        assert page.inner_text("#said") == "1 running." and "47.50 %" in page.inner_text("#cards")
        rows = (folder / "rounds.jsonl").read_text()
        line = json.loads(rows.splitlines()[-1]) | {"round": 3, "failed": 2}
        (folder / "rounds.jsonl").write_text(f"{rows}{json.dumps(line)}\n")
        page.wait_for_selector("text=round 4 of 9")
        assert "2 failed clients" in page.inner_text("#cards") and page.title() == "fedatoms live"
        site.shutdown()
        site.server_close()
        page.wait_for_selector("text=The server does not answer", timeout=60_000)
        thread.join()
        page.close()


def test_the_browser_never_complained(opened: Opened) -> None:
    assert opened.complaints == []
