"""Imports go downwards: the layers in docs/architecture.md are those of the code."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fedatoms"


def layers() -> list[str]:
    """The modules in the order in which they may import each other, from the page's picture."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    picture = next(block for block in re.findall(r"^```text\n(.*?)^```", text, flags=re.M | re.S) if "L0" in block)
    lines = [line.split("#")[0] for line in picture.splitlines()]
    return [word for line in lines for word in line.split() if not re.fullmatch(r"L\d", word)]


def module_of(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fedatoms":
            rest = node.module.split(".")[1:]
            found |= {rest[0]} if rest else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("fedatoms.")}
    return found


def test_every_module_is_in_the_picture_once() -> None:
    modules = {module_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert sorted(layers()) == sorted(modules)


def test_imports_go_downwards() -> None:
    order = {name: place for place, name in enumerate(layers())}
    for path in PACKAGE.rglob("*.py"):
        here = module_of(path)
        if here == "__init__" or "template" in path.parts:  # a project of its own
            continue
        upwards = {name for name in imported(path) if name != here and order[name] >= order[here]}
        assert not upwards, f"{path.name} imports {sorted(upwards)}, which the picture puts above it"


def test_the_engine_imports_with_torch_and_numpy_alone() -> None:
    import subprocess
    import sys

    blocked = ["rich", "tyro", "sklearn", "safetensors", "matplotlib", "PIL", "tensorboard"]
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked!r}));"
    code += "import fedatoms.train, fedatoms.models, fedatoms.data, fedatoms.bench.gpu, fedatoms.bench.jax_twin"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_lower_layers_neither_print_nor_touch_files() -> None:
    picture = (ROOT / "docs" / "architecture.md").read_text()
    low = {word for line in re.findall(r"^L[012] +(.*)$", picture, flags=re.M) for word in line.split()}
    touching = {"print", "open", "read_text", "read_bytes", "write_text", "write_bytes", "unlink", "mkdir", "glob"}
    for path in PACKAGE.rglob("*.py"):
        if module_of(path) not in low - {"data", "experiment"}:  # these two read what the user names
            continue
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {getattr(call, "id", getattr(call, "attr", "")) for call in calls}
        assert not names & touching, path.name
