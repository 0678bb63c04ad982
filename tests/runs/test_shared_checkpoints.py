"""Checkpoints of several processes: each tells what has changed of its own clients, and any number of them goes on."""

import io
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from support.cases import some_now
from support.sealed import older_manifest
from support.small import clients_of, identical, small_net

from fedatoms.algorithms import scaffold
from fedatoms.core.options import Place
from fedatoms.core.randomness import generator
from fedatoms.engine.client_states import Client, Files, flatten
from fedatoms.engine.peers import Lost, Peers, owned
from fedatoms.engine.round import first_memory
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.runs import client_index
from fedatoms.runs.checkpoints import Checkpoints, Loaded, load_checkpoint, load_share
from fedatoms.runs.client_index import read_index

CLIENTS, PRESENT = 40, 5
PLACES: tuple[Place, ...] = ("disk", "host")


class Killed(BaseException):
    """What a process that is killed would feel."""


class Process(NamedTuple):
    """One of the processes of a run; here each is a thread."""

    runtime: Runtime
    sent: list[bytes]
    end: Callable[[], None]


def processes(place: Place, folder: Path, size: int) -> list[Process]:
    """Makes processes that wait for each other, and lose each other when one ends."""
    said, meeting, made = dict[int, bytes](), threading.Barrier(size, timeout=60), list[Process]()
    sim = Simulation(small_net(), clients_of((1,) * CLIENTS), scaffold(), client_state=place, folder=folder / "clients")

    def shown(rank: int, sent: list[bytes]) -> Callable[[bytes], list[bytes]]:
        def show(here: bytes) -> list[bytes]:
            said[rank] = here
            sent.append(here)
            try:
                meeting.wait()
                everything = [said[each] for each in range(size)]
                meeting.wait()
            except threading.BrokenBarrierError:
                raise Lost("another process has ended") from None
            return everything

        return show

    for rank in range(size):
        sent = list[bytes]()
        made.append(Process(prepare(sim, peers=Peers(rank, size, show=shown(rank, sent))), sent, meeting.abort))
    return made


def together(work: Callable[[Process], State], every: list[Process]) -> list[State]:
    def one(process: Process) -> State:
        try:
            return work(process)
        except BaseException:
            process.end()
            raise

    with ThreadPoolExecutor(len(every)) as pool:
        begun = [pool.submit(one, process) for process in every]
    if any(isinstance(each.exception(), Killed) for each in begun):
        raise Killed
    return [each.result() for each in begun]


def loaded_by(process: Process, folder: Path, done: int) -> Loaded:
    if process.runtime.peers.rank:
        return load_share(folder, done, process.runtime, trajectory="law")
    loaded = load_checkpoint(folder, process.runtime, trajectory="law")
    assert (loaded.state.round, loaded.notes) == (done, [])  # the newest is always whole
    return loaded


def trained(process: Process, state: State) -> State:
    """Returns the state after a round: which clients change and how depends on the round and on what they kept."""
    runtime, after, rows = process.runtime, state.round + 1, {}
    present = sorted(torch.randperm(CLIENTS, generator=generator(7, after))[:PRESENT].tolist())
    for client in owned(runtime.peers, present):
        memory = (state.clients.read(client) or Client(first_memory(runtime), {}, {}, {})).memory
        new = {name: leaf / 2 + after + client for name, leaf in memory["control"].items()}
        rows[client] = state.clients.keep(client, Client({"control": new}, {}, {}, {}), after)
    held = state.held.updated({client: {"head": after} for client in present})
    return state._replace(round=after, clients=state.clients.updated(rows, after), held=held)


def until(last: int, folder: Path, every: int = 2) -> Callable[[Process], State]:
    """Returns what a process does: it goes on from the last checkpoint, and writes more of them."""
    done = max((int(path.stem) for path in folder.glob("*.json")), default=0)

    def work(process: Process) -> State:
        loaded = loaded_by(process, folder, done)
        state, checkpoints = loaded.state, Checkpoints(folder, "law", loaded, process.runtime.peers)
        while state.round < last:
            state = trained(process, state)
            checkpoints.note(state.clients)
            if state.round % every == 0:
                checkpoints.save(state, 0.0)
        checkpoints.save(state, 0.0)
        return state

    return work


def stored(folder: Path) -> set[str]:
    return {path.name for path in (folder / "clients").iterdir()}


def needed(folder: Path) -> set[str]:
    listed = [json.loads(path.read_text())["index"] for path in folder.glob("*.json")]
    assert {name for each in listed for name, _ in each} == {path.name for path in (folder / "index").iterdir()}
    tables = [read_index(folder, each).tables.files for each in listed]
    return {row.path.name for table in tables for row in Files(folder, table).values()}


def check_alike(several: list[State], alone: State) -> None:
    """Checks that processes have what one process has: each client once, and all of them what clients hold."""
    assert sorted(client for each in several for client in each.clients.rows) == sorted(alone.clients.rows)
    for each in several:
        assert each.round == alone.round and dict(each.held) == dict(alone.held)
        for client in each.clients.rows:
            here, there = (flatten(state.clients.read(client)) for state in (each, alone))
            assert identical(here, there), client


@pytest.mark.parametrize("place", PLACES)
def test_any_number_of_processes_goes_on_and_leaves_what_the_last_checkpoints_need(
    place: Place, tmp_path: Path
) -> None:
    (alone,) = together(until(19, tmp_path / "alone"), processes(place, tmp_path / "alone", 1))
    folder = tmp_path / "run"
    for last, size in ((5, 3), (9, 2), (13, 1), (17, 4), (19, 2)):
        several = together(until(last, folder), processes(place, folder, size))
        assert stored(folder) == needed(folder) and len(list(folder.glob("*.json"))) == 2
    check_alike(several, alone)
    names = [{path.name for path in (each / "index").iterdir()} for each in (tmp_path / "alone", folder)]
    assert names[0] == names[1]  # by their checksums: whoever wrote it, the index is the same


@pytest.mark.parametrize("place", PLACES)
def test_several_processes_go_on_from_a_manifest_that_lists_all_clients(place: Place, tmp_path: Path) -> None:
    (alone,) = together(until(8, tmp_path / "alone"), processes(place, tmp_path / "alone", 1))
    folder = tmp_path / "run"
    together(until(4, folder), processes(place, folder, 2))
    for path in folder.glob("*.json"):
        older_manifest(path)
    for path in (folder / "index").iterdir():
        path.unlink()
    check_alike(together(until(8, folder), processes(place, folder, 3)), alone)
    assert stored(folder) == needed(folder)


@pytest.mark.parametrize("place", PLACES)
def test_processes_tell_each_other_what_has_changed_and_no_more(place: Place, tmp_path: Path) -> None:
    every = processes(place, tmp_path, 2)
    together(until(60, tmp_path, every=30), every)  # by then every client has a state
    for process in every:
        process.sent.clear()
    states = together(until(60 + 1, tmp_path, every=1), every)
    assert sum(len(state.clients.rows) for state in states) == CLIENTS
    told = [torch.load(io.BytesIO(message)) for process in every for message in process.sent]
    assert sum(len(each) for each in told if isinstance(each, torch.Tensor)) == PRESENT  # also after a second save


@pytest.mark.parametrize(("place", "all_die"), some_now(PLACES, [False, True]))
def test_several_processes_may_be_killed_at_any_write_or_removal(
    place: Place, all_die: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_index, "SMALL", 0)  # so that checkpoints share segments
    (alone,) = together(until(7, tmp_path / "alone"), processes(place, tmp_path / "alone", 1))
    folder, sizes = tmp_path / "run", cycle((3, 2, 1))
    together(until(2, folder), processes(place, folder, 3))
    real, limit, number = {name: getattr(Path, name) for name in ("replace", "unlink")}, 0, 0
    counting = threading.Lock()

    def counted(name: str):  # noqa: ANN202
        def call(path: Path, *given: object, **named: object) -> object:
            nonlocal number
            with counting:
                number += 1
                dies = number >= limit if all_die else number == limit
            if dies:
                raise Killed
            return real[name](path, *given, **named)

        return call

    for name in real:
        monkeypatch.setattr(Path, name, counted(name))
    while number >= limit:  # until all come to their end
        limit, number = limit + 1, 0
        several, every = [], processes(place, folder, next(sizes))
        with suppress(Killed):
            several = together(until(7, folder), every)
    monkeypatch.undo()
    assert limit > 10
    check_alike(several, alone)
    together(until(8, folder), processes(place, folder, 2))  # which removes what the killed ones left
    assert stored(folder) == needed(folder)
