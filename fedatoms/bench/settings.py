"""The settings of `fedatoms bench`; no torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from fedatoms.core.options import Precision

Part = Literal["grid", "jax", "pfl", "rounds", "algorithms", "personal", "seeds", "deterministic", "cold"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Bench:
    """Settings of the benchmark; those below ``out`` are for --device cuda."""

    device: Literal["cpu", "cuda"] = "cpu"
    """cpu measures ratios that hold on any machine, cuda a contest on one card."""
    threads: int = 2
    """CPU threads of every contestant."""
    repeats: int = 7
    """Measurements of each; the median is reported."""
    steps: int = 0
    """Local steps per client and round; 0 is 5 on a CPU (fewer steps show a round's overhead), 50 on cuda."""
    out: str = ""
    """File for the results as JSON; empty writes none."""
    clients: str = "10,50,100"
    """Clients of a round, one column of the grid each."""
    batch: str = "10,50"
    """Images of a step: below 50 with momentum 0.9 (personal regime), else without (Table 1)."""
    precision: Precision = "tf32"
    """Of all contestants' matrix products: float32, tf32 or bf16."""
    rounds: int = 100
    """Rounds of the measurement that includes evaluations."""
    against: int = 10
    """Clients of the cells in which plain, the loops and JAX run too; the algorithms run there as well."""
    parts: str = ",".join(PARTS)
    """What to measure, in this order."""
    samples: int = 500
    """Images per client."""
    tested: int = 10_000
    """Images of the test set."""
    backend: str = "inductor"
    """torch.compile's backend for the hand-written loop."""
    data_dir: str = ""
    """Folder of CIFAR-10 for the part pfl; empty takes random images, which give times alone."""
    pfl_processes: str = "1,2,5"
    """Numbers of pfl's processes that share the card; its best is the opponent."""
    pfl_clients: int = 1000
    """Clients of pfl's benchmark, 50 images each."""
    pfl_cohort: int = 50
    """Those of them that train in a round."""
    pfl_rounds: int = 0
    """Rounds after which accuracies on CIFAR-10 are compared (pfl's own: 1500); 0 compares none."""
    pfl_seeds: int = 1
    """Seeds of that comparison."""
