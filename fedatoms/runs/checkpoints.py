"""Checkpoints that survive a kill at any moment: new files first, then the manifest that names them."""

import errno
import json
import zlib
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict

import torch
from msgspec import Meta
from safetensors.torch import load, save
from torch import Tensor

from fedatoms.algorithms.base import Server
from fedatoms.core.border import TooLarge, read_bytes
from fedatoms.core.files import Stored, read_file, replace_file, write_file
from fedatoms.core.options import Group
from fedatoms.core.records import FORMAT, fit, read_record, sealed
from fedatoms.core.trees import Memory, Params, misfit
from fedatoms.engine.client_states import (
    Client,
    Clients,
    Files,
    Held,
    file_name,
    flatten,
    longer,
    nothing,
    placed,
    put,
    unflatten,
)
from fedatoms.engine.loop import begin
from fedatoms.engine.peers import ALONE, Peers, gather, own_rows
from fedatoms.engine.remote import misfit_of
from fedatoms.engine.runtime import Runtime
from fedatoms.engine.state import State
from fedatoms.runs.client_index import INDEX, Index, Tables, extended, is_file_of, read_index

KEPT = 2  # the last checkpoint, and one to fall back to


class Loaded(NamedTuple):
    """A state read from a checkpoint, the seconds spent until then, notes on damaged newer ones, and its index."""

    state: State
    seconds: float
    notes: list[str]
    saved: Index = Index()  # of the clients


class Checkpoints:
    """Writes the checkpoints of a run: what has changed since the last one, whatever else there is.

    Of several processes each writes and removes the files of its own clients, and knows the tables of all; process 0
    writes and removes all else, and at its first checkpoint removes what a process that was killed has left.
    """

    def __init__(self, folder: Path, trajectory: str, loaded: Loaded | None = None, peers: Peers = ALONE) -> None:
        self._folder, self._trajectory, self._peers = folder, trajectory, peers
        self._saved = loaded.saved if loaded else Index()
        self._live = loaded.state.clients if loaded else Clients()
        self._kept = {loaded.state.round: loaded.saved} if loaded else {}  # of the last checkpoints, by their rounds
        self._is_tidy = False  # until the first checkpoint: a process that was killed may have left anything
        self._old = nothing(2)  # client and version of each file that a newer one has replaced

    def note(self, clients: Clients) -> None:
        """Notes the files that a round has replaced: they are removed when no checkpoint needs them."""
        if clients.place == "disk":
            self._replaced(_table(self._live), _table(clients))
        self._live = clients

    def save(self, state: State, seconds: float) -> None:
        """Writes a checkpoint and removes what none of the last ones needs; no process goes on before it is whole."""
        self.note(state.clients)
        self._folder.mkdir(parents=True, exist_ok=True)
        is_known = False
        try:
            self._write(state, seconds)
        except BaseException:  # as when the disk is full: files that no whole checkpoint needs take up space
            self._is_tidy = False
            raise
        finally:
            if self._peers.rank == 0:
                is_known = self._tidy(state.clients)
        if gather(self._peers, is_known)[0]:  # by now the manifest is there, whatever process this is
            self._remove()
        self._is_tidy = True

    def _write(self, state: State, seconds: float) -> None:
        before = self._saved.tables.files
        changes = torch.cat(gather(self._peers, _written(self._folder, state.clients, before)))
        index = Index(Tables(placed(before, changes[:, 0], changes[:, 1:]), state.held.table))
        if self._peers.rank == 0:
            index = extended(self._folder, self._saved, index.tables, state.round)
            _save(self._folder, state, index, self._trajectory, seconds)
        if state.clients.place != "disk":
            self._replaced(*(own_rows(self._peers, files) for files in (before, index.tables.files)))
        self._saved, recent = index, {**self._kept, state.round: index}
        self._kept = {t: recent[t] for t in sorted(recent)[-KEPT:]}

    def _replaced(self, before: Tensor, after: Tensor) -> None:
        before, after = longer(before, len(after)), longer(after, len(before))
        clients = ((before[:, 0] != after[:, 0]) & (before[:, 0] >= 0)).nonzero()[:, 0]
        self._old = torch.cat([self._old, torch.stack([clients, before[clients, 0]], 1)])

    def _tidy(self, clients: Clients) -> bool:
        """Removes what only older checkpoints needed, but returns whether clients' files are left to who knows them."""
        there = {int(path.stem) for path in _manifests(self._folder)[-KEPT:]}
        if self._is_tidy and there <= self._kept.keys():
            _remove_checkpoints(self._folder, {one.name for index in self._kept.values() for one in index.segments})
            return True
        _tidy(self._folder, [self._saved.tables.files, _table(clients)])
        return False

    def _remove(self) -> None:
        """Removes clients' files that only older checkpoints needed; each process knows its own, and lists none."""
        clients, versions = self._old.unbind(1)
        needed = torch.zeros(len(clients), dtype=torch.bool, device="cpu")
        for table in (*(index.tables.files for index in self._kept.values()), _table(self._live)):
            needed |= longer(table, 1 + max(clients.tolist(), default=0))[clients, 0] == versions
        for client, version in self._old[~needed].tolist():
            (self._folder / "clients" / file_name(client, version)).unlink(missing_ok=True)
        self._old = self._old[needed]


def save_checkpoint(folder: Path, state: State, *, trajectory: str, seconds: float, peers: Peers = ALONE) -> None:
    """Writes a checkpoint that shares nothing with those before it, and removes what none of the last ones needs."""
    Checkpoints(folder, trajectory, peers=peers).save(state, seconds)


def load_share(folder: Path, done: int, runtime: Runtime, *, trajectory: str) -> Loaded:
    """Reads this process's share of the checkpoint after ``done`` rounds, which process 0 has found whole."""
    path = folder / f"{done:06d}.json"
    return _load(path, runtime, trajectory, []) if done or path.exists() else Loaded(begin(runtime), 0.0, [])


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
            if not is_damage(error):
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


def is_damage(error: Exception) -> bool:
    """Returns whether an error of reading is lasting: that of a disk that does not answer may be gone tomorrow."""
    if isinstance(error, _OtherExperiment | TooLarge):  # the file is whole
        return False
    return not isinstance(error, OSError) or error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR)


def _save(folder: Path, state: State, index: Index, trajectory: str, seconds: float) -> None:
    data = save({path: leaf.cpu().contiguous() for path, leaf in _flatten(state).items()})
    replace_file(folder / f"{state.round:06d}.safetensors", data)
    manifest = {
        "round": state.round,
        "trajectory": trajectory,
        "seconds": seconds,
        "threads": torch.get_num_threads(),
        "checksum": zlib.crc32(data),
        "versions": state.versions,
        "index": [[one.name, one.checksum] for one in index.segments],
    }
    replace_file(folder / f"{state.round:06d}.json", json.dumps(sealed({FORMAT: 2, **manifest})).encode())


class _OtherExperiment(ValueError):
    pass


_Count = Annotated[int, Meta(ge=0)]
ClientNumber = Annotated[str, Meta(pattern="^[0-9]{1,9}$")]  # of a client: the keys of a JSON object are text
_Segment = Annotated[str, Meta(pattern=r"^[0-9]+-[0-9a-f]{8}\.safetensors$")]
_File = Annotated[str, Meta(pattern=r"^[0-9]+-[0-9]+\.safetensors$")]


class _Manifest(TypedDict):
    round: _Count
    trajectory: str
    seconds: float
    threads: _Count
    checksum: _Count
    versions: dict[Group, _Count]
    index: list[tuple[_Segment, _Count]]  # file and checksum


class _OlderIndex(TypedDict):
    """What manifests had in place of an index, until 0.2.0."""

    held: dict[ClientNumber, dict[Group, _Count]]
    clients: dict[ClientNumber, tuple[_File, _Count]]  # file and checksum


def _load(path: Path, runtime: Runtime, trajectory: str, notes: list[str]) -> Loaded:
    manifest, index = _read_manifest(path, trajectory)
    data = read_bytes(path.with_suffix(".safetensors"))
    if zlib.crc32(data) != manifest["checksum"]:
        raise ValueError("its tensors do not match their checksum")
    folder, files, device = path.parent / "clients", index.tables.files, runtime.sim.device
    fresh, mine = begin(runtime), Files(folder, own_rows(runtime.peers, files))
    state = _unflatten({name: leaf.to(device, copy=True) for name, leaf in load(data).items()}, fresh)  # see read_file
    for row in (mine if runtime.peers.rank else Files(folder, files)).values():  # process 0 checks those of all
        _check_client(runtime, row)
    state = state._replace(
        round=manifest["round"],
        versions=manifest["versions"],
        held=Held(index.tables.held),
        clients=_in_place(fresh.clients, mine),
    )
    if manifest["threads"] != torch.get_num_threads():
        notes.append(f"the run used {manifest['threads']} threads: for the same bits use threads={manifest['threads']}")
    return Loaded(state, manifest["seconds"], notes, index)


def _read_manifest(path: Path, trajectory: str | None = None) -> tuple[_Manifest, Index]:
    record = read_record(path, "its manifest", must_be_sealed=True)
    older = "index" not in record
    manifest = fit({**record, "index": []} if older else record, _Manifest, "its manifest")
    if trajectory not in (None, manifest["trajectory"]):
        raise _OtherExperiment(
            f"{path} belongs to another experiment than experiment.json. Restore that file, or use another `name`."
        )
    if older:
        return manifest, Index(_older_tables(fit(record, _OlderIndex, "its manifest")))
    return manifest, read_index(path.parent, manifest["index"])


def _older_tables(found: _OlderIndex) -> Tables:
    held = Held().updated({int(client): versions for client, versions in found["held"].items()})
    files = {int(client): (int(Path(name).stem.split("-")[1]), crc) for client, (name, crc) in found["clients"].items()}
    return Tables(put(nothing(2), files), held.table)


def _check_client(runtime: Runtime, row: Stored) -> None:
    data = read_bytes(row.path)
    if zlib.crc32(data) != row.checksum:
        raise ValueError(f"{row.path.name} does not match its checksum")
    _check_fit(misfit_of(runtime, unflatten(load(data))), f"{row.path.name}: its tensors")


def _in_place(clients: Clients, rows: Files) -> Clients:
    if clients.place == "disk":
        return clients._replace(rows=rows)
    there = {client: clients.keep(client, unflatten(read_file(row)), 0) for client, row in rows.items()}
    return clients._replace(rows=there, versions=rows.table[:, :1])


def _table(clients: Clients) -> Tensor:
    return clients.rows.table if isinstance(clients.rows, Files) else nothing(2)


def _written(folder: Path, clients: Clients, before: Tensor) -> Tensor:
    """Returns client, version and checksum of files that have changed; what is kept elsewhere is written into them."""
    now = _table(clients) if clients.place == "disk" else clients.versions
    was = longer(before, len(now))[: len(now), : now.shape[1]]
    changed = ((was != now).any(1) & (now[:, 0] >= 0)).nonzero()[:, 0]  # other processes know of their own clients
    if clients.place == "disk":
        return torch.cat([changed[:, None], now[changed]], 1)
    new = list[tuple[int, int, int]]()
    for client, version in zip(changed.tolist(), now[changed, 0].tolist(), strict=True):
        row = clients.rows[client]
        assert isinstance(row, Client)
        stored = write_file(folder / "clients" / file_name(client, version), flatten(row))
        new.append((client, version, stored.checksum))
    return torch.tensor(new, dtype=torch.int64, device="cpu").reshape(-1, 3)


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


def _tidy(folder: Path, live: list[Tensor]) -> None:
    """Removes all that neither the last checkpoints nor these tables need, by lists of what there is."""
    found = [index for index in map(_index_of, _manifests(folder)[-KEPT:]) if index]
    _remove_checkpoints(folder, {one.name for index in found for one in index.segments})
    versions = [list[int](table[:, 0].tolist()) for table in (*(index.tables.files for index in found), *live)]
    for path in (folder / "clients").glob("*"):
        if not is_file_of(versions, path.name):
            path.unlink(missing_ok=True)  # a process may give a file its name while another fails


def _remove_checkpoints(folder: Path, segments: set[str]) -> None:
    """Removes all but the last manifests, and what lies beside them but for these segments."""
    manifests = _manifests(folder)
    for old in manifests[:-KEPT]:
        old.unlink()
    stems = {path.stem for path in manifests[-KEPT:]}
    for path in [*folder.glob("*.safetensors"), *folder.glob("*.partial")]:
        if path.stem not in stems:
            path.unlink()
    for path in (folder / INDEX).glob("*"):
        if path.name not in segments:
            path.unlink()


def _manifests(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("*.json") if path.stem.isdecimal()), key=lambda path: int(path.stem))


def _index_of(path: Path) -> Index | None:
    try:
        return _read_manifest(path)[1]
    except (ValueError, OSError, KeyError, RuntimeError):
        return None  # a damaged one keeps no file
