"""A new Flower app: a template that runs as it is, to be filled in."""

import shutil
from pathlib import Path

TEMPLATE = Path(__file__).parent / "template"


def new(folder: Path) -> list[Path]:
    """Writes the app into a new folder, and returns its files."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty. Use a new folder.")
    files = [path for path in sorted(TEMPLATE.rglob("*")) if path.suffix in (".py", ".toml")]
    for path in files:
        place = folder / path.relative_to(TEMPLATE)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    return [folder / path.relative_to(TEMPLATE) for path in files]
