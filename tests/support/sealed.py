"""Files of a run, changed as their own program would change them: sealed again; or as an older one wrote them."""

import json
from pathlib import Path

from fedatoms.core.records import FORMAT, SEAL, sealed
from fedatoms.engine.client_states import Files, Held
from fedatoms.runs.client_index import read_index


def rewrite(path: Path, **fields: object) -> None:
    """Changes fields of a file that holds one record, and seals it again."""
    values = {name: value for name, value in json.loads(path.read_text()).items() if name != SEAL}
    path.write_text(json.dumps(sealed({**values, **fields})))


def older_manifest(path: Path) -> dict[str, tuple[str, int]]:
    """Makes a checkpoint's manifest list all clients, as it did before there was an index; returns their files."""
    values = {name: value for name, value in json.loads(path.read_text()).items() if name != SEAL}
    tables = read_index(path.parent, values.pop("index")).tables
    held = {str(client): versions for client, versions in Held(tables.held).items()}
    files = {str(client): (row.path.name, row.checksum) for client, row in Files(path.parent, tables.files).items()}
    path.write_text(json.dumps(sealed({**values, "held": held, "clients": files})))
    return files


def unseal(path: Path) -> None:
    """Makes a file that holds one record that of a version without checksums: so it may be changed by hand."""
    lines = path.read_text()
    values = json.loads(lines)
    indent = len(lines.split("\n")[1]) - len(lines.split("\n")[1].lstrip()) if "\n" in lines.strip() else None
    kept = {name: value for name, value in values.items() if name != SEAL and (name, value) != (FORMAT, 2)}
    path.write_text(json.dumps(kept, indent=indent) + "\n")


def as_older(folder: Path) -> None:
    """Makes a run's files those of a version that had no checksums."""
    for name in ("experiment.json", "result.json"):
        path = folder / name
        if path.exists():
            values = json.loads(path.read_text())
            path.write_text(json.dumps({key: values[key] for key in values if key not in (FORMAT, SEAL, "files")}))
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    rows = [{key: row[key] for key in row if key != SEAL} for row in lines]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for segment in (folder / "checkpoint" / "rounds").glob("*"):
        segment.unlink()
