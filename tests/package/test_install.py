"""The package that people install: what is in it, what it needs, and what only some need."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support import ROOT

import fedatoms

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = [name for name in PROJECT["optional-dependencies"] if name not in ("test", "docs")]
MODULES = {
    "Pillow": "PIL",
    "mlflow-skinny": "mlflow",
    "scikit-learn": "sklearn",
    "flwr[simulation]": "ray",
    "dp-accounting": "dp_accounting",
}
UNNAMED = {
    "jax",
    "pfl",
    "triton",
    "ray",
    "httpx",
    "cryptography",
}  # opponents of the benchmark; what torch and flwr bring


def names_of(requirements: list[str]) -> set[str]:
    return {Requirement(each).name for each in requirements}


def imports_of(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    named = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    named += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in named} - set(sys.stdlib_module_names) - {"fedatoms", "_typeshed"}


def test_every_package_that_is_imported_comes_with_the_base_or_with_an_extra() -> None:
    known = names_of(PROJECT["dependencies"]).union(*(names_of(PROJECT["optional-dependencies"][x]) for x in EXTRAS))
    modules = {MODULES.get(name, name) for name in known} | {"PIL"} | UNNAMED
    files = [path for path in (ROOT / "fedatoms").rglob("*.py") if "template" not in path.parts]
    assert {name for path in files for name in imports_of(path)} <= modules


def test_the_base_has_what_every_run_needs_and_no_more() -> None:
    assert names_of(PROJECT["dependencies"]) == {"torch", "numpy", "msgspec", "safetensors", "rich", "tyro"}


@pytest.mark.slow
def test_a_run_its_table_and_its_page_need_the_base_alone(tmp_path: Path) -> None:
    extra = ["matplotlib", "scipy", "sklearn", "PIL", "tensorboard", "mlflow", "wandb", "flwr", "optuna", "onnx"]
    words = ["demo", "--rounds", "1", "--epochs", "1", "--seeds", "0", "--init", "fourier-bessel"]
    code = f"import sys; sys.modules.update(dict.fromkeys({extra!r}));"
    code += "import importlib.util as u; find = u.find_spec;"
    code += f"u.find_spec = lambda name, *more: None if name in {extra!r} else find(name, *more);"
    code += f"from fedatoms.cli import main; assert main({words!r}) == 0 == main(['report', 'runs'])"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True)


def test_an_extra_is_added_to_what_is_installed_without_an_index() -> None:
    """So what errors say to type works, wherever fedatoms came from."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--quiet", "fedatoms[plot,images]"]
    subprocess.run(command, check=True, capture_output=True)


def test_the_metadata_are_complete() -> None:
    found = importlib.metadata.metadata("fedatoms")
    for field in ("Name", "Version", "Summary", "Description-Content-Type", "Keywords", "Requires-Python", "Author"):
        assert found[field], field
    assert found["Version"] == fedatoms.__version__
    assert all((ROOT / path).is_file() for path in PROJECT["license-files"])
    assert [each for each in PROJECT["classifiers"] if each.startswith("Programming Language :: Python :: 3.11")]


def test_the_citation_is_of_this_version() -> None:
    said = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {fedatoms.__version__}\n" in said and PROJECT["urls"]["Paper"] in said


def test_the_page_of_installation_names_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    assert re.findall(r"^\| `\[(\w+)\]` \|", page, flags=re.M) == EXTRAS


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_a_workflow_runs_targets_that_there_are(path: Path) -> None:
    targets = re.findall(r"run: make ([\w-]+)", path.read_text())
    assert targets
    for target in targets:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the sources and, of these, the wheel, from what git knows."""
    clone, dist = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True)
    for name in tracked.stdout.decode().split("\0"):
        if name.startswith("fedatoms/") or ("/" not in name and name and (ROOT / name).is_file()):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(clone)]
    subprocess.run(command, check=True, capture_output=True)
    return dist


def in_wheel(built: Path) -> set[str]:
    (wheel,) = built.glob("*.whl")
    return {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("fedatoms/")}


@pytest.mark.slow
def test_wheel_and_sources_have_every_file_of_the_package(built: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "fedatoms"], cwd=ROOT, capture_output=True)
    files = {name for name in listed.stdout.decode().split() if (ROOT / name).is_file()}
    assert in_wheel(built) == files
    (sources,) = built.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        assert files <= {name.partition("/")[2] for name in archive.getnames()}


@pytest.mark.slow
def test_a_wheel_of_a_checkout_knows_its_commit(built: Path, tmp_path: Path) -> None:
    (sources,) = built.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        archive.extractall(tmp_path / "all", filter="data")
    (checkout,) = (tmp_path / "all").iterdir()
    us = ["-c", "user.name=us", "-c", "user.email=us@example.org"]
    for words in (
        ["init", "--quiet"],
        ["add", "fedatoms", "setup.py", "pyproject.toml"],
        [*us, "commit", "--quiet", "--message", "first"],
    ):
        subprocess.run(["git", *words], cwd=checkout, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, check=True, capture_output=True, text=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(checkout)]
    subprocess.run(command, check=True, capture_output=True)  # sources first, and of these, without git, the wheel
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = "from fedatoms.runs import commit; print(commit.__file__, commit.known_commit())"
    asked = {name: value for name, value in os.environ.items() if name != "FEDATOMS_COMMIT"}
    where = tmp_path / "installed"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=where,
        check=True,
        capture_output=True,
        text=True,
        env=asked | {"PYTHONPATH": str(where)},
    )
    assert done.stdout.split() == [str(where / "fedatoms" / "runs" / "commit.py"), head.stdout[:12]]


@pytest.mark.slow
def test_the_wheel_runs_the_demo_in_an_environment_of_its_own(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wheel,) = built.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / "bin" / "python"
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--force-reinstall",
        str(wheel),
    ]
    monkeypatch.delenv("PYTHONPATH", raising=False)  # other tests' clone, which pip would take for what it installs
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True)
    inside = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
    ).stdout.strip()
    (Path(inside) / "others.pth").write_text(sysconfig.get_path("purelib"))  # what it needs; ours comes first
    words = ["demo", "--rounds", "1", "--epochs", "1", "--seeds", "0"]
    subprocess.run([str(python.with_name("fedatoms")), *words], cwd=tmp_path, check=True, capture_output=True)
    where = [str(python), "-c", "import fedatoms; print(fedatoms.__file__)"]
    assert inside in subprocess.run(where, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
