"""What runs on Flower leave is loaded strictly too: the server's model, a node's parameters and its state."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.cases import some_now
from support.small import identical

pytest.importorskip("flwr")

from flwr.app import Message
from safetensors.torch import load_file, save_file
from support.flower_grid import (
    FIRST,
    OWN_ATOMS,
    SCAFFOLD,
    SMALL,
    all_of,
    node_folder,
    on_flower,
    round_of,
    task_of,
    warnings_in,
)

from fedatoms.flower import trained
from fedatoms.flower.node import Kept, keep, kept_at
from fedatoms.flower.strategy import TooFew
from fedatoms.nn.pure import with_params
from fedatoms.runs.results import read_result

WHO = 1


def mistake(call: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_servers_model_and_a_nodes_own_are_loaded_whole_or_not_at_all(tmp_path: Path) -> None:
    on_flower(OWN_ATOMS, tmp_path)
    folder, task, file = (
        tmp_path / "runs" / "it",
        task_of(OWN_ATOMS),
        node_folder(tmp_path, WHO) / "personal.safetensors",
    )
    path, tree, own = folder / "model.safetensors", load_file(folder / "model.safetensors"), load_file(file)
    assert read_result(folder).model_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    shared, x = trained(task, folder).eval(), torch.rand(3, 1, 6, 6)
    assert torch.equal(trained(task, folder, own=file).eval()(x), with_params(shared, own, own)(x))
    save_file({name: leaf for name, leaf in own.items() if name != "conv1.atoms"}, file)
    assert "missing: conv1.atoms)" in mistake(lambda: trained(task, folder, own=file))
    for meddled in ({}, {**tree, "fc2.bias": torch.ones(1)}):
        save_file(meddled, path, metadata={"images": '{"classes": 3, "shape": [1, 6, 6]}'})
        line = mistake(lambda: trained(task, folder))
        assert str(path) in line and "but result.json says" in line and "`flwr run` and resume=true" in line
    on_flower(OWN_ATOMS, tmp_path, resume=True)  # what the line says to do
    assert identical(load_file(path), tree) and identical(load_file(file), own)
    trained(task, folder, own=file)
    path.unlink()
    assert "is missing" in mistake(lambda: trained(task, folder))


def gone(after: int) -> Callable[..., Message | None]:
    return lambda client, message, app: None if (round_of(message) or 0) >= after else app(message)


def test_the_model_so_far_needs_no_result_and_an_older_result_does_not_speak_for_it(tmp_path: Path) -> None:
    folder, task = tmp_path / "runs" / "it", task_of(SMALL)
    with pytest.raises(TooFew):
        on_flower(SMALL, tmp_path, gone(2))
    trained(task, folder)
    on_flower(SMALL, tmp_path, resume=True)
    with pytest.raises(TooFew):
        on_flower(replace(SMALL, rounds=6), tmp_path, gone(4), resume=True)
    line = mistake(lambda: trained(task, folder))
    assert "`flwr run` and resume=true" in line and "remove result.json, which is of 3 rounds and not of 6" in line
    (folder / "result.json").rename(folder / "old.json")
    trained(task, folder)
    (folder / "old.json").rename(folder / "result.json")
    on_flower(replace(SMALL, rounds=6), tmp_path, resume=True)
    trained(task, folder)


def of_the_server(kept: Kept) -> Kept:
    return kept._replace(params={name: leaf for name, leaf in kept.params.items() if name != "conv2.coefficients"})


def broadcast(kept: Kept) -> Kept:
    return kept._replace(params={name: leaf.flatten()[:1] for name, leaf in kept.params.items()})


def of_the_client(kept: Kept) -> Kept:
    assert kept.row is not None
    memory = {kind: dict(list(tree.items())[1:]) for kind, tree in kept.row.memory.items()}
    return kept._replace(row=kept.row._replace(memory=memory, own=dict(list(kept.row.own.items())[1:])))


KINDS = {"scaffold, fast and slow": SCAFFOLD, "local atoms": OWN_ATOMS}


@pytest.mark.parametrize(("spoil", "kind"), some_now([of_the_server, broadcast, of_the_client], KINDS))
def test_a_node_whose_state_lacks_a_tensor_has_lost_it(
    spoil: Callable[[Kept], Kept], kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = [True]

    def meddle(client: int, message: Message, app: Callable[[Message], Message]) -> Message:
        if (client, round_of(message)) == (WHO, 3) and waiting:
            waiting.clear()
            path = max(node_folder(tmp_path, WHO).glob("0*.safetensors"))
            number = int(path.stem[:6])
            kept = kept_at(path.parent, number)
            assert kept is not None
            keep(path.parent, number, spoil(kept), before=0)  # with the checksum of what it holds
        return app(message)

    on_flower(KINDS[kind], tmp_path, meddle)
    line = f"round 4: client {WHO} (node {FIRST + WHO}) has lost its state, and starts afresh"
    assert warnings_in(caplog) == [line]
    assert all(leaf.isfinite().all() for leaf in all_of(tmp_path, KINDS[kind]).values())
