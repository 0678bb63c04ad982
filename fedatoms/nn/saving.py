"""Weights of layers made of factors are saved and loaded strictly: never as a plain network's, nor the other way round.

Torch is lenient where ``strict=False`` is said, and so is ``from_pretrained`` of Hugging Face's mixins, which builds
the plain network and leaves what it finds no weights for as it was drawn.
"""

from collections.abc import Mapping
from typing import Never

from torch import Tensor, nn


class LoadsFactors(nn.Module):
    """A layer made of factors, which refuses a plain filter in their place, with ``strict=False`` too.

    Some of the factors, or none, may be missing then: a part of a network is loaded.
    """

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Tensor],
        prefix: str,
        local_metadata: Mapping[str, object],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        if f"{prefix}weight" in state_dict:
            factors = " and ".join(name for name, _ in self.named_parameters(recurse=False) if name != "bias")
            error_msgs.append(
                f"{prefix}weight is the filter of a plain layer, but this {type(self).__name__} is made of {factors}. "
                f"Load it into the plain network, and decompose or factorise that, or load factors."
            )
        more = local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, prefix, *more)


def guarded(model: nn.Module) -> nn.Module:
    """Returns a model that refuses to go to the Hub, in parts too, while it has layers made of factors.

    ``from_pretrained`` would build the class's own plain layers, and leave them as they were drawn.
    """
    for module in model.modules():
        for name in ("save_pretrained", "push_to_hub"):
            if callable(getattr(type(module), name, None)):
                if any(isinstance(layer, LoadsFactors) for layer in module.modules()):
                    module.__dict__[name] = _refused
                else:
                    module.__dict__.pop(name, None)
    return model


def _refused(*args: object, **more: object) -> Never:
    raise ValueError(
        "save_pretrained: from_pretrained would build plain layers for these factors, and leave them untrained. Use "
        "fuse(model).save_pretrained(...) for a plain network, or save model.state_dict() and load it into "
        "decompose(...) of a new network with as many atoms."
    )
