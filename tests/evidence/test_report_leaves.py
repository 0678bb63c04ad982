"""What leaves the page: tables on a real clipboard, and all of it on paper."""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from support.browser import a_browser, a_page
from support.results import a_measure, a_run, an_explanation

from fedatoms.evidence.page.assemble import report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as started:
        yield started


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """Opens the page of a plain and a decomposed experiment, a measure and an explanation."""
    for kind, accuracy in (("", 50.0), ("-atoms", 48.5)):
        for seed in (0, 1):
            a_run(tmp_path / "runs" / f"run{kind}{seed}", accuracy + seed, f"fedavg{kind}", seed=seed)
    a_measure(tmp_path / "runs" / "variance", "variance")
    an_explanation(tmp_path / "runs" / "why")
    page = a_page(browser, "screen, light")
    page.goto(report([tmp_path / "runs"], tmp_path / "report.html").page.as_uri())
    yield page
    page.context.close()


def copied(page: Page, words: str) -> str:
    """Clicks a button, and returns what a person can then paste."""
    page.locator("#compare .tools").first.get_by_text(words).click()
    page.evaluate("document.body.append(Object.assign(document.createElement('textarea'), {id: 'pasted'}))")
    page.focus("#pasted")
    page.keyboard.press("Control+V")
    text = page.input_value("#pasted")
    page.evaluate("find('pasted').remove()")
    return text


def test_a_table_is_pasted_as_it_was_copied(page: Page) -> None:
    cells = page.eval_on_selector_all(
        "#versus tr", "all => all.map(row => [...row.cells].map(cell => minus(cell.textContent)))"
    )
    assert len(cells) == 3 and any("-1.50" in cell for row in cells for cell in row)
    assert list(csv.reader(io.StringIO(copied(page, "CSV")))) == cells
    lines = copied(page, "Markdown").splitlines()
    assert [line.strip("| ").split(" | ")[0] for line in lines] == [cells[0][0], "---", cells[1][0], cells[2][0]]
    latex = copied(page, "LaTeX")
    assert latex.startswith("\\begin{tabular}{lrr") and latex.count("\\\\\n") == 3 and "$\\pm$" in latex


def test_rows_that_come_back_are_copied_even_before_they_are_shown(page: Page) -> None:
    before = page.evaluate("asCsv(versus)")
    page.fill("#search", "nothing has this name")
    assert page.evaluate("asCsv(versus)").count("\n") == 1
    again = "find('search').value = ''; filter(); for (const row of rowsOf) row.hidden = true; waiting = [...rowsOf];"
    assert page.evaluate(f"{again} asCsv(versus)") == before
    page.evaluate("showSome()")
    assert page.locator("#versus tbody tr:visible").count() == 2


def test_the_printed_file_has_every_figure(page: Page) -> None:
    labels = page.eval_on_selector_all(".still svg[role=img]", "all => all.map(one => one.getAttribute('aria-label'))")
    printed = page.pdf(tagged=True).decode("latin-1")  # a tagged file names its figures; these have plain letters
    plain = [label for label in labels if label.isascii() and not set(label) & set("()\\\\")]
    assert len(plain) > 4 and [label for label in plain if f"/Alt ({label})" not in printed] == []
    assert len(re.findall(r"/S /Figure", printed)) > len(labels)
