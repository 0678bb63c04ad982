"""What an algorithm's functions return keeps names, shapes and types: anything else is refused in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.cases import some_now
from support.small import clients_of, play, small_net
from torch import Tensor

from fedatoms.algorithms import ALGORITHMS, Algorithm, Server, algorithm
from fedatoms.cli import main
from fedatoms.core import trees
from fedatoms.core.options import Map
from fedatoms.core.trees import Params
from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training

Change = Callable[[object], object]
LEAF, SHAPE = "conv1.weight", r"\(4, 1, 3, 3\)"
TREES: dict[str, tuple[Change, str]] = {  # what becomes of a tree over the parameters, and how it is told
    "a sum": (lambda tree: trees.apply(torch.sum, tree), rf"'{LEAF}' of shape \(\) for one of shape {SHAPE}"),
    "a row": (lambda tree: trees.apply(lambda leaf: leaf[None], tree), rf"'{LEAF}' of shape \(1, 4, 1, 3, 3\) for one"),
    "float32": (lambda tree: trees.apply(Tensor.float, tree), f"'{LEAF}' of float32 for one of float64"),
    "a number": (lambda tree: {**tree, LEAF: 1.0}, f"'{LEAF}' as float instead of a tensor"),
    "one less": (lambda tree: {name: leaf for name, leaf in tree.items() if name != LEAF}, f"without '{LEAF}'"),
    "one more": (lambda tree: {**tree, "conv1.wieght": tree[LEAF]}, "'conv1.wieght', a name that it was not given"),
    "none": (lambda tree: None, "None instead of a tree"),
}
MAPS = ["one_by_one", "vectorised"]


def refused(method: Algorithm, words: str, map: Map = "one_by_one") -> None:
    sim = Simulation(small_net(), clients_of((4, 7)), method, training=Training(lr=0.05), map=map)
    with pytest.raises(ValueError, match=words) as error:
        play(sim, 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("what", "name", "map"), some_now(TREES, ALGORITHMS, MAPS, times=2))
def test_a_correction_keeps_names_shapes_and_types(what: str, name: str, map: Map) -> None:
    method, (change, told) = algorithm(name), TREES[what]
    broken = method._replace(correct=lambda *given: change(method.correct(*given)))
    refused(broken, f"^the algorithm's correct returns .*{told}.*: a correction keeps .* Use trees.apply", map)


@pytest.mark.parametrize(("what", "name", "map"), some_now(TREES, ALGORITHMS, MAPS, times=2))
def test_an_upload_has_the_parameters_that_travel(what: str, name: str, map: Map) -> None:
    method, (change, told) = algorithm(name), TREES[what]

    def report(*given: object) -> tuple[object, object]:
        upload, memory = method.report(*given)
        return {**upload, "params": change(upload["params"])}, memory

    told = "report uploads " if what == "none" else f"report uploads .*{told}"
    refused(method._replace(report=report), f"^{told}", map)


@pytest.mark.parametrize(("what", "name"), some_now(TREES, ALGORITHMS, times=2))
def test_a_server_keeps_its_parameters(what: str, name: str) -> None:
    method, (change, told) = algorithm(name), TREES[what]

    def aggregate(*given: object) -> Server:
        server = method.aggregate(*given)
        return server._replace(params=change(server.params))

    refused(method._replace(aggregate=aggregate), f"^the algorithm's aggregate returns .*{told}")


@pytest.mark.parametrize(("what", "name", "map"), some_now(TREES, ["scaffold", "feddyn", "feddc", "moon"], MAPS))
def test_a_clients_memory_keeps_its_trees(what: str, name: str, map: Map) -> None:
    method, (change, told) = algorithm(name), TREES[what]

    def report(*given: object) -> tuple[object, object]:
        upload, memory = method.report(*given)
        return upload, {kind: change(tree) for kind, tree in memory.items()}

    refused(method._replace(report=report), f"^the algorithm's report keeps in its tree '.*{told}", map)


@pytest.mark.parametrize(("what", "name"), some_now(TREES, ["scaffold", "feddyn", "feddc", "fedavgm", "fedadam"]))
def test_the_servers_memory_keeps_its_trees(what: str, name: str) -> None:
    method, (change, told) = algorithm(name), TREES[what]

    def aggregate(*given: object) -> Server:
        server = method.aggregate(*given)
        return server._replace(memory={kind: change(tree) for kind, tree in server.memory.items()})

    refused(method._replace(aggregate=aggregate), f"^the algorithm's aggregate remembers in its tree '.*{told}")


@pytest.mark.parametrize("function", ["client_memory", "server_memory"])
@pytest.mark.parametrize(
    ("memory", "told"),
    [
        (lambda params: {"params": params}, "params, statistics, numbers and paths are taken. Use another name"),
        (lambda params: params, f"as its tree '{LEAF}' Tensor instead of a tree"),
        (lambda params: None, "None instead of named trees"),
        (lambda params: [params], "list instead of named trees"),
        (lambda params: {"control": {}}, f"as its tree 'control' a tree without '{LEAF}'"),
        (lambda params: {"control": {**params, "steps": Tensor()}}, "'steps', a name that it was not given"),
        (lambda params: {"control": dict.fromkeys(params, 0.0)}, f"'{LEAF}' as float instead of a tensor"),
    ],
)
def test_a_memory_has_named_trees_over_the_parameters(function: str, memory: Change, told: str) -> None:
    refused(Algorithm(**{function: memory}), f"^the algorithm's {function} (returns|calls) .*{told}")


@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"report": lambda params, *_: {"params": params}}, r"report returns dict, not \(upload, memory\)"),
        ({"report": lambda params, *_: params}, r"report returns dict, not \(upload, memory\)"),
        ({"report": lambda params, *_: None}, r"report returns NoneType, not \(upload, memory\)"),
        ({"report": lambda params, *_: (params, {}, {})}, r"report returns 3 things, not \(upload, memory\)"),
        ({"report": lambda params, *_: ({"params": params}, None)}, "report keeps None instead of named trees"),
        ({"report": lambda params, *_: ({"params": params}, {"a": params})}, "keeps 'a', a tree that it was not given"),
        ({"report": lambda params, *_: ({"params": params, "a": Tensor()}, {})}, "tree 'a' is Tensor, not a tree"),
        ({"report": lambda params, *_: ({"params": params, "a": {LEAF: 1}}, {})}, f"'a' has '{LEAF}' as int instead"),
        ({"report": lambda params, *_: ({"params": params, "statistics": {}}, {})}, "'statistics', which the engine"),
        ({"aggregate": lambda server, mean, share: mean["params"]}, "aggregate returns dict, not a Server"),
        ({"aggregate": lambda server, mean, share: (mean["params"], {})}, "aggregate returns tuple, not a Server"),
        ({"aggregate": lambda server, mean, share: None}, "aggregate returns NoneType, not a Server"),
        ({"aggregate": lambda server, mean, share: Server(mean["params"], None)}, "remembers None instead of named"),
        ({"sends": ("control",)}, r"sends has 'control', which is no tree of the server's memory \(nothing\)"),
    ],
)
def test_what_a_function_returns_has_its_form(map: Map, changes: dict[str, object], words: str) -> None:
    refused(Algorithm(**changes), words, map)


def test_a_compiled_step_refuses_a_correction_while_it_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    calls = []

    def correct(gradient: Params, *others: object) -> Params:
        calls.append(gradient)
        return trees.apply(torch.sum, gradient) if broken else gradient

    for broken in (False, True):
        sim = Simulation(small_net(), clients_of((4, 70)), Algorithm(correct=correct))
        runtime = prepare(sim)._replace(map_clients=cuda_graph.compiled(2))
        if not broken:
            play(runtime, 2)
            assert len(calls) < 7  # although either round has seven steps
        else:
            with pytest.raises(ValueError, match=r"^the algorithm's correct returns 'conv1.weight' of shape"):
                play(runtime, 1)


def test_the_command_line_tells_it_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "summed.py").write_text(
        "from fedatoms.algorithms import Algorithm\n\n\ndef sums():\n"
        "    return Algorithm(correct=lambda gradient, *_: {name: g.sum() for name, g in gradient.items()})\n"
    )
    assert main(["run", "--algorithm", "summed:sums", "--rounds", "1", "--threads", "1", "--device", "cpu"]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("fedatoms: "))
    assert "the algorithm's correct returns 'conv1.weight' of shape () for one of shape" in line
