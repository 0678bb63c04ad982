"""A checkpoint costs what has changed: few files, few entries, nothing lost by a kill, and older ones still load."""

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import some_of
from support.sealed import older_manifest
from support.small import clients_of, identical, small_net

from fedatoms.algorithms import scaffold
from fedatoms.core.options import Place
from fedatoms.engine.client_states import Client, Clients, Files, Held, file_name, nothing, put
from fedatoms.engine.loop import Progress, begin, rounds
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.experiment.fields import Experiment
from fedatoms.runs import client_index
from fedatoms.runs.checkpoints import Checkpoints, load_checkpoint
from fedatoms.runs.client_index import Index, Tables, changed, extended, read_index
from fedatoms.runs.execute import resume, run

PLACES: tuple[Place, ...] = ("disk", "host", "device")
TINY = Experiment(
    clients=6,
    partition="iid",
    fraction=0.34,
    rounds=4,
    epochs=1,
    batch_size=50,
    checkpoint_every=1,
    algorithm="scaffold",
    threads=1,
    device="cpu",
)


def many_clients(place: Place, folder: Path, count: int = 1500) -> tuple[Runtime, State]:
    """Makes a federation of which every client has a state already."""
    sim = Simulation(
        small_net(),
        clients_of((1,) * count),
        scaffold(),
        fraction=3 / count,
        score=("server",),
        client_state=place,
        folder=folder / "clients",
    )
    runtime = prepare(sim)
    state, everyone = begin(runtime), range(count)
    row = Client(sim.algorithm.client_memory(runtime.network.parameters), {}, {}, {})
    clients = state.clients.updated({k: state.clients.keep(k, row, 0) for k in everyone}, 0)
    return runtime, state._replace(clients=clients, held=state.held.updated(dict.fromkeys(everyone, state.versions)))


def played(runtime: Runtime, state: State, until: int) -> Iterator[State]:
    return (progress.state for progress in rounds(runtime, state, until))


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("place", some_of(PLACES, "disk"))
def test_a_checkpoint_writes_the_clients_that_changed_and_no_others(place: Place, tmp_path: Path) -> None:
    runtime, first = many_clients(place, tmp_path)
    checkpoints = Checkpoints(tmp_path, "law")
    checkpoints.save(first, 0.0)
    before, base = files_in(tmp_path), max((tmp_path / "index").iterdir(), key=lambda path: path.stat().st_size)
    for state in played(runtime, first, 2):
        checkpoints.note(state.clients)
    checkpoints.save(state, 0.0)
    new = files_in(tmp_path) - before
    (segment,) = (name for name in new if name.startswith("index/"))
    clients = {int(Path(name).stem.split("-")[0]) for name in new if name.startswith("clients/")}
    assert base.exists() and (tmp_path / segment).stat().st_size < base.stat().st_size / 20
    assert 3 <= len(clients) <= 6 and len(new) == len(clients) + 3  # with the index, the tensors and the manifest
    loaded = load_checkpoint(tmp_path, runtime, trajectory="law").state
    assert dict(loaded.held) == dict(state.held) and list(loaded.clients.rows) == list(state.clients.rows)
    for client in range(0, 1500, 7):
        one, other = (each.clients.read(client).memory["control"] for each in (state, loaded))
        assert identical(one, other)


@pytest.mark.parametrize("place", PLACES)
def test_only_what_the_last_two_checkpoints_need_is_there_though_nothing_is_listed(
    place: Place, tmp_path: Path
) -> None:
    runtime, first = many_clients(place, tmp_path, count=5)
    loaded = None
    for process in range(2):  # the second one goes on from what the first has left
        checkpoints = Checkpoints(tmp_path, "law", loaded)
        for state in played(runtime, loaded.state if loaded else first, 12 * (process + 1)):
            checkpoints.note(state.clients)
            if state.round % 3 == 0:
                checkpoints.save(state, 0.0)
                checkpoints.save(state, 0.0)  # as Ctrl-C does after a checkpoint
                saved = load_checkpoint(tmp_path, runtime, trajectory="law").saved
                assert stored(tmp_path) == needed(tmp_path)
                assert changed(saved.tables, Tables(saved.tables.files, state.held.table)).tolist() == []
        loaded = load_checkpoint(tmp_path, runtime, trajectory="law")


@pytest.mark.parametrize("place", PLACES)
def test_what_is_read_from_a_checkpoint_begins_in_memory_where_torch_lets_tensors_begin(
    place: Place, tmp_path: Path
) -> None:
    """Its kernels round by that: a resumed run, and one with states on disk, would have other last digits."""
    runtime, first = many_clients(place, tmp_path, count=5)
    Checkpoints(tmp_path, "law").save(first, 0.0)
    state = load_checkpoint(tmp_path, runtime, trajectory="law").state
    trees = [state.server.params, *state.server.memory.values()]
    trees += [state.clients.read(client).memory["control"] for client in range(5)]
    assert {leaf.data_ptr() % 64 for tree in trees for leaf in tree.values()} == {0}


def stored(folder: Path) -> set[str]:
    return {path.name for path in (folder / "clients").iterdir()}


def needed(folder: Path) -> set[str]:
    listed = [json.loads(path.read_text())["index"] for path in folder.glob("*.json")]
    tables = [read_index(folder, each).tables.files for each in listed]
    return {row.path.name for table in tables for row in Files(folder, table).values()}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 400), min_size=1, max_size=9), min_size=1, max_size=40))
def test_an_index_reads_as_it_was_written_in_few_segments_whose_cost_is_that_of_the_changes(
    history: list[list[int]],
) -> None:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_index, "SMALL", 0)
        folder, index, tables, written = Path(name), Index(), Tables(), 0
        for number, clients in enumerate(history, 1):
            files = put(tables.files, {client: (number, 2**32 - client - 1) for client in clients})
            held = Held(tables.held).updated({client: {"head": number, "rest": client} for client in clients})
            before, tables = index, Tables(files, held.table)
            index = extended(folder, index, tables, number)
            written += sum(len(one.clients) for one in index.segments if one not in before.segments)
            listed = [(one.name, one.checksum) for one in index.segments]
            assert changed(read_index(folder, listed).tables, tables).tolist() == []
            assert len(index.segments) <= 2 + math.log2(len(set().union(*map(set, history))))
    changes = sum(len(set(clients)) for clients in history)
    assert written <= changes * (2 + math.log(max(changes, 2), 1.5))


def test_a_small_index_is_no_two_checkpoints_to_share(tmp_path: Path) -> None:
    run(replace(TINY, out=str(tmp_path), name="run"))
    folder = tmp_path / "run" / "checkpoint"
    assert sorted(path.name[:6] for path in (folder / "index").iterdir()) == ["000003", "000004"]


def test_a_checkpoint_of_an_older_version_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.state.round == 2:
            raise ConnectionError

    models = []
    for name in ("whole", "run"):
        with suppress(ConnectionError):
            run(replace(TINY, out=str(tmp_path), name=name), watch=stop if name == "run" else None)
        if name == "run":
            for path in (tmp_path / name / "checkpoint").glob("*.json"):
                older_manifest(path)
            for path in (tmp_path / name / "checkpoint" / "index").iterdir():
                path.unlink()
            resume(tmp_path / name, {})
        models.append((tmp_path / name / "model.safetensors").read_bytes())
        found = needed(tmp_path / name / "checkpoint")
        assert stored(tmp_path / name / "checkpoint") == found != set()
    assert models[0] == models[1]


class Killed(BaseException):
    """What a process that is killed would feel."""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["disk", "host"])
def test_a_run_with_client_states_may_be_killed_at_any_write_or_removal(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_index, "SMALL", 0)  # so that checkpoints share segments
    experiment = replace(TINY, client_state=place, out=str(tmp_path), rounds=5)
    whole = run(replace(experiment, name="whole")).folder
    run(replace(experiment, name="run", rounds=2))
    real, limit, number = {name: getattr(Path, name) for name in ("replace", "unlink")}, 0, 0

    def counted(name: str):  # noqa: ANN202
        def call(path: Path, *given: object, **named: object) -> object:
            nonlocal number
            counts = path.name != "lock"  # which only the death of a process sets free
            number += counts
            if counts and number == limit:
                raise Killed
            return real[name](path, *given, **named)

        return call

    for name in real:
        monkeypatch.setattr(Path, name, counted(name))
    while number >= limit:  # until one comes to its end
        limit, number = limit + 1, 0
        with suppress(Killed):
            resume(tmp_path / "run", {"rounds": 5})
    monkeypatch.undo()
    assert limit > 10
    assert (whole / "model.safetensors").read_bytes() == (tmp_path / "run" / "model.safetensors").read_bytes()
    resume(tmp_path / "run", {"rounds": 6})  # which removes what the killed ones left
    assert stored(tmp_path / "run" / "checkpoint") == needed(tmp_path / "run" / "checkpoint")


def test_a_table_of_clients_is_a_value_that_grows(tmp_path: Path) -> None:
    first = put(nothing(2), {3: (1, 10)})
    second = put(first, {0: (2, 20), 9: (2, 30)})
    assert list(Files(tmp_path, first)) == [3] and list(Files(tmp_path, second)) == [0, 3, 9]
    assert Files(tmp_path, second)[9].path == tmp_path / file_name(9, 2) and 4 not in Files(tmp_path, second)
    assert put(first, {}) is first and len(Files(tmp_path, nothing(2))) == 0
    clients = Clients(place="disk", folder=tmp_path)
    kept = clients.keep(5, Client({}, {"w": torch.ones(1)}, {}, {}), 1)
    assert clients.updated({5: kept}, 1).read(5).own["w"] == 1 and clients.read(5) is None
