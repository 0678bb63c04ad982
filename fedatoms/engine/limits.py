"""What a machine must have for a simulation: its device, and memory for the model, clients' states and batches."""

import warnings
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedatoms.algorithms.base import memory_of_client
from fedatoms.core.inputs import leaves, take
from fedatoms.core.lookup import first_line
from fedatoms.core.memory import available, check_fits
from fedatoms.engine.execution.blocks import UNMEASURED
from fedatoms.engine.server import sample_size
from fedatoms.engine.spec import Simulation
from fedatoms.nn.layers import require_values, require_weights
from fedatoms.personal.base import Personal

KEEP_NONE = " A rule or an attack keeps every upload of a round; aggregation=mean alone keeps none."
PLAN = 26  # bytes of a sample in a plan of batches: row, real, flip, shift
AHEAD = 32  # clients whose batches are drawn before their round
WAY_OUT = (
    "Lower `batch_size`, `accumulate`, `epochs`, `last_epochs`, `clients` or `fraction`, take a smaller model or fewer "
    "`atoms`, or use client_state='disk'."
)


def check_device(name: str) -> str:
    """Returns a device's name, and refuses one that is not there or that only pretends to compute.

    >>> check_device("meta")
    Traceback (most recent call last):
    ...
    ValueError: device=meta cannot be used here (Tensor.item() cannot be called on meta tensors). Use device=cpu.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of types of devices that torch has no more
            device = torch.device(name)
            if device.type == "cpu" and device.index:
                raise RuntimeError("there is one CPU device, however many cores it has")
            torch.ones(1, device=device).add(1).item()
    except Exception as error:  # each backend has its own kind
        reason = first_line(error)  # some list all devices
        reason = "torch has no such device any more" if "INTERNAL ASSERT" in reason else reason
        raise ValueError(f"device={name} cannot be used here ({reason}). Use device=cpu.") from error
    return name


def check_machine(sim: Simulation, until: int = 0) -> None:
    """Refuses a device that cannot be used here, and ``until`` rounds that cannot fit into memory."""
    check_device(sim.device)
    check_memory(sim, until)


def check_memory(sim: Simulation, until: int = 0, epochs: int = 0) -> None:
    """Refuses ``until`` rounds, and a pass of ``epochs`` at the end, that cannot fit into memory.

    Counts only what must be there at once, so that nothing is refused that would have worked.
    """
    _check_needs(needs_of(sim, until, epochs), sim)


def check_beside(others: Sequence[Simulation], sim: Simulation, until: int = 0) -> None:
    """Refuses a run of ``until`` rounds that cannot fit into memory beside others that begin with it."""
    every = [needs_of(each, until) for each in (*others, sim)]
    _check_needs({part: sum(needs[part] for needs in every) for part in every[0]}, sim)


def needs_of(sim: Simulation, until: int = 0, epochs: int = 0) -> dict[str, int]:
    """Returns the least bytes that each part of a run takes beside what is there already."""
    require_weights(sim.model)
    require_values(sim.model)
    sizes = sorted(len(part) for part in sim.data.parts) or [0]
    model = _bytes(dict(sim.model.named_parameters()).values())
    moving = _bytes(leaf for leaf in sim.model.parameters() if leaf.requires_grad)
    at_once = min(sample_size(len(sizes), sim.fraction), _block(sim))
    images = min(sim.training.samples, sizes[-1]) * _bytes(leaves(take(sim.data.x, slice(1))))
    return {
        "the model": 2 * model,  # the server's, and the network's own
        "clients in training": at_once * (3 * moving + images),  # parameters, gradients and the step
        "clients' states": _reached(sim, until) * _state(sim) if until else 0,
        "batches": PLAN * _planned(sim, sizes, epochs),
        "kept uploads": max(_reporting(sim) - at_once, 0) * upload_bytes(sim),
    }


def upload_bytes(sim: Simulation) -> int:
    """Returns the least bytes of a client's upload that a rule or an attack keeps until the end of the round."""
    if not sim.keeps_uploads or sim.personal != Personal() or sim.exchange.personal:
        return 0
    return _bytes(leaf for leaf in sim.model.parameters() if leaf.requires_grad)


def _check_needs(needs: Mapping[str, int], sim: Simulation) -> None:
    device, way_out = torch.device(sim.device), WAY_OUT + (KEEP_NONE if needs["kept uploads"] else "")
    if device.type != "cuda":
        check_fits(needs, available(), way_out)
        return
    on_host = {"batches", *(["clients' states"] if sim.client_state == "host" else [])}
    check_fits({part: size for part, size in needs.items() if part in on_host}, available(), way_out)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    on_gpu = {part: size for part, size in needs.items() if part not in on_host}
    check_fits(on_gpu, torch.cuda.mem_get_info(device)[0] + unused, way_out)


def _reporting(sim: Simulation) -> int:
    """Returns how many clients report in a round: nine tenths of what is expected, if some fail."""
    sampled = sample_size(len(sim.data.parts), sim.fraction)
    return int(0.9 * sampled * (1 - sim.failures)) if sim.failures else sampled


def _block(sim: Simulation) -> int:
    """Returns how many clients train at once at least: on a GPU a block that does not fit becomes smaller by itself."""
    return sim.block or UNMEASURED if sim.map == "vectorised" and sim.device == "cpu" else 1


def _state(sim: Simulation) -> int:
    """Returns the bytes that a client keeps between rounds, if it shares all that it trains."""
    if sim.client_state == "disk" or sim.personal != Personal() or sim.exchange.personal:
        return 0
    params = {name: leaf.detach() for name, leaf in sim.model.named_parameters() if leaf.requires_grad}
    memory = [leaf for tree in memory_of_client(sim.algorithm, params).values() for leaf in tree.values()]
    models = ("all" in sim.scored) + ("local" in sim.scored)
    return _bytes(memory) + models * _bytes(params.values())


def _reached(sim: Simulation, until: int) -> int:
    """Returns how many clients have a state after some rounds: nine tenths of what is expected."""
    count = len(sim.data.parts)
    share = sample_size(count, sim.fraction) / count * (1 - sim.failures)
    return int(0.9 * count * (1 - (1 - share) ** until))


def _planned(sim: Simulation, sizes: Sequence[int], epochs: int) -> int:
    """Returns the samples, with padding, of the plans that are kept: one, or those of a round if nobody fails."""
    width, usual = sim.training.samples, sim.training.epochs
    padded = [width * -(-size // width) for size in sizes]
    shortest = min((phase.epochs or usual for phase in sim.personal.phases), default=usual)
    kept = 1 if sim.failures else min(sample_size(len(sizes), sim.fraction), AHEAD)
    return max(shortest * sum(padded[:kept]), epochs * padded[0])


def _bytes(leaves: Iterable[Tensor]) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves)
