"""axe-core finds nothing on the report and on the live page: light and dark, on phones and screens, folded or not."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from support.browser import LOOKS, a_browser, a_page, a_site, violations
from support.results import a_measure, a_run, an_explanation

from fedatoms.evidence.page.assemble import report
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import to_json
from fedatoms.runs.lock import locked

pytestmark = pytest.mark.slow

OPEN = "document.querySelectorAll('details').forEach(part => part.open = true)"
NEAR = "document.querySelectorAll('section').forEach(part => { part.style.contentVisibility = 'visible'; })"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as started:
        yield started


def test_axe_finds_nothing_on_the_report(browser: Browser, tmp_path: Path) -> None:
    for kind, accuracy in (("", 70.0), ("-atoms", 71.5)):
        for seed in (0, 1):
            a_run(tmp_path / "runs" / f"cell{kind}{seed}", accuracy + seed, f"fedavg{kind}-cifar10-2", seed=seed)
    for name in ("variance", "landscape"):
        a_measure(tmp_path / "runs" / name, name)
    for name in ("why", "again"):
        an_explanation(tmp_path / "runs" / name)
    done = report([tmp_path / "runs"], tmp_path / "report.html")
    for look in LOOKS:
        page = a_page(browser, look)
        page.goto(done.page.as_uri())
        page.evaluate(f"{OPEN}; {NEAR}; find('curves').scrollIntoView()")
        page.wait_for_selector("html[data-drawn=yes]", timeout=120_000)
        assert violations(page) == []
        page.context.close()


def test_axe_finds_nothing_on_the_live_page(browser: Browser, tmp_path: Path) -> None:
    going = a_run(tmp_path / "runs" / "going", 47.5)
    a_run(tmp_path / "runs" / "done", 50.0, seed=1)
    (going / "result.json").unlink()
    (going / "experiment.json").write_text(json.dumps(to_json(replace(Experiment(), rounds=9))))
    with a_site([tmp_path / "runs"]) as address, locked(going):
        for look in LOOKS:
            page = a_page(browser, look)
            page.goto(address)
            page.wait_for_selector("text=round 3 of 9")
            assert violations(page) == []
            page.context.close()
