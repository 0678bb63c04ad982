"""A run that a machine cannot do is refused before it begins, and nothing is refused that would have worked."""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small import clients_of, small_net
from torch import nn

from fedatoms.aggregation import aggregation
from fedatoms.algorithms import algorithm
from fedatoms.engine import limits
from fedatoms.engine.attacks import Attack
from fedatoms.engine.client_round import rate_of
from fedatoms.engine.limits import check_device, check_memory, needs_of
from fedatoms.engine.loop import train
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.experiment.build import device_of, simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.personal import personal


def small(**changes: object) -> Simulation:
    return Simulation(small_net(), clients_of((5, 7, 9)), **changes)


def test_rounds_may_be_named() -> None:
    assert len(train(small(), rounds=2).history) == 2


@pytest.mark.parametrize("rounds", [1.5, math.nan, 0, -1, math.inf, True, "3", 10**10])
def test_rounds_are_a_count(rounds: int) -> None:
    with pytest.raises(
        ValueError, match=r"^rounds=\S+ is (not a whole number|less than 1|more than 1e9)\. Use a whole"
    ):
        train(small(), rounds)
    with pytest.raises(ValueError, match=r"^eval_every="):
        train(small(), 1, eval_every=rounds if rounds != 10**10 else 0)


def test_numbers_of_numpy_are_numbers() -> None:
    sim = small(training=Training(lr=np.float32(0.1), epochs=np.int64(1)), seed=np.int64(3))
    assert len(train(sim, np.int64(2)).history) == 2


@pytest.mark.parametrize("device", ["meta", "cpu:7", "cuda:7", "nosuch", "", "cuda:x", "mkldnn"])
def test_a_device_that_cannot_compute_costs_one_line(device: str) -> None:
    if device == "cuda:7" and torch.cuda.device_count() > 7:
        pytest.skip("this machine has eight GPUs")
    for use in (
        check_device,
        lambda name: device_of(Experiment(device=name)),
        lambda name: prepare(small(device=name)),
        lambda name: train(small(device=name), 1),
    ):
        with pytest.raises(
            ValueError, match=rf"^device={device} cannot be used here \(.+\)\. Use device=cpu\.$"
        ) as error:
            use(device)
        assert "\n" not in str(error.value) and "report a bug" not in str(error.value)


def test_the_cpu_can_be_used() -> None:
    assert check_device("cpu") == "cpu" and check_device("cpu:0") == "cpu:0"


def test_a_run_in_which_nobody_ever_reports_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^failures=0\.999999999: no client reports in 4 rounds, so nothing would be"):
        train(small(failures=0.999999999), 4)
    with pytest.raises(ValueError, match=r"^failures=0\.999999999: no client reports in 40 rounds"):
        simulation(Experiment(failures=0.999999999))
    assert sum(record.clients for record, _ in train(small(failures=0.5), 4).history) > 0


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(3)),
            r"layer '1' \(LazyLinear\) is lazy and has no weights yet",
        ),
        (lambda: nn.Sequential(nn.LazyBatchNorm2d()), r"layer '0' \(LazyBatchNorm2d\) is lazy and has no weights yet"),
        (lambda: nn.DataParallel(small_net()), "the model is wrapped in DataParallel.* Pass its module instead"),
        (lambda: nn.Sequential(nn.DataParallel(small_net())), "layer '0' is wrapped in DataParallel"),
        (lambda: 3, "model=3 is not a network. Pass an nn.Module"),
        (lambda: small_net().cuda, "^model=<method> is not a network. Pass an nn.Module.$"),
        (lambda: small_net().to("meta"), "^'\\w+\\.\\w+' of the model is on the device meta and has no values"),
        (
            lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(2, 3))),
            "^layer '0' computes its weight .*cannot copy",
        ),
    ],
    ids=["lazy", "lazy norm", "parallel", "inside", "number", "method", "meta", "weight norm"],
)
def test_what_is_no_network_yet_costs_one_line(model: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train(Simulation(model(), clients_of((5, 7))), 1)


@pytest.mark.parametrize("sim", [None, Simulation, "small"])
def test_only_a_simulation_is_trained(sim: object) -> None:
    with pytest.raises(ValueError, match=r"^sim=.* is not a simulation\. Use fedatoms\.Simulation\(model, data\)\.$"):
        train(sim, 1)


def test_what_a_run_needs_grows_with_what_it_keeps() -> None:
    model = sum(leaf.numel() * leaf.element_size() for leaf in small_net().parameters())
    plain = needs_of(small(score=("server",)), until=100)
    assert plain["clients' states"] == 0 and plain["the model"] == 2 * model
    kept = needs_of(small(algorithm=algorithm("scaffold"), score=("server", "all")), until=100)
    assert kept["clients' states"] == 2 * 2 * model  # nine tenths of three clients, a control and the last model each
    on_disk = dataclasses.replace(small(algorithm=algorithm("scaffold")), client_state="disk", folder=Path("states"))
    assert needs_of(on_disk, until=100)["clients' states"] == 0
    assert needs_of(small(map="vectorised"))["clients in training"] > 2 * plain["clients in training"]
    usual, wide = (needs_of(small(training=Training(batch_size=size)))["batches"] for size in (1, 1000))
    assert usual == 26 * (5 + 7 + 9) and wide == 26 * 3000


def test_what_a_rule_or_an_attack_keeps_is_counted() -> None:
    model = sum(leaf.numel() * leaf.element_size() for leaf in small_net().parameters())
    for changes in ({"aggregation": aggregation("median")}, {"attack": Attack("noise", 0.3)}):
        kept = needs_of(small(score=("server",), **changes))["kept uploads"]
        assert kept == 2 * model  # of three clients, while the last one trains
    assert needs_of(small(score=("server",)))["kept uploads"] == 0


def test_a_round_whose_uploads_cannot_be_kept_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Simulation(small_net(), clients_of((2,) * 100), score=("server",))
    monkeypatch.setattr(limits, "available", lambda: 10**5)
    train(many, 1)
    with pytest.raises(ValueError, match=r"most of it for kept uploads.*aggregation=mean alone keeps none"):
        train(dataclasses.replace(many, aggregation=aggregation("median")), 1)


@pytest.mark.parametrize("name", ["none", "fedrep", "ditto", "local"])
def test_the_estimate_knows_every_kind_of_run(name: str) -> None:
    check_memory(small(personal=personal(name), failures=0.3), until=1000, epochs=10)


def test_what_cannot_fit_is_refused_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available", lambda: 10**6)
    with pytest.raises(
        ValueError, match=r"needs at least 2\.6 GB of memory, most of it for batches, but 0\.0 GB are left"
    ):
        prepare(Simulation(small_net(), clients_of((5,)), training=Training(batch_size=10**8)))
    monkeypatch.setattr(limits, "available", lambda: 10**5)
    with pytest.raises(ValueError, match=r"most of it for clients' states.*client_state='disk'"):
        train(Simulation(small_net(), clients_of((2,) * 100), algorithm=algorithm("feddc")), 50)
    monkeypatch.setattr(limits, "available", lambda: None)
    train(small(training=Training(batch_size=1000)), 1)


def test_a_batch_beyond_the_training_images_is_refused_with_their_number() -> None:
    with pytest.raises(
        ValueError, match=r"^batch_size=100001 is more than the 1,437 training images\. Use 1437 or fewer\.$"
    ):
        simulation(Experiment(batch_size=100001))
    simulation(Experiment(batch_size=1437, clients=10))


@pytest.mark.parametrize("lr_decay", [2.0, 1e6])
def test_a_rate_that_grows_beyond_all_bounds_is_named(lr_decay: float) -> None:
    training = Training(lr=0.1, lr_decay=lr_decay)
    assert rate_of(training, 1) == 0.1 * lr_decay
    with pytest.raises(
        FloatingPointError, match=rf"^round 5001: lr_decay={lr_decay} has raised the learning rate above"
    ):
        rate_of(training, 5000)
    assert rate_of(Training(lr=0.0, lr_decay=1.5), 1) == 0


def test_on_a_gpu_its_own_memory_counts_but_batches_are_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000)
    sim = small(device="cuda", training=Training(batch_size=10**6), algorithm=algorithm("scaffold"), score=("server",))
    needs = needs_of(sim, until=9)
    on_gpu = sum(size for part, size in needs.items() if part != "batches")
    for free, fits in ((on_gpu - 1000, True), (on_gpu - 1001, False)):  # what the allocator holds unused is free
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, free))
        with contextlib.nullcontext() if fits else pytest.raises(ValueError, match="GB are left"):
            check_memory(sim, until=9)
        on_host = dataclasses.replace(sim, client_state="host")
        check_memory(on_host, until=9)
    monkeypatch.setattr(limits, "available", lambda: needs["batches"] - 1)
    with pytest.raises(ValueError, match="most of it for batches"):
        check_memory(sim)


def test_images_that_do_not_fit_the_model_are_refused_in_one_line() -> None:
    with pytest.raises(
        ValueError, match=r"^images of shape \(1, 6, 6\) do not fit the model \(mat1 and mat2 .*\)\. Build"
    ):
        train(Simulation(nn.Sequential(nn.Flatten(), nn.Linear(9, 3)), clients_of()), 1)
