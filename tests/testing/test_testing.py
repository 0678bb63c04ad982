"""The laws of ``fedatoms.testing`` hold for every method of the tables, and each breaks for a method that breaks it."""

import itertools
from collections.abc import Callable

import pytest
import torch
from support import ROOT
from support.cases import some_of
from torch import Tensor, nn

from fedatoms.algorithms import ALGORITHMS, Algorithm, Server, algorithm, fedavg, scaffold
from fedatoms.algorithms.base import replace_params
from fedatoms.core import trees
from fedatoms.core.trees import Memory, Params
from fedatoms.nn.hadamard import factorise
from fedatoms.objectives import OBJECTIVES, Metric, Objective, objective
from fedatoms.personal import METHODS, Personal, Phase, local_atoms, personal
from fedatoms.testing import check_algorithm, check_objective, check_personal
from fedatoms.testing.algorithm_laws import LAWS as ALGORITHM_LAWS
from fedatoms.testing.personal_laws import LAWS as PERSONAL_LAWS


@pytest.mark.parametrize("name", some_of(ALGORITHMS, "scaffold", "moon"))
def test_every_algorithm_keeps_the_laws(name: str) -> None:
    check_algorithm(lambda: algorithm(name))


@pytest.mark.parametrize("name", some_of(METHODS, "local-atoms", "pfedpara", "fedpac"))
def test_every_personalised_method_keeps_the_laws(name: str) -> None:
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(36, 40), nn.ReLU(), nn.Linear(40, 3)).double()
    check_personal(lambda: personal(name), factorise(linear, personal=True) if name == "pfedpara" else None)


def remembering(make: Callable[[Params], Memory], **changes: object) -> Algorithm:
    return Algorithm(server_memory=make, **changes)  # type: ignore[arg-type]


def in_place() -> Algorithm:
    return Algorithm(correct=lambda gradient, *_: {name: leaf.mul_(2) for name, leaf in gradient.items()})


def after(change: Callable[[Server, float], Params]) -> Algorithm:
    """FedAvg whose server changes the mean."""

    def aggregate(server: Server, mean: Memory, participation: float) -> Server:
        return Server(change(replace_params(server, mean, participation), participation), server.memory)

    return Algorithm(aggregate=aggregate)


def stashing() -> Algorithm:
    """FedAvg that returns what it saw before."""
    seen: Params = {}

    def change(server: Server, participation: float) -> Params:
        seen.update(server.params)
        return dict(seen)

    return after(change)


def counting() -> Algorithm:
    calls = itertools.count(1)
    return after(lambda server, _: trees.apply(lambda w: w + 1e-9 * next(calls), server.params))


def drifting() -> Algorithm:
    """Counts its rounds beside its memory, anew with each run: a resumed run does not know them."""
    rounds = [0]

    def aggregate(server: Server, mean: Memory, participation: float) -> Server:
        first = all(bool((leaf == 0).all()) for leaf in server.memory["seen"].values())
        rounds[0] = 1 if first else rounds[0] + 1
        move = trees.subtract(mean["params"], server.params)
        return Server(trees.add(server.params, move, 1 / rounds[0]), {"seen": trees.apply(torch.ones_like, move)})

    return remembering(lambda params: {"seen": trees.zeros_like(params)}, aggregate=aggregate)


def branching() -> Algorithm:
    def correct(gradient: Params, *_: object) -> Params:
        return {name: leaf / 2 if float(leaf.norm()) > 1e9 else leaf for name, leaf in gradient.items()}

    return Algorithm(correct=correct)


def of_all_parameters() -> Algorithm:
    """Expects the whole model in each round."""
    names: list[str] = []

    def remember(params: Params) -> Memory:
        names[:] = params
        return {}

    return remembering(remember, correct=lambda gradient, *_: {name: gradient[name] for name in names})


BROKEN = {
    "a memory of a reserved name": (lambda: remembering(lambda p: {"params": p}), "fitting_memories", "'params'"),
    "a path for a name": (lambda: remembering(lambda p: {"a/b": p}), "fitting_memories", "'a/b'"),
    "a memory of other names": (lambda: remembering(lambda p: {"h": {}}), "fitting_memories", "'h' has other names"),
    "an argument changed in place": (in_place, "pure_functions", "an argument differs by"),
    "a lost parameter": (lambda: after(lambda server, _: {}), "pure_functions", "'params' does not fit .missing"),
    "no parameters in the upload": (lambda: Algorithm(report=lambda p, s, m, w: ({}, m)), "pure_functions", "nothing"),
    "a memory that is dropped": (
        lambda: scaffold()._replace(report=lambda p, *_: ({"params": p}, {})), "pure_functions", "returned for control"
    ),
    "no answer for all clients": (
        lambda: after(lambda server, of: trees.apply(lambda w: w / (1 - of), server.params)), "alone", "not finite"
    ),
    "a server that decays": (
        lambda: after(lambda server, _: trees.apply(lambda w: 0.9 * w, server.params)), "still_without_movement", "by"
    ),
    "a server that returns more than it saw": (stashing, "still_without_movement", "a name that it was not given"),
    "a memory in float64": (
        lambda: remembering(lambda p: {"h": trees.apply(torch.Tensor.double, p)}), "float32_stays", "server's h of"
    ),
    "a count beside the memory": (counting, "repeatable", "the server's"),
    "noise from the global stream": (
        lambda: after(lambda server, _: trees.apply(lambda w: w + 1e-10 * torch.randn_like(w), server.params)),
        "repeatable",
        "the server's",
    ),
    "a count that a checkpoint lacks": (drifting, "resumable", "the server's"),
    "a branch on a client's values": (branching, "vectorised", "Use map=one_by_one"),
    "all parameters where some travel": (of_all_parameters, "unseen_stays", "KeyError"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "law", "words"), BROKEN.values(), ids=BROKEN)
def test_an_algorithm_that_breaks_a_law_is_told_which(make: Callable[[], Algorithm], law: str, words: str) -> None:
    with pytest.raises(AssertionError, match=rf"breaks the law '{law}': .*{words}"):
        check_algorithm(make)


def forgetful() -> Personal:
    """Takes another part of the model for its own each time it is asked."""
    asked = itertools.cycle(["8.bias", "6.bias"])
    return Personal(own=lambda model, labels: frozenset({next(asked)}))


def meddling() -> Personal:
    def own(model: nn.Module, labels: object) -> frozenset[str]:
        with torch.no_grad():
            next(model.parameters()).add_(1.0)
        return frozenset({"8.bias"})

    return Personal(own=own)


BROKEN_PERSONAL = {
    "an unknown parameter": (
        lambda: Personal(own=lambda model, labels: frozenset({"fc9"})), "known_parameters", "fc9 is none of them"
    ),
    "a part that changes the model": (meddling, "known_parameters", "0.atoms differs by"),
    "another part each time": (forgetful, "known_parameters", "6.bias, 8.bias is only sometimes personal"),
    "nothing to train": (lambda: Personal(phases=(Phase("own"),)), "alone", "nothing to train"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "law", "words"), BROKEN_PERSONAL.values(), ids=BROKEN_PERSONAL)
def test_a_personalised_method_that_breaks_a_law_is_told_which(
    make: Callable[[], Personal], law: str, words: str
) -> None:
    with pytest.raises(AssertionError, match=rf"breaks the law '{law}': .*{words}"):
        check_personal(make)


def test_what_is_no_method_is_told_so() -> None:
    with pytest.raises(AssertionError, match=r"fedavg\(\) returns Algorithm, not Personal"):
        check_personal(fedavg)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=r"local_atoms\(\) returns Personal, not Algorithm"):
        check_algorithm(local_atoms)  # type: ignore[arg-type]


def test_every_law_is_a_sentence_and_in_the_docs() -> None:
    page = (ROOT / "docs" / "own-methods.md").read_text()
    for law in (*ALGORITHM_LAWS, *PERSONAL_LAWS):
        assert (law.__doc__ or "").strip().endswith(".") and "\n\n" not in (law.__doc__ or "")
        assert f"`{law.__name__}`" in page


def test_checks_leave_the_threads_and_the_global_stream_alone() -> None:
    threads, stream = torch.get_num_threads(), torch.random.get_rng_state()
    check_algorithm(fedavg)
    assert torch.get_num_threads() == threads and torch.equal(torch.random.get_rng_state(), stream)


OBJECTIVES_TRIED: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]] = {
    "classification": (nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), torch.clone),
    "multi-label": (nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), lambda y: nn.functional.one_hot(y, 3)),
    "regression": (nn.Sequential(nn.Flatten(), nn.Linear(36, 1)), torch.Tensor.double),
    "segmentation": (nn.Conv2d(1, 3, 3, padding=1), lambda y: y[:, None, None].expand(-1, 6, 6).contiguous()),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_keeps_the_laws(name: str) -> None:
    model, targets = OBJECTIVES_TRIED[name]
    check_objective(lambda: objective(name), model.double(), targets)


def error_of(**changes: object) -> Objective:
    return objective("regression")._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (lambda: error_of(loss=lambda outputs, y: (outputs[:, 0] - y).abs().mean()), "one_row_each"),
        (lambda: error_of(loss=lambda outputs, y: (outputs[:, 0] - y).abs() / len(y)), "one_row_each"),
        (lambda: error_of(mean_loss=lambda outputs, y: (outputs[:, 0] - y).abs().sum()), "one_mean"),
        (lambda: error_of(metrics=(Metric("gap", lambda outputs, y: y - 9, low=0.0),)), "within_bounds"),
    ],
)
def test_an_objective_that_breaks_a_law_is_told_which(make: Callable[[], Objective], law: str) -> None:
    model, targets = OBJECTIVES_TRIED["regression"]
    with pytest.raises(AssertionError, match=f"breaks the law '{law}'"):
        check_objective(make, model.double(), targets)
