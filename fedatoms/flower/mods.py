"""Flower's mods around a node's training: which of them can work here, and why the others cannot."""

from collections.abc import Mapping, Sequence

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedatoms.engine.round import travelling
from fedatoms.engine.runtime import Runtime

CLIPS = (
    "reads a clipping norm that only Flower's own server-side wrappers send. Leave it out, or use LocalDpMod, which "
    "needs none."
)
MASKS = (
    "speaks with Flower's older workflow of a server, which apps that exchange messages do not have. Leave it out: "
    "there is no secure aggregation here yet."
)
NEVER: Mapping[str, str] = {
    "fixedclipping_mod": CLIPS,
    "adaptiveclipping_mod": CLIPS,
    "secagg_mod": MASKS,
    "secaggplus_mod": MASKS,
}
PAIRS = "LocalDpMod"  # it takes the broadcast from the upload, key by key


def answering(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Addresses an error of the mods after it to the server: Flower's own mods reply to the app's reply.

    Such a reply reaches nobody, so that a server would wait for its whole timeout, and the reason would be on the node.
    """
    reply = call_next(message, context)
    return Message(reply.error, reply_to=message) if reply.has_error() else reply


def misfit_of_mods(mods: Sequence[Mod], runtime: Runtime) -> str:
    """Says why a mod cannot work with this experiment; empty if all can."""
    for mod in mods:
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in NEVER:
            return f"{name} {NEVER[name]}"
        if name == PAIRS and (why := _unpaired(runtime)):
            return f"{name} needs {why}"
    return ""


def _unpaired(runtime: Runtime) -> str:
    """Says why uploads have other keys than broadcasts, or are no numbers."""
    if runtime.sim.uploads != "exact":
        return 'numbers to upload. Use uploads = "exact", or leave the mod out.'
    sent = travelling(runtime, 0)
    if sent != travelling(runtime, 1):
        return 'every group to travel in every round. Use beta = "1", or leave the mod out.'
    if running := sorted(sent & runtime.network.statistics.keys()):
        return f"a network without running statistics such as '{running[0]}'. Use GroupNorm, or leave the mod out."
    return ""
