"""What the folders promise; that imports go downwards is a contract of import-linter (pyproject.toml, `make lint`)."""

import ast
import re
import subprocess
import sys

from support import ROOT

PACKAGE = ROOT / "fedatoms"
LOWER = ("core", "nn", "algorithms", "personal", "engine")  # data reads what the user names


def test_no_module_lies_flat() -> None:
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == ["__init__.py", "__main__.py"]


def test_every_folder_says_in_one_sentence_what_lives_there() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        if "template" not in path.parts:  # a project of its own
            assert ast.get_docstring(ast.parse(path.read_text())), path


FILES = {  # where files are opened or listed
    f"core/{name}.py" for name in ("border", "files", "records", "run_files", "weight_files")
}


def test_the_engine_imports_with_torch_and_numpy_alone() -> None:
    blocked = ["rich", "tyro", "msgspec", "sklearn", "scipy", "safetensors", "matplotlib", "PIL", "torchvision"]
    blocked += ["tensorboard"]
    modules = ["engine.loop", "nn.models", "data", "bench.gpu", "bench.jax_twin", "bench.pfl_twin"]
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked!r}));"
    code += "import " + ", ".join(f"fedatoms.{module}" for module in modules)
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_lower_folders_neither_print_nor_touch_files() -> None:
    touching = {"print", "open", "read_text", "read_bytes", "write_text", "write_bytes", "unlink", "mkdir", "glob"}
    paths = [path for folder in LOWER for path in (PACKAGE / folder).rglob("*.py")]
    assert len(paths) > 40
    for path in paths:
        if path.relative_to(PACKAGE).as_posix() in FILES:
            continue
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {getattr(call, "id", getattr(call, "attr", "")) for call in calls}
        assert not names & touching, path


def test_the_lower_folders_know_of_no_flag() -> None:
    """The command line says their messages in flags (``as_typed``); those of torchrun are not ours."""
    for path in (path for folder in (*LOWER, "data", "objectives") for path in (PACKAGE / folder).rglob("*.py")):
        texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        found = [text for text in texts if isinstance(text, str) and re.search(r"(?<![\w-])--[a-z]", text)]
        assert not [text for text in found if "torchrun" not in text and ">>>" not in text], path


def test_the_package_runs_as_a_module() -> None:
    ran = subprocess.run([sys.executable, "-m", "fedatoms", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("fedatoms ")
