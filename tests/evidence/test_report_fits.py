"""The page of the project's own runs fits its screen: no column is cut, what scrolls says so, and dots have names."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from support import ROOT
from support.browser import a_browser

from fedatoms.evidence.claims import claims
from fedatoms.evidence.page.assemble import Report, report
from fedatoms.evidence.page.dot_plots import DOTS

pytestmark = pytest.mark.slow

TALL = "box => box.scrollHeight > box.clientHeight + 2"
WIDE = "box => box.scrollWidth > box.clientWidth + 2"
SHOWN = "#versus tbody tr:visible"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return report([ROOT / "paper-results"], tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as started:
        yield started


def opened(browser: Browser, page: Path, width: int, *, scripts: bool = True) -> Page:
    context = browser.new_context(viewport={"width": width, "height": 844}, java_script_enabled=scripts)
    tab = context.new_page()
    tab.goto(page.as_uri())
    if scripts:
        tab.evaluate(
            "document.querySelectorAll('section').forEach(part => { part.style.contentVisibility = 'visible'; })"
        )
        tab.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
        tab.wait_for_timeout(300)  # boxes are asked for their sizes in the next frame
    return tab


@pytest.mark.parametrize("width", [1024, 1440])
def test_no_column_of_a_table_that_one_reads_is_cut(browser: Browser, made: Report, width: int) -> None:
    page = opened(browser, made.page, width)
    names = ["best", "versus", "pairs", "table-1", "table-2", "table-3"]
    assert [name for name in names if page.eval_on_selector(f"#{name}", WIDE)] == []
    if width == 1440:
        page.select_option("#setting", "")  # which has a column more
        page.wait_for_function("() => !waiting.length")
        assert not page.eval_on_selector("#versus", WIDE)
    page.context.close()


def test_a_box_that_scrolls_says_so_until_its_end(browser: Browser, made: Report) -> None:
    page = opened(browser, made.page, 1440)
    for box in page.locator(".box").all():
        ways = [way for way, found in (("down", TALL), ("right", WIDE)) if box.evaluate(found)]
        assert (box.get_attribute("data-more") or "").split() == ways
        assert bool(box.evaluate("box => box.previousElementSibling.firstElementChild.textContent")) == bool(ways)
        assert (box.evaluate("box => getComputedStyle(box).maskImage") != "none") == bool(ways)
    page.evaluate("find('versus').scrollTo(0, 1e6)")
    page.wait_for_function("() => !find('versus').dataset.more")
    page.context.close()


def test_a_phone_shows_the_whole_menu_and_no_card_in_a_box_that_scrolls(browser: Browser, made: Report) -> None:
    page = opened(browser, made.page, 390)
    ends = page.eval_on_selector_all("nav a", "all => all.map(one => one.getBoundingClientRect().right)")
    assert max(ends) <= 390 and not page.eval_on_selector("nav", WIDE)
    assert page.evaluate("document.querySelector('.lead').getBoundingClientRect().bottom") < 400
    for box in page.locator(".box.stacked").all():
        assert not box.evaluate(TALL) and not box.evaluate(WIDE)
    for box in page.locator(".box:not(.stacked)").all():  # reference tables still scroll, with a sign
        if box.evaluate(WIDE):
            assert "right" in (box.get_attribute("data-more") or "")
    page.context.close()


def test_a_phone_shows_the_first_cards_and_the_others_by_a_button(browser: Browser, made: Report) -> None:
    page = opened(browser, made.page, 390)
    assert page.locator(SHOWN).count() == 6
    page.fill("#search", "fedprox")
    assert 0 < page.locator(SHOWN).count() < 6 and not page.locator("#versus + .more:visible").count()
    page.fill("#search", "")
    rows = page.evaluate("rowsIn('versus').filter(row => !row.hidden).length")
    assert page.inner_text("#versus + .more") == f"Show all {rows} rows"
    page.click("#versus + .more")
    assert page.locator(SHOWN).count() == len(page.locator("#versus tbody tr:not([hidden])").all()) > 6
    assert not page.locator("#versus + .more:visible").count()
    assert page.locator("#table-1 tbody tr:visible").count() == 6
    page.uncheck("#paper-table-1 .only input")
    assert page.locator("#table-1 tbody tr:visible").count() == 60
    page.context.close()


@pytest.mark.parametrize("how", ["390", "1440", "print", "no scripts"])
def test_every_dot_of_a_claim_has_its_name_beside_it(browser: Browser, made: Report, how: str) -> None:
    page = opened(browser, made.page, int(how) if how.isdecimal() else 1440, scripts=how != "no scripts")
    if how == "print":
        page.emulate_media(media="print")
    many = [each.evidence[:DOTS] for each in claims(made.found) if len(each.evidence) > 1]
    rows = page.locator(".dots li:not(.where, .scale)")
    assert rows.count() == sum(map(len, many)) > 100
    found = rows.evaluate_all(
        """all => all.map(row => [row.firstChild, row.lastChild].map(part => part.getBoundingClientRect()))
        .map(([name, dot]) => [name.width, name.right <= dot.left, dot.width, dot.right <= innerWidth, dot.height])"""
    )
    assert all(name > 60 and apart and dot > 60 and inside and tall > 10 for name, apart, dot, inside, tall in found)
    named = page.eval_on_selector_all(".dots li > span", "all => all.map(one => one.textContent)")
    assert "FedAvg, cifar10 (100,\u00a02)" in named and all(named)
    assert page.eval_on_selector(".dots", "one => parseFloat(getComputedStyle(one).fontSize)") >= 9  # 7 pt on paper
    page.context.close()


@pytest.mark.parametrize("width", [390, 1440])
def test_no_option_is_broken_and_no_word_of_the_answers_commands(browser: Browser, made: Report, width: int) -> None:
    page = opened(browser, made.page, width)
    broken = "words => words.filter(word => word.offsetHeight > 30).map(word => word.textContent)"
    assert page.locator(".answers code b").count() > 2
    assert page.eval_on_selector_all(".answers code b", broken) == []
    assert [word for word in page.eval_on_selector_all("code b, .command b", broken) if word.startswith("--")] == []
    page.context.close()
