"""Notes the commit in sources and wheels that are built from a checkout; all else is in pyproject.toml."""

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve()
COMMIT = runpy.run_path(str(HERE.parent / "fedatoms" / "runs" / "commit.py"))


def note(tree: Path) -> None:
    if found := COMMIT["commit_of"](HERE):
        (tree / "fedatoms" / "runs" / COMMIT["NOTED"]).write_text(f"{found}\n")


class Built(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # a checkout is asked itself
            note(Path(self.build_lib))


class Sources(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        note(Path(base_dir))


setup(cmdclass={"build_py": Built, "sdist": Sources})
