"""Attacks of malicious clients, for the simulator: what a rule is worth can be seen before anybody lies."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedatoms.core import trees
from fedatoms.core.options import AttackName
from fedatoms.core.randomness import generator
from fedatoms.core.trees import Memory, Params
from fedatoms.data.federations import Federation
from fedatoms.engine.server import Kept

STRENGTHS: dict[AttackName, float] = {"little-is-enough": 1.5}  # their authors' on CIFAR-10; of others it is 9
UNTOUCHED = ("statistics", trees.NUMBERS)  # kinds of an upload that attackers report as honest clients do


class Attack(NamedTuple):
    """What a share of the clients does: an attack by its name, and how strong it is.

    >>> Attack("sign-flip", 0.2)
    Attack(name='sign-flip', share=0.2, strength=9.0)
    """

    name: AttackName
    share: float
    strength: float = 9.0  # times as long as the client's own update; of little-is-enough, standard deviations


class Known(NamedTuple):
    """What a malicious client knows: what all were sent, all honest uploads, and the address of its draws."""

    sent: Params
    honest: list[Memory]
    seed: int
    client: int
    round: int


def malicious(attack: Attack | None, clients: int, seed: int) -> frozenset[int]:
    """Draws who attacks: a share of all clients, at least one.

    >>> sorted(malicious(Attack("noise", 0.2), clients=10, seed=0)), malicious(None, 10, 0)
    ([1, 8], frozenset())
    """
    if attack is None:
        return frozenset()
    count = max(round(attack.share * clients), 1)
    return frozenset(torch.randperm(clients, generator=generator(seed, "attack"), device="cpu")[:count].tolist())


def has_false_labels(attack: Attack | None) -> bool:
    """Says whether malicious clients train on false labels, instead of uploading something else.

    >>> has_false_labels(Attack("label-flip", 0.2)), has_false_labels(None)
    (True, False)
    """
    return attack is not None and attack.name == "label-flip"


def with_false_labels(data: Federation, attack: Attack | None, seed: int) -> Federation:
    """Gives malicious clients the label C - 1 - y for each y, if they flip labels: they train honestly on false data.

    Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX Security 2020.
    """
    if attack is None or not has_false_labels(attack):
        return data
    y = data.y.clone()
    for client in malicious(attack, len(data.parts), seed):
        rows = data.parts[client]
        y[rows] = data.classes - 1 - data.y[rows]
    return data._replace(y=y)


def attacked(
    attack: Attack, each: Mapping[int, Kept], sent: Params, seed: int, t: int, clients: int
) -> dict[int, Kept]:
    """Replaces the uploads of malicious clients, and leaves out those that are not finite, as a server on Flower does.

    >>> one = {0: Kept({"params": {"w": torch.tensor(3.0)}}, 1.0)}
    >>> attacked(Attack("sign-flip", 1.0), one, {"w": torch.tensor(2.0)}, seed=0, t=0, clients=1)[0].upload
    {'params': {'w': tensor(-7.)}}
    >>> attacked(Attack("inf", 1.0), one, {"w": torch.tensor(2.0)}, seed=0, t=0, clients=1)
    {}
    """
    who = malicious(attack, clients, seed)
    honest = [kept.upload for client, kept in each.items() if client not in who]
    new = dict(each)
    if (change := _CHANGES.get(attack.name)) is not None:
        for client in who & each.keys():
            known = Known(sent, honest, seed, client, t)
            new[client] = each[client]._replace(upload=_changed(change, attack.strength, each[client].upload, known))
    return {client: kept for client, kept in new.items() if _is_finite(kept.upload)}


Change = Callable[[float, str, str, Tensor, Known], Tensor]  # strength, kind, name, honest move, known -> false move


def _changed(change: Change, strength: float, upload: Memory, known: Known) -> Memory:
    """Changes an upload leaf by leaf; what is uploaded beside the model is a move already."""
    new = dict(upload)
    for kind in upload.keys() - set(UNTOUCHED):
        start = known.sent if kind == "params" else {}
        moves = {name: leaf - start[name] if start else leaf for name, leaf in upload[kind].items()}
        false = {name: change(strength, kind, name, move, known) for name, move in moves.items()}
        new[kind] = {name: leaf + start[name] if start else leaf for name, leaf in false.items()}
    return new


def _backwards(strength: float, kind: str, name: str, move: Tensor, known: Known) -> Tensor:
    return -strength * move


def _noise(strength: float, kind: str, name: str, move: Tensor, known: Known) -> Tensor:
    draws = generator(known.seed, "attack", known.client, known.round, kind, name)
    noise = torch.randn(move.shape, generator=draws, dtype=torch.float64, device="cpu").to(move)
    return strength * move.square().mean().sqrt() * noise


def _infinite(strength: float, kind: str, name: str, move: Tensor, known: Known) -> Tensor:
    return torch.full_like(move, torch.inf)


def _little(strength: float, kind: str, name: str, move: Tensor, known: Known) -> Tensor:
    """Baruch et al., "A Little Is Enough: Circumventing Defenses For Distributed Learning", NeurIPS 2019."""
    if not known.honest:
        return move
    uploads = torch.stack([each[kind][name] for each in known.honest]).double()
    start = known.sent[name] if kind == "params" else 0.0
    return (uploads.mean(0) - strength * uploads.std(0, correction=0) - start).to(move)


_CHANGES: dict[AttackName, Change] = {
    "sign-flip": _backwards,
    "noise": _noise,
    "inf": _infinite,
    "little-is-enough": _little,
}


def _is_finite(upload: Memory) -> bool:
    return all(bool(leaf.isfinite().all()) for tree in upload.values() for leaf in tree.values())
