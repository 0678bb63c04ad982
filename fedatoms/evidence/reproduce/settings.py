"""The settings of `fedatoms reproduce`; no torch."""

from dataclasses import dataclass
from typing import Literal

from fedatoms.core.options import TOGETHER


@dataclass(frozen=True)
class Reproduce:
    """Runs what is missing of a study, then shows the paper's numbers beside ours."""

    data_dir: str = "data"
    """Folder that holds the data sets' official files."""
    seeds: str = "0"
    """Seeds of every run and measure, for example 0,1,2."""
    only: str = ""
    """Regular expression: only the runs and measures whose name it matches."""
    device: str = "auto"
    """Where to train: cpu, cuda, cuda:1, ...; auto: a GPU if there is one."""
    devices: str = ""
    """Train on several devices, one run or measure on each at a time: cuda:0,cuda:1 or cpu,cpu."""
    together: int = TOGETHER
    """Runs, such as those of several seeds, whose clients are trained in one block where they are vectorised, as on a
    GPU: at most so many; 1, or a limit of minutes: one run after the other."""
    quick: bool = False
    """Take minutes on a CPU: digits replace every data set, with few rounds."""
    minutes: float = 0.0
    """Start only what should finish within so many minutes, the most valuable first; 0: no limit."""
    on: Literal["here", "ray"] = "here"
    """here: one after the other; ray: on a Ray cluster, a GPU or a CPU core each (needs fedatoms[ray])."""
    out: str = ""
    """Folder for results, which are not run again; empty: runs/paper, or runs/quick."""
