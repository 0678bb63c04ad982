"""The live page: for this machine alone, follows runs, and one line for whatever goes wrong."""

import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlparse

import pytest
from support.results import a_run

from fedatoms.cli import main
from fedatoms.evidence.page import serve
from fedatoms.evidence.page.serve import LOOPBACK, Site, server
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import to_json
from fedatoms.runs.lock import locked

NAME = "<script>document.title='broken'</script>".replace("/", "|")


def going(folder: Path, rounds: int = 9, seed: int = 0) -> Path:
    """Writes a run of three rounds that has no result yet."""
    a_run(folder, 47.5, seed=seed)
    (folder / "result.json").unlink()
    (folder / "experiment.json").write_text(json.dumps(to_json(replace(Experiment(), rounds=rounds, seed=seed))))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    going(tmp_path / "runs" / "going")
    a_run(tmp_path / "runs" / NAME, seed=1)
    return tmp_path / "runs"


@pytest.fixture
def site(runs: Path) -> Iterator[Site]:
    with server([runs], 0) as site:
        thread = threading.Thread(target=site.serve_forever, args=(0.02,))
        thread.start()
        yield site
        site.shutdown()
        thread.join()


def get(site: Site, path: str, **headers: str) -> tuple[int, str]:
    """Asks for a page of the site."""
    connection = http.client.HTTPConnection(LOOPBACK, site.server_port, timeout=60)
    connection.request("GET", urlparse(site.address).path + path, headers=headers)
    reply = connection.getresponse()
    found = reply.status, reply.read().decode()
    connection.close()
    return found


def test_it_follows_a_run_round_by_round(runs: Path, site: Site) -> None:
    with locked(runs / "going"):
        first = json.loads(get(site, "live.json")[1])["runs"][0]
        assert (first["state"], first["done"], first["rounds"], first["loss"]) == ("running", 3, 9, 1.0)
        assert first["scores"]["all"]["accuracy"] == 47.5 and first["up"] == 39_000_000 and first["failed"] == 0
        assert first["curves"]["all"] == [[1, 47.5], [2, 47.5], [3, 47.5]]
        file = runs / "going" / "rounds.jsonl"
        line = json.loads(file.read_text().splitlines()[-1]) | {"round": 3, "loss": 0.5, "failed": 2}
        line["scores"] = {"all": {"accuracy": 50.0, "worst": 30.0, "spread": 4.5}}
        with file.open("a") as opened:
            opened.write(json.dumps(line) + "\n")
        second = json.loads(get(site, "live.json")[1])["runs"][0]
    assert (second["done"], second["loss"], second["failed"]) == (4, 0.5, 2)
    assert second["scores"]["all"] == {"accuracy": 50.0, "worst": 30.0, "spread": 4.5}
    assert json.loads(get(site, "live.json")[1])["runs"][0]["state"] == "stopped"


def test_a_line_that_is_half_written_is_left_out_until_it_is_whole(runs: Path, site: Site) -> None:
    file = runs / "going" / "rounds.jsonl"
    with locked(runs / "going"):
        file.write_text(file.read_text() + '{"round": 3, "lo')
        found = json.loads(get(site, "live.json")[1])
    assert found["error"] == "" and found["runs"][0]["done"] == 3 and found["runs"][0]["state"] == "running"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_another_host_or_origin_is_refused(headers: dict[str, str], site: Site) -> None:
    for path in ("", "live.json", "report"):
        status, said = get(site, path, **headers)
        assert status == 403 and said.count("\n") == 1


def test_its_own_page_is_answered_and_anything_else_is_one_line(site: Site) -> None:
    status, page = get(site, "", Host=f"localhost:{site.server_port}", Origin=f"http://localhost:{site.server_port}")
    assert status == 200 and "fedatoms live" in page and NAME not in page
    assert get(site, "passwd") == (404, "There is the live page, and report.\n")


@pytest.mark.parametrize(
    "path", ["/", "/live.json", "/report", "/report.csv", "/wrong/live.json", "/é/", "//live.json"]
)
def test_nobody_reads_a_page_without_the_secret_of_its_address(path: str, site: Site) -> None:
    connection = http.client.HTTPConnection(LOOPBACK, site.server_port, timeout=60)
    connection.request("GET", quote(path))
    reply = connection.getresponse()
    assert (reply.status, reply.read()) == (403, b"Use the whole address that was printed.\n")
    connection.close()


def test_every_server_has_a_secret_of_its_own(runs: Path, site: Site) -> None:
    with server([runs], 0) as other:
        assert len({each.address.split("/")[3] for each in (site, other)}) == 2
        assert all(len(each.address.split("/")[3]) >= 16 for each in (site, other))


def test_two_who_ask_for_the_report_have_it_drawn_one_after_the_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, most = list[int](), list[int]()

    def drawn(*values: object) -> str:
        at_once.append(1)
        most.append(len(at_once))
        time.sleep(0.05)
        at_once.pop()
        return "a page"

    monkeypatch.setattr(serve, "render", drawn)
    asked = [threading.Thread(target=get, args=(site, "report")) for _ in range(3)]
    for each in asked:
        each.start()
    for each in asked:
        each.join()
    assert most == [1, 1, 1]


def test_the_report_is_made_when_asked_with_names_escaped(site: Site) -> None:
    status, page = get(site, "report")
    assert status == 200 and NAME not in page and "What these runs say" in page


def test_a_folder_that_vanishes_costs_one_line(runs: Path, site: Site) -> None:
    shutil.rmtree(runs)
    found = json.loads(get(site, "live.json")[1])
    assert found["runs"] == [] and "is not a folder any more" in found["error"]
    status, said = get(site, "report")
    assert status == 503 and said.count("\n") == 1


def test_a_taken_port_and_bad_ports_cost_one_line(runs: Path, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--port", str(site.server_port)], f"--port {site.server_port} is taken by another program"),
        (["--port", "70000"], "--port 70000"),
    ):
        assert main(["report", str(runs), "--serve", *words]) == 2
        told = capsys.readouterr().err
        assert said in told and told.count("\n") == 1
    assert main(["report", "nowhere", "--serve"]) == 2
    assert "nowhere is not a folder" in capsys.readouterr().err


def test_it_listens_on_this_machine_alone(runs: Path) -> None:
    with server([runs], 0) as site:
        assert site.server_address[0] == LOOPBACK
