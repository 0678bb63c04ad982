"""Laws of runs on several processes: as many as three train what one would, and any number continues them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from support import ROOT
from support.peers import ROUNDS, RUNS, STOP, Seen, everything, port
from support.small import clients_of, difference, identical, small_net

from fedatoms.algorithms.base import Algorithm, Server, Work
from fedatoms.core.trees import NUMBERS, Memory, Params
from fedatoms.engine.gloo import connected, device_here, place_of
from fedatoms.engine.loop import begin
from fedatoms.engine.peers import ALONE, Peers, even_share, owned
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.runs.results import read_result
from fedatoms.runs.rounds import read_rounds

WITHIN = 1e-12
WHERE = {"3": (0, 1, 2), "2": (0, 1), "2 from 3": (0, 1), "1 from 3": (2,), "3 from 1": (0, 1, 2)}  # their numbers
Found = dict[tuple[str, str], tuple[Seen, ...]]


@pytest.fixture(scope="module", params=["fast", pytest.param("slow", marks=pytest.mark.slow)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Starts three processes once, which run everything."""
    folder = tmp_path_factory.mktemp("peers")
    ports = ",".join(str(port()) for _ in range(4 + 2 * len(RUNS)))
    path = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    about = {**os.environ, "MASTER_ADDR": "127.0.0.1", "PYTHONPATH": path, "FEDATOMS_PATIENCE": "120"}
    words = [sys.executable, "-W", "error", "-m", "support.peers", str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = [subprocess.Popen([*words, str(rank), ports, request.param], env=about, **pipes) for rank in range(3)]
    said = [each.communicate(timeout=400)[0] for each in started]
    assert [each.returncode for each in started] == [0, 0, 0], "\n".join(said)
    (folder / "said").write_text(said[1])
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    """Reads what each process has of each run, by how many processes it was on."""
    each = [torch.load(folder / f"{rank}.pt") for rank in range(3)]
    names = [("1", name) for what, name in each[2] if what == "1"]
    seen = {key: (Seen(*each[2][key]),) for key in names}
    for what, ranks in WHERE.items():
        for key in [key for key in each[ranks[0]] if key[0] == what]:
            seen[key] = tuple(Seen(*each[rank][key]) for rank in ranks)
    return seen


def alone_and_together(found: Found) -> list[tuple[str, Seen, tuple[Seen, ...]]]:
    pairs = [(f"{name} on {what}", found["1", name][0], seen) for (what, name), seen in found.items() if what != "1"]
    assert len(pairs) > 2 * len(everything(slow=False))
    return pairs


def test_every_algorithm_exchange_and_method_gives_the_models_of_one_process(found: Found) -> None:
    for name, one, several in alone_and_together(found):
        assert difference(one.server, several[0].server) <= WITHIN, name


def test_all_processes_hold_the_same_server_to_the_bit(found: Found) -> None:
    for name, _, several in alone_and_together(found):
        assert all(identical(several[0].server, other.server) for other in several), name


def test_every_client_has_one_owner_and_keeps_what_it_keeps_on_one_process(found: Found) -> None:
    for name, one, several in alone_and_together(found):
        owners = [client for each in several for client in each.rows]
        assert sorted(owners) == sorted(one.rows), name
        for each in several:
            for client, row in each.rows.items():
                assert difference({"": torch.zeros(()), **row}, {"": torch.zeros(()), **one.rows[client]}) <= WITHIN


def test_losses_bytes_and_scores_are_those_of_one_process(found: Found) -> None:
    for name, one, several in alone_and_together(found):
        for each in several:
            rounds = one.history if len(each.history) == ROUNDS else one.history[STOP:]
            for here, there in zip([*each.history, each.personal], [*rounds, one.personal], strict=True):
                assert here == pytest.approx(there, rel=WITHIN, abs=WITHIN), name


@pytest.mark.parametrize("name", RUNS)
def test_a_folder_is_that_of_one_process_also_if_others_continue_it(name: str, folder: Path) -> None:
    one, several = folder / f"{name}-1", folder / f"{name}-3"
    files = [{str(path.relative_to(each)) for path in each.rglob("*.*")} for each in (one, several)]
    assert {file for file in files[0] if "checkpoint" not in file} == {f for f in files[1] if "checkpoint" not in f}
    for file in (file for file in files[0] if file.endswith(".safetensors") and "checkpoint" not in file):
        assert difference(load_file(one / file), load_file(several / file)) < 1e-5, file  # digits are in float32
    for row, other in zip(read_rounds(one), read_rounds(several), strict=True):
        for part in ("round", "clients", "failed", "up", "down"):
            assert row[part] == other[part]
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-4)
        for model, score in row["scores"].items():
            assert score == pytest.approx(other["scores"][model], rel=1e-3)
    assert [read_result(each).provenance["processes"] for each in (one, several)] == [1, 2]
    assert not (several / "lock").exists()


def test_only_process_0_speaks(folder: Path) -> None:
    assert (folder / "said").read_text() == ""


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=20), size=st.integers(1, 5))
def test_shares_have_every_client_once_and_are_even(sizes: list[int], size: int) -> None:
    every = [Peers(rank, size) for rank in range(size)]
    shares = [even_share(peers, range(len(sizes)), sizes.__getitem__) for peers in every]
    assert sorted(client for share in shares for client in share) == list(range(len(sizes)))
    loads = [sum(sizes[client] for client in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes)
    assert sorted(client for peers in every for client in owned(peers, range(9))) == list(range(9))


GIVEN = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"MASTER_ADDR": ""}, "WORLD_SIZE=2, but MASTER_ADDR is not set: .* Start them with `torchrun"),
        ({"RANK": ""}, "WORLD_SIZE=2, but RANK is not set"),
        ({"RANK": "2"}, "RANK=2 of WORLD_SIZE=2"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two is not a whole number"),
    ],
)
def test_what_no_torchrun_says_is_refused_in_one_line(changes: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        place_of({**GIVEN, **changes})
    assert "\n" not in str(error.value)


def test_a_process_that_nobody_joins_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**GIVEN, "RANK": "0", "MASTER_PORT": str(port())}.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(ConnectionError, match=r"process 0 of 2 cannot reach the others at 127.0.0.1:\d+"),
        connected(place_of(os.environ), patience=1),
    ):
        pass


def test_alone_nothing_is_sent_and_the_device_is_as_given() -> None:
    with connected(place_of({})) as (peers, ended):
        assert peers == ALONE and ended() is None
    assert device_here("cpu", 1) == "cpu"


def test_a_number_that_is_not_finite_is_refused_on_several_processes_as_on_one() -> None:
    def report(params: Params, server: Server, memory: Memory, work: Work) -> tuple[Memory, Memory]:
        return {"params": params, NUMBERS: {"ratio": torch.log(work.steps.double() - 1)}}, memory

    sim = Simulation(small_net(), clients_of((5, 5)), Algorithm(report=report))  # clients of a single step
    for peers in (ALONE, Peers(size=2, add=lambda here: 2 * here, show=lambda here: [here, here])):
        runtime = prepare(sim, peers=peers)
        with pytest.raises(FloatingPointError, match="client 0, round 1: a number of its upload is not finite"):
            advance(runtime, begin(runtime))
