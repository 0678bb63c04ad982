"""On a phone tables are cards that nothing cuts off; on every screen what to type is one click away."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from support.browser import a_browser, a_page
from support.results import a_run

from fedatoms.evidence.page.assemble import STACKED, report
from fedatoms.evidence.results.finding import PUBLISHED

pytestmark = pytest.mark.slow

CUT = """all => all.filter(one => one.offsetParent && one.textContent)
  .filter(one => one.getBoundingClientRect().right > innerWidth || one.scrollWidth > one.clientWidth + 1)
  .map(one => one.textContent)"""
LABEL = "all => all.map(one => getComputedStyle(one, '::before').content.slice(1, -1))"
HEADS = "all => all.map(one => one.textContent)"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes the page of own runs of two settings, one of them stopped, and of cells of the paper."""
    folder = tmp_path_factory.mktemp("report")
    for kind, score in (("", 50.0), ("-atoms", 53.0)):
        for seed in (0, 1):
            for where, more in (("digits", {}), ("iid", {"partition": "iid", "lr": 0.05})):
                a_run(folder / "runs" / f"{where}{kind}{seed}", score + seed / 3, f"fedavg{kind}", seed=seed, **more)
            a_run(folder / PUBLISHED / f"cell{kind}{seed}", score, f"fedavg{kind}-cifar10-2", seed=seed, rounds=0)
    stopped = a_run(folder / "runs" / "stopped", preset="fedprox")
    (stopped / "experiment.json").write_text('{"algorithm": "fedprox", "rounds": 9}')
    (stopped / "result.json").unlink()
    return report([folder / "runs", folder / PUBLISHED], folder / "report.html").page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as started:
        yield started


def opened(browser: Browser, file: Path, look: str) -> Page:
    page = a_page(browser, look)
    page.goto(file.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    page.evaluate("document.querySelectorAll('section').forEach(part => { part.style.contentVisibility = 'visible'; })")
    return page


def test_a_phone_cuts_no_cell_off_and_names_each(browser: Browser, file: Path) -> None:
    page = opened(browser, file, "phone, light")
    for name, heads in STACKED:
        if page.locator(f"#{name}").count():
            assert page.eval_on_selector_all(f"#{name} tbody td", CUT) == []
            first = f"#{name} tbody tr:first-child td:not(:first-child)"
            assert page.eval_on_selector_all(first, LABEL) == list(heads[1:])
            assert page.eval_on_selector_all(f"#{name} th", HEADS) == list(heads)
    assert page.locator("#best tbody tr").count() == 2 and page.locator("#unfinished tbody tr").count() == 1
    page.context.close()


def test_cards_are_sorted_by_the_buttons_above_them(browser: Browser, file: Path) -> None:
    page = opened(browser, file, "phone, light")
    page.select_option("#setting", "")
    page.click("#versus th:nth-child(2) button")
    scores = page.eval_on_selector_all("#versus tbody tr", "all => all.map(row => Number(keyOf(row.cells[1])))")
    assert len(scores) == 6 and scores == sorted(scores)
    page.context.close()


def test_a_screen_shows_what_to_type_without_scrolling_sideways(browser: Browser, file: Path) -> None:
    page = opened(browser, file, "screen, light")
    for name, column in (("best", 7), ("versus", 10), ("pairs", 7)):
        cell = page.locator(f"#{name} tbody tr:not([hidden]) td:nth-child({column})").first
        assert cell.inner_text().startswith("fedatoms ")
        assert cell.evaluate(
            "one => one.getBoundingClientRect().right <= one.closest('.box').getBoundingClientRect().right"
        )
    assert not page.locator("#versus td.setting:visible").count()  # all rows are of one setting
    page.select_option("#setting", "")
    assert page.locator("#versus td.setting:visible").count() == 6
    page.context.close()


@pytest.mark.parametrize("where", ["#answer .answers code", "#best td.command", "#paper .again code"])
def test_a_command_is_copied_by_one_click(browser: Browser, file: Path, where: str) -> None:
    page = opened(browser, file, "screen, light")
    words = page.locator(where).filter(has_text="fedatoms ").first
    page.get_by_label(f"Copy: {words.text_content()}", exact=True).first.click()
    page.evaluate("document.body.append(Object.assign(document.createElement('textarea'), {id: 'pasted'}))")
    page.focus("#pasted")
    page.keyboard.press("Control+V")
    assert page.input_value("#pasted") == words.text_content()
    page.context.close()


def test_the_lines_of_a_figure_can_be_chosen_on_a_phone_whenever_it_is_opened(browser: Browser, file: Path) -> None:
    for _ in range(6):  # a fieldset had no box in every third opening
        context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
        page = context.new_page()
        page.goto(file.as_uri())
        page.evaluate("find('curves').scrollIntoView()")
        page.wait_for_selector("html[data-drawn=yes]", timeout=120_000)
        assert page.locator("#curve-lines input:visible").count() == 2
        context.close()
