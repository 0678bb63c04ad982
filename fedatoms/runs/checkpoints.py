"""Checkpoints that survive a kill at any moment: new files first, then the manifest that names them."""

import errno
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict

import torch
from msgspec import Meta
from safetensors.torch import load, save

from fedatoms.algorithms.base import Server
from fedatoms.core.border import TooLarge, read_bytes
from fedatoms.core.files import Stored, read_file, replace_file, write_file
from fedatoms.core.options import Group
from fedatoms.core.records import FORMAT, fit, read_record, sealed
from fedatoms.core.trees import Memory, Params, misfit
from fedatoms.engine.client_states import Client, Clients, flatten, unflatten
from fedatoms.engine.loop import begin
from fedatoms.engine.peers import ALONE, Peers, gather, owned, union
from fedatoms.engine.remote import misfit_of
from fedatoms.engine.runtime import Runtime
from fedatoms.engine.state import State

KEPT = 2  # the last checkpoint, and one to fall back to


class Loaded(NamedTuple):
    """A state read from a checkpoint, the seconds spent until then, and notes on damaged newer ones."""

    state: State
    seconds: float
    notes: list[str]


def save_checkpoint(folder: Path, state: State, *, trajectory: str, seconds: float, peers: Peers = ALONE) -> None:
    """Writes a checkpoint and removes what none of the last ones needs.

    Each process writes the files of its own clients, process 0 all else; none goes on before it is whole.
    """
    live = {row.path.name for row in state.clients.rows.values() if isinstance(row, Stored)}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        rows = _stored_by_all(folder, state, peers)
        live |= {name for name, _ in rows.values()}
        if peers.rank == 0:
            _save(folder, state, rows, trajectory, seconds)
    finally:  # also when the disk is full: files that no whole checkpoint needs take up space
        if peers.rank == 0:
            _tidy(folder, live)
    gather(peers, state.round)


def load_share(folder: Path, done: int, runtime: Runtime, *, trajectory: str) -> State:
    """Reads this process's share of the checkpoint after ``done`` rounds, which process 0 has found whole."""
    path = folder / f"{done:06d}.json"
    return _load(path, runtime, trajectory, []).state if done or path.exists() else begin(runtime)


def load_checkpoint(folder: Path, runtime: Runtime, *, trajectory: str, set_aside: bool = True) -> Loaded:
    """Reads the newest checkpoint that is whole, with notes on damaged ones; without any, begins at round 0.

    ``set_aside`` renames damaged ones, out of the way of new ones: only for the holder of the lock.
    """
    notes: list[str] = []
    if not [*folder.glob("*.json"), *folder.glob("*.damaged")]:
        return Loaded(begin(runtime), 0.0, notes)  # the run stopped before its first checkpoint
    damaged: list[Path] = []
    for path in reversed(_manifests(folder)):
        try:
            loaded = _load(path, runtime, trajectory, notes)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, _OtherExperiment | TooLarge) or not _is_damage(error):
                raise
            notes.append(f"checkpoint {path.stem} is damaged ({error})")
            damaged.append(path)
            continue
        for each in damaged:
            if set_aside:  # now that an older one is whole
                each.replace(each.with_suffix(".damaged"))
            loaded.notes.append(f"continuing from checkpoint {path.stem} instead")
        return loaded
    tried = "; ".join(notes)
    again = f"Start again: delete {folder.parent}, or use another `name`."
    raise ValueError(f"{folder} holds no checkpoint that can be read: {tried}. {again}")


def _is_damage(error: Exception) -> bool:
    """Returns whether an error is lasting: that of a disk or a network that does not answer may be gone tomorrow."""
    return not isinstance(error, OSError) or error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR)


def _stored_by_all(folder: Path, state: State, peers: Peers) -> dict[int, tuple[str, int]]:
    """Writes what clients keep, and returns the file and the checksum of every client of the run."""
    rows = {client: _stored(folder, client, row, state.round) for client, row in state.clients.rows.items()}
    mine = {client: (row.path.name, row.checksum) for client, row in rows.items()}
    return mine if peers.size == 1 else union(peers, mine)


def _save(folder: Path, state: State, rows: dict[int, tuple[str, int]], trajectory: str, seconds: float) -> None:
    data = save({path: leaf.cpu().contiguous() for path, leaf in _flatten(state).items()})
    replace_file(folder / f"{state.round:06d}.safetensors", data)
    manifest = {
        "round": state.round,
        "trajectory": trajectory,
        "seconds": seconds,
        "threads": torch.get_num_threads(),
        "checksum": zlib.crc32(data),
        "versions": state.versions,
        "held": {str(client): dict(held) for client, held in state.held.items()},
        "clients": {str(client): row for client, row in rows.items()},
    }
    replace_file(folder / f"{state.round:06d}.json", json.dumps(sealed({FORMAT: 2, **manifest})).encode())


class _OtherExperiment(ValueError):
    pass


_Count = Annotated[int, Meta(ge=0)]
ClientNumber = Annotated[str, Meta(pattern="^[0-9]{1,9}$")]  # of a client: the keys of a JSON object are text
_File = Annotated[str, Meta(pattern=r"^[0-9]+-[0-9]+\.safetensors$")]


class _Manifest(TypedDict):
    round: _Count
    trajectory: str
    seconds: float
    threads: _Count
    checksum: _Count
    versions: dict[Group, _Count]
    held: dict[ClientNumber, dict[Group, _Count]]
    clients: dict[ClientNumber, tuple[_File, _Count]]  # file and checksum


def _load(path: Path, runtime: Runtime, trajectory: str, notes: list[str]) -> Loaded:
    manifest = _read_manifest(path, trajectory)
    data = read_bytes(path.with_suffix(".safetensors"))
    if zlib.crc32(data) != manifest["checksum"]:
        raise ValueError("its tensors do not match their checksum")
    fresh, rows = begin(runtime), _stored_clients(path.parent / "clients", manifest, runtime.peers)
    state = _unflatten({name: leaf.to(runtime.sim.device) for name, leaf in load(data).items()}, fresh)
    for row in rows.values():
        _check_fit(misfit_of(runtime, unflatten(read_file(row))), f"{row.path.name}: its tensors")
    state = state._replace(
        round=manifest["round"],
        versions=manifest["versions"],
        held={int(client): held for client, held in manifest["held"].items()},
        clients=_in_place(fresh.clients, rows),
    )
    if manifest["threads"] != torch.get_num_threads():
        notes.append(f"the run used {manifest['threads']} threads: for the same bits use threads={manifest['threads']}")
    return Loaded(state, manifest["seconds"], notes)


def _read_manifest(path: Path, trajectory: str) -> _Manifest:
    manifest = fit(read_record(path, "its manifest", must_be_sealed=True), _Manifest, "its manifest")
    if manifest["trajectory"] != trajectory:
        raise _OtherExperiment(
            f"{path} belongs to another experiment than experiment.json. Restore that file, or use another `name`."
        )
    return manifest


def _stored_clients(folder: Path, manifest: _Manifest, peers: Peers) -> dict[int, Stored]:
    """Returns the files of this process's clients; process 0 checks those of all."""
    rows = {int(client): Stored(folder / name, crc) for client, (name, crc) in manifest["clients"].items()}
    mine = {client: rows[client] for client in owned(peers, rows)}
    for row in (mine if peers.rank else rows).values():
        if zlib.crc32(read_bytes(row.path)) != row.checksum:
            raise ValueError(f"{row.path.name} does not match its checksum")
    return mine


def _in_place(clients: Clients, rows: dict[int, Stored]) -> Clients:
    if clients.place == "disk":
        return clients._replace(rows=rows)
    there = {client: clients.keep(client, unflatten(read_file(row)), 0) for client, row in rows.items()}
    return clients._replace(rows=there)


def _stored(folder: Path, client: int, row: Client | Stored, version: int) -> Stored:
    if isinstance(row, Stored):
        return row
    return write_file(folder / "clients" / f"{client:06d}-{version:06d}.safetensors", flatten(row))


def _flatten(state: State) -> Params:
    server = {f"params/{name}": leaf for name, leaf in state.server.params.items()}
    for kind, tree in state.server.memory.items():
        server |= {f"memory/{kind}/{name}": leaf for name, leaf in tree.items()}
    server |= {f"common/{name}": leaf for name, leaf in state.common.items()}
    return server | {f"sum/{name}": leaf for name, leaf in (state.last_sum or {}).items()}


def _unflatten(tree: Params, fresh: State) -> State:
    """Reads a state with the shapes of a fresh one; a missing, extra or misshapen leaf is an error."""

    def part(prefix: str, like: Params) -> Params:
        found = {name.removeprefix(prefix): leaf for name, leaf in tree.items() if name.startswith(prefix)}
        _check_fit(misfit(found, like), "the checkpoint's tensors")
        return {name: found[name] for name in like}

    params, common = part("params/", fresh.server.params), part("common/", fresh.common)
    memory: Memory = {kind: part(f"memory/{kind}/", like) for kind, like in fresh.server.memory.items()}
    last_sum = None if fresh.last_sum is None else part("sum/", fresh.last_sum)
    return fresh._replace(server=Server(params, memory), last_sum=last_sum, common=common)


def _check_fit(wrong: str, what: str) -> None:
    if wrong:
        raise _OtherExperiment(f"{what} do not fit the model ({wrong}). Restore the model's code.")


def _tidy(folder: Path, live: set[str]) -> None:
    manifests = _manifests(folder)
    kept = manifests[-KEPT:]
    needed = live | set(_client_files(kept))
    for old in manifests[:-KEPT]:
        old.unlink()
    stems = {path.stem for path in kept}
    for path in [*folder.glob("*.safetensors"), *folder.glob("*.partial")]:
        if path.stem not in stems:
            path.unlink()
    for path in (folder / "clients").glob("*"):
        if path.name not in needed:
            path.unlink()


def _manifests(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("*.json") if path.stem.isdecimal()), key=lambda path: int(path.stem))


def _client_files(manifests: list[Path]) -> Iterator[str]:
    for path in manifests:
        try:
            manifest = fit(read_record(path), _Manifest, path.name)
        except (ValueError, OSError):
            continue  # a damaged manifest keeps no file
        yield from (name for name, _ in manifest["clients"].values())
