"""Named experiments: the regimes of the paper's Table 1, and the embedded demonstration."""

from dataclasses import replace

from fedatoms.experiment import Experiment
from fedatoms.names import find

DIGITS = Experiment()
DEMO = replace(DIGITS, rounds=20)
TABLE1 = Experiment(  # the regime of FedDC's code, which the paper's Table 1 follows
    dataset="cifar10",
    model="lenet",
    clients=100,
    fraction=0.1,
    rounds=600,
    epochs=5,
    batch_size=50,
    lr=0.1,
    lr_decay=0.998,
    weight_decay=1e-3,
    clip=10.0,
    eval_every=10,
)
# Chosen on a tenth of the training images (paper-results/search): every atom of a 5 x 5 kernel, factors twice as fast.
TABLE1_ATOMS = replace(TABLE1, parametrisation="atoms", atoms=25, atoms_lr=2.0)
CELLS = (("cifar10", 2), ("cifar10", 5), ("cifar100", 5), ("cifar100", 20))
ALGORITHMS = ("fedavg", "fedprox", "scaffold", "feddyn", "feddc")

PRESETS: dict[str, Experiment] = {
    **{algorithm: replace(DIGITS, algorithm=algorithm) for algorithm in ALGORITHMS},
    **{f"{algorithm}-atoms": replace(DIGITS, algorithm=algorithm, parametrisation="atoms") for algorithm in ALGORITHMS},
    **{
        f"{algorithm}{atoms}-{dataset}-{classes}": replace(
            regime, algorithm=algorithm, dataset=dataset, classes_per_client=classes
        )
        for algorithm in ALGORITHMS
        for dataset, classes in CELLS
        for atoms, regime in (("", TABLE1), ("-atoms", TABLE1_ATOMS))
    },
}


def preset(name: str) -> Experiment:
    """Returns a named experiment.

    >>> preset("fedavg-atoms-cifar10-2").parametrisation
    'atoms'
    """
    return find(name, PRESETS, "preset")
