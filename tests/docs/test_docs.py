"""The documentation is true today: every code block and command runs, every method has its card."""

import ast
import importlib.util
import pickle
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np
import pytest
from support import ROOT

import fedatoms
from fedatoms import algorithms, personal
from fedatoms.cli import main
from fedatoms.core.methods import Table
from fedatoms.data import load

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "paper-results/README.md", "benchmarks/README.md")]
PAGES = sorted([*PAGES, *(ROOT / "docs").rglob("*.md")])
LAYERS = sorted(path.parent.name for path in (ROOT / "fedatoms").glob("*/__init__.py"))
HEADINGS = ["Use", "What it computes", "When it helps, and when not", "Hyper-parameters that were run"]
HEADINGS += ["Cost in bytes", "Reference"]
OF_0_1_0 = """
ALGORITHMS Algorithm AtomConv2d Exchange Experiment Federation Result Simulation Trained Training __version__ algorithm
decompose every_round factorise fast_slow fedadam fedavg fedavgm feddc feddyn federation fedprox fuse groups inputs_of
is_decomposed load_model load_personal personal_factors personal_model personalise preset run save_personal scaffold
train
""".split()
SMALLER = {  # flags for commands that take a GPU, or minutes
    "cifar": "--rounds 1 --clients 10 --epochs 1 --batch-size 10 --threads 1",
    "flower demo": "--nodes 1 --rounds 1",
    "fedatoms demo": "--rounds 2 --epochs 1 --seeds 0",
    "fedatoms run ": "--epochs 1 --batch-size 50",
}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [line[2:].split("  #")[0].strip() for line in lines if line.startswith("$ ")]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def a_small_cifar() -> None:
    folder = Path("data/cifar-10-batches-py")
    folder.mkdir(parents=True)
    entry = {"data": np.zeros((20, 3072), np.uint8), "labels": [n % 10 for n in range(20)]}
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (folder / name).write_bytes(pickle.dumps(entry, protocol=2))


def a_newcomer() -> None:
    digits = load("digits")
    np.savez("ann.npz", x=digits.test_x[:50].numpy(), y=digits.test_y[:50].numpy())


CARDS = sorted((ROOT / "docs" / "methods").glob("*.md"))
LINES = [(table, name) for table in (algorithms.TABLE, personal.TABLE) for name in table.methods if name != "none"]


def with_python() -> list[object]:
    """Finds the pages with Python; those with many programs are slow, and those of every second card."""
    pages = {page: blocks(page, "python") for page in PAGES if blocks(page, "python")}
    slow = [page for page, found in pages.items() if len(found) > 4] + CARDS[::2]
    return [pytest.param(page, marks=pytest.mark.slow if page in slow else (), id=named(page)) for page in pages]


@pytest.mark.parametrize("page", with_python())
def test_python_blocks_run_as_printed(page: Path) -> None:
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), {"__name__": "__main__"})


def with_commands() -> list[object]:
    """Finds the pages with commands; those that start a federation of processes or many runs are slow, and those of
    the cards whose Python is not."""
    pages = {page: commands(page) for page in PAGES if commands(page)}
    long = ("flower demo", "reproduce", "--dp-epsilon")
    slow = [
        page for page, found in pages.items() if len(found) > 2 or any(word in each for each in found for word in long)
    ]
    slow += CARDS[1::2]
    return [pytest.param(page, marks=pytest.mark.slow if page in slow else (), id=named(page)) for page in pages]


@pytest.mark.parametrize("page", with_commands())
def test_commands_run_as_printed(page: Path) -> None:
    a_small_cifar()
    a_newcomer()
    for block in blocks(page, "python"):
        if name := re.match(r"# (\w+\.py):", block):  # a file that a command of the page uses
            Path(name[1]).write_text(block)
            sys.modules.pop(Path(name[1]).stem, None)  # another page may have one of that name
    for command in commands(page):
        words = shlex.split(command)
        if words[0] == "make":  # this very test is part of `make test`
            subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)
        elif words[0] == "fedatoms":
            less = next((flags for part, flags in SMALLER.items() if part in command), "")
            assert main(words[1:] + less.split()) == 0, command
        elif words[0] == "torchrun":  # beside this interpreter, wherever that is
            less = SMALLER["fedatoms run "].split() if "--resume" not in words else []
            subprocess.run([sys.executable, "-m", "torch.distributed.run", *words[1:], *less], check=True)
        else:
            assert shutil.which(words[0]) or words[0] == "pre-commit", command


def test_two_pages_that_a_reader_follows_in_one_folder_write_two_files() -> None:
    files = [
        name for page in PAGES for block in blocks(page, "python") for name in re.findall(r"\A# (\w+\.py):", block)
    ]
    assert len(files) > 2 and len(files) == len(set(files)), files


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_every_card_has_the_same_headings(card: Path) -> None:
    assert re.findall(r"^## (.*)$", card.read_text(), flags=re.M) == HEADINGS


@pytest.mark.parametrize(("table", "name"), LINES, ids=[name for _, name in LINES])
def test_a_card_shows_every_method_from_the_command_line_and_by_its_label(table: Table, name: str) -> None:
    shown = [card for card in CARDS if any(f"--{table.field} {name} " in command for command in commands(card))]
    labels = [card.read_text().splitlines()[0].removeprefix("# ") for card in shown]
    text = " ".join(card.read_text() for card in shown)
    assert table.methods[name].label in labels or f"`{name}`" in text or table.methods[name].label in text


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, place in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if not target.startswith("http"):
            there = page.parent / target if target else page
            assert there.exists(), target
            assert not place or place in places_in(there), f"{target}#{place}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_code_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    inside = re.findall(rf"`((?:{'|'.join(LAYERS)})/[\w/]*(?:\.py)?)`", text)  # `engine/round.py`, `core/files`
    for path in re.findall(r"\bfedatoms/[\w./]*\w", text) + [f"fedatoms/{path}" for path in inside]:
        assert (ROOT / path).exists() or (ROOT / f"{path}.py").exists(), path
    for name in re.findall(r"\bfedatoms(?:\.\w+)+", text) + [f"fedatoms.{name}" for name in dotted(text)]:
        assert is_there(name), name


def dotted(text: str) -> list[str]:
    """Finds names that begin with a folder of the package, such as `engine.round.advance`; not methods, `data(...)`."""
    found = re.findall(rf"`((?:{'|'.join(LAYERS)})(?:\.\w+)+)\b", text)
    return [name for name in found if not name.endswith((".json", ".safetensors"))]


def is_there(name: str) -> bool:
    """Says whether a dotted name can be imported, or is a field of what can be."""
    module, found = name.split("."), list[str]()
    while module and not _is_module(".".join(module)):
        found.insert(0, module.pop())
    value: object = importlib.import_module(".".join(module)) if module else None
    for each in found:
        if each in getattr(value, "__annotations__", {}):
            return each == found[-1]
        if not hasattr(value, each):
            return False
        value = getattr(value, each)
    return bool(module)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is no package
        return False


def places_in(page: Path) -> set[str]:
    """Names the headings of a page as links do: in small letters, without punctuation, with hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "own_model_and_data.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert re.search(r"plain +accuracy", said) and re.search(r"decomposed +accuracy", said)


def test_the_example_of_fedavg_by_hand_says_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "fedavg_by_hand.py"), run_name="__main__")
    apart = re.search(r"^FedAvg by hand and by the engine, .*: at most (\S+) apart\n$", capsys.readouterr().out)
    assert apart is not None and float(apart[1]) < 1e-6


@pytest.mark.slow
def test_the_example_of_personal_atoms_gains_by_them(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "personal_atoms.py"), run_name="__main__")
    before, after = (float(number) for number in re.findall(r"accuracy ([\d.]+) %", capsys.readouterr().out))
    assert after > before + 10


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "fedatoms").rglob("*.py"))], ids=named)
def test_nothing_is_installed_from_an_index_that_does_not_have_it(page: Path) -> None:
    """An extra is added to what is installed already: pip looks for its packages alone."""
    assert not re.search(r"pip install [\"']?fedatoms(?!\[)", page.read_text())


def test_the_readme_installs_what_is_tested() -> None:
    (install,) = [command for command in commands(ROOT / "README.md") if command.startswith("pip")]
    assert "--constraint constraints.txt" in install and (ROOT / "constraints.txt").exists()


def test_the_surface_is_twenty_names_each_once() -> None:
    assert sorted(fedatoms.__all__) == fedatoms.__all__ == dir(fedatoms) and len(fedatoms.__all__) <= 20
    places = [name.rpartition(".")[2] for name in public()]
    assert len(places) == len(set(places))
    with pytest.raises(AttributeError, match="no attribute 'fedavgg'"):
        fedatoms.fedavgg  # noqa: B018


@pytest.mark.parametrize("name", OF_0_1_0)
def test_a_name_of_0_1_0_is_there_or_its_error_says_where_it_is_now(name: str) -> None:
    if name not in fedatoms.__all__:
        with pytest.raises(AttributeError, match=rf"fedatoms.{name} has moved .*: use fedatoms\.\w+\.{name}$") as error:
            getattr(fedatoms, name)
        home = str(error.value).split()[-1].split(".")[1]
        assert f"{home}.{name}" in public()
        assert f"| `fedatoms.{name}` | `fedatoms.{home}.{name}` |" in (ROOT / "CHANGELOG.md").read_text()


def test_importing_the_surface_needs_no_torch() -> None:
    namespaces = [f"fedatoms.{name}" for name in (*fedatoms.__all__, "testing") if name in fedatoms._FOLDERS]
    assert len(namespaces) == 10
    code = f"import sys, {', '.join(namespaces)}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def public() -> dict[str, object]:
    """Finds every public name: those of the package, and those of its namespaces."""
    found: dict[str, object] = {}
    for name in fedatoms.__all__:
        value = getattr(fedatoms, name)
        inside = {f"{name}.{each}": getattr(value, each) for each in getattr(value, "__all__", ())}
        found |= inside if isinstance(value, ModuleType) else {name: value}
    return found


def executed() -> str:
    """Joins all Python that the documentation shows and the tests run."""
    files = [*(ROOT / "examples").rglob("*.py"), *(ROOT / "fedatoms" / "flower" / "template").rglob("*.py")]
    return "\n".join(
        [block for page in PAGES for block in blocks(page, "python")] + [path.read_text() for path in files]
    )


@pytest.mark.parametrize("name", [name for name, value in public().items() if isinstance(value, type | FunctionType)])
def test_every_public_callable_has_an_executed_example(name: str) -> None:
    short = name.rpartition(".")[2]
    if short != "FedAtoms":  # Flower's hooks: `server_app` makes it
        assert ">>>" in (public()[name].__doc__ or "") or re.search(rf"\b{short}\b", executed()), name


def test_the_glossary_points_to_the_code() -> None:
    rows = re.findall(r"^\| (.+?) \| .* \| `([^`]+)` `([^`]+)` \|$", (ROOT / "docs" / "glossary.md").read_text(), re.M)
    assert len(rows) > 40 and len({term for term, _, _ in rows}) == len(rows)
    for term, path, name in rows:
        assert name in defined_in(ROOT / "fedatoms" / path), term


def defined_in(path: Path) -> set[str]:
    """Finds what a file defines: functions, classes, parameters, fields and whatever else it assigns to."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return names | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def dropped_words() -> list[str]:
    """Finds the words that the glossary drops in every sense: those without a remark in brackets."""
    table = (ROOT / "docs" / "glossary.md").read_text().partition("| instead of |")[2]
    rows = re.findall(r"^\| ([^|()]+) \|", table, re.M)
    return [word for row in rows for word in row.split(", ") if not word.startswith("-")]


@pytest.mark.parametrize("word", dropped_words())
def test_a_word_that_the_glossary_drops_is_not_written(word: str) -> None:
    assert len(dropped_words()) >= 8
    pages = [page for page in PAGES if page.name != "glossary.md"]
    for path in [*pages, *(ROOT / "fedatoms").rglob("*.py")]:
        assert not re.search(rf"\b{word}s?\b", path.read_text(), re.I), path
