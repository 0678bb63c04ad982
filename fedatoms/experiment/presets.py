"""Named experiments: the regimes of the paper's Tables 1 and 2, and the embedded demonstration."""

import difflib
from dataclasses import replace

from fedatoms.algorithms import TABLE
from fedatoms.experiment.fields import Experiment

NEAREST = 5  # presets that a mistyped one is answered with
DIGITS = Experiment()
DEMO = replace(DIGITS, rounds=20)
PAPER = replace(DIGITS, clients=100, fraction=0.1)
TABLE1 = replace(  # the regime of FedDC's code, which the paper's Table 1 follows; so do the defaults of local training
    PAPER,
    dataset="cifar10",
    model="lenet",
    rounds=600,
    batch_size=50,
    eval_every=10,
    checkpoint_every=50,  # with the last models of 100 clients
)
TABLE1_ATOMS = {
    # As many as the paper has; their start is chosen on a tenth of the training images (paper-results/search-start).
    "-atoms": replace(TABLE1, parametrisation="atoms", atoms=9, init="fourier-bessel"),
    # Every atom of a 5 x 5 kernel, chosen on a tenth of the training images (paper-results/search).
    "-atoms25": replace(TABLE1, parametrisation="atoms", atoms=25),
}
TABLE2 = replace(  # the regime of FedRep's code with the paper's momentum, local epochs and rounds
    PAPER,
    augment="fedrep",
    rounds=200,
    epochs=10,
    batch_size=10,
    lr=0.01,
    lr_decay=1.0,
    momentum=0.9,
    weight_decay=1e-4,
    clip=1.0,  # chosen on held-out images (paper-results/search-personal): without it half of the methods diverge
)
TABLE2_MODELS = {"cifar10": "fedrep-cnn", "cifar100": "fedrep-cnn100"}
TABLE2_ROWS = {
    **{
        method: replace(TABLE2, personal=method)
        for method in ("local", "ditto", "fedper", "fedrep", "fedpac", "lg-fedavg")
    },
    "fedavg-finetune": replace(TABLE2, personal="finetune"),
    "fedprox-finetune": replace(TABLE2, personal="finetune", algorithm="fedprox"),
    **{
        method: replace(TABLE2, personal=method, parametrisation="atoms", atoms=9)
        for method in ("local-atoms", "local-atoms-and-head")
    },
}
# Tiny-ImageNet with the paper's network, but from random weights: so these are no cells of its tables. As in the paper,
# 10 rounds and 2 of 20 clients (Table 1), 1,000 clients (Table 2); the 3 x 3 convolutions are decomposed.
THREE_BY_THREE = r"layer\d\.\d\.conv"
TINY1 = replace(
    TABLE1, dataset="tiny-imagenet", model="resnet18", clients=20, rounds=10, eval_every=1, checkpoint_every=5
)
TINY1_ATOMS = replace(TINY1, parametrisation="atoms", init="fourier-bessel", where=THREE_BY_THREE)
TINY_CLASSES = (20, 50)
CELLS = (("cifar10", 2), ("cifar10", 5), ("cifar100", 5), ("cifar100", 20))
ALGORITHMS = ("fedavg", "fedprox", "scaffold", "feddyn", "feddc")


def _by(algorithm: str, regime: Experiment) -> Experiment:
    """Returns a cell of Table 1: with controls as in FedDC's code, and nearer to the paper (paper-results)."""
    controls = "first" if TABLE.has(algorithm, "controls") else regime.controls
    return replace(regime, algorithm=algorithm, controls=controls)


PRESETS: dict[str, Experiment] = {
    **{algorithm: replace(DIGITS, algorithm=algorithm) for algorithm in ALGORITHMS},
    **{f"{algorithm}-atoms": replace(DIGITS, algorithm=algorithm, parametrisation="atoms") for algorithm in ALGORITHMS},
    **{
        f"{algorithm}{atoms}-{dataset}-{classes}": replace(
            _by(algorithm, regime), dataset=dataset, classes_per_client=classes
        )
        for algorithm in ALGORITHMS
        for dataset, classes in CELLS
        for atoms, regime in {"": TABLE1, **TABLE1_ATOMS}.items()
    },
    **{
        f"{row}-personal-{dataset}-{classes}": replace(
            regime, model=TABLE2_MODELS[dataset], dataset=dataset, classes_per_client=classes
        )
        for row, regime in TABLE2_ROWS.items()
        for dataset, classes in CELLS
    },
    **{
        f"{algorithm}{atoms}-tiny-{classes}": replace(_by(algorithm, regime), classes_per_client=classes)
        for algorithm in ALGORITHMS
        for classes in TINY_CLASSES
        for atoms, regime in {"": TINY1, "-atoms": TINY1_ATOMS}.items()
    },
    **{
        f"{row}-personal-tiny-{classes}": replace(
            regime,
            dataset="tiny-imagenet",
            model="resnet18",
            clients=1000,
            classes_per_client=classes,
            own_test="classes",
            where=THREE_BY_THREE if regime.parametrisation == "atoms" else "",
        )
        for row, regime in TABLE2_ROWS.items()
        for classes in TINY_CLASSES
    },
}


def preset(name: str) -> Experiment:
    """Returns a named experiment.

    >>> preset("fedavg-atoms25-cifar10-2").parametrisation
    'atoms'
    >>> preset("fedavg-atom")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: unknown preset 'fedavg-atom'. Did you mean fedavg-atoms, ...? `fedatoms presets` lists all.
    """
    if name in PRESETS:
        return PRESETS[name]
    *near, last = difflib.get_close_matches(str(name).lower(), PRESETS, n=NEAREST, cutoff=0)
    raise ValueError(
        f"unknown preset '{name}'. Did you mean {', '.join(near)} or {last}? `fedatoms presets` lists all."
    )
