"""How a network leaves: as ONNX, as torch's exported program or as weights, each checked before it is written.

What is written is plain (``fuse``), in evaluation mode and on the CPU, and takes batches of any size.
"""

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedatoms.core.border import as_path
from fedatoms.core.files import write_named
from fedatoms.core.inputs import output_of
from fedatoms.core.lookup import first_line
from fedatoms.core.options import EXPORTS, Export, one_of
from fedatoms.core.outputs import check_parent
from fedatoms.core.randomness import generator
from fedatoms.nn.atoms import fuse
from fedatoms.nn.layers import copied, require_values
from fedatoms.nn.models import fitting

CLOSE = 1e-5  # how far outputs may lie apart, as a share of the largest one if that is above 1
INPUT, OUTPUT = "input", "output"  # of an ONNX graph
SUFFIXES: dict[Export, str] = {"onnx": ".onnx", "torch-export": ".pt2", "safetensors": ".safetensors"}
Run = Callable[[Tensor], object]  # from a batch of inputs to its outputs


class Exported(NamedTuple):
    """A file with a network in it, and how far its outputs lie from the network's (None: nothing here can run it)."""

    path: Path
    size: int  # bytes
    parameters: int
    difference: float | None


def export(model: nn.Module, path: Path | str, *, shape: Sequence[int], to: Export = "onnx") -> Exported:
    """Writes a network, made plain, to a file for others; ``shape`` is that of one input, without the batch.

    ``to`` is "onnx", "torch-export" (read by ``torch.export.load``) or "safetensors" (weights that a plain network
    takes by ``load_state_dict``). Outputs of batches of one and of three inputs must equal the network's to 1e-5.

    >>> import tempfile
    >>> from fedatoms.nn.atoms import decompose
    >>> net = decompose(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), atoms=2, init="orthonormal")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(net, f"{folder}/net.safetensors", shape=(1, 4, 4), to="safetensors").parameters
    20
    """
    one_of(EXPORTS, to, "to")
    path = as_path(path, "path")
    if path.suffix != SUFFIXES[to]:
        raise ValueError(f"{path} does not end in {SUFFIXES[to]}. Use for example {path.stem}{SUFFIXES[to]}.")
    check_parent(path)
    require_values(model)
    plain = fuse(model).cpu().eval().requires_grad_(False)
    with _taking(tuple(shape)), torch.no_grad():
        example = _some(plain, shape, 2)
        returned = plain(example)
    counts = plain if isinstance(returned, Tensor) else _Counts(plain)
    data, run = _as_weights(plain) if to == "safetensors" else _written(counts, example, to)
    apart = None if run is None else max(_apart(plain, run, _some(plain, shape, rows), to) for rows in (1, 3))
    write_named(path, data)
    return Exported(path, len(data), sum(leaf.numel() for leaf in plain.parameters()), apart)


class _Counts(nn.Module):
    """A network that returns the one tensor that counts."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return output_of(self.model(x))


@contextmanager
def _taking(shape: tuple[int, ...]) -> Iterator[None]:
    """Refuses inputs that the network does not take."""
    try:
        with fitting(shape):
            yield
    except ValueError as error:
        if "argument #1 'indices'" not in str(error.__cause__):
            raise
        raise ValueError(
            f"shape={shape}: the network takes tokens, and an exported one takes real numbers. Export the part behind "
            f"its embedding, or use torch.onnx.export."
        ) from error


def _written(model: nn.Module, example: Tensor, to: Export) -> tuple[bytes, Run | None]:
    """Returns a network as the bytes of a file, and what runs these bytes, if it is here."""
    return _as_onnx(model, example) if to == "onnx" else _as_program(model, example)


def _as_onnx(model: nn.Module, example: Tensor) -> tuple[bytes, Run | None]:
    if missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]:
        raise ValueError(
            f'to=onnx needs {" and ".join(missing)}. In a clone, type pip install ".[export]", or use to=torch-export.'
        )
    with _exporting("onnx"):
        program = torch.onnx.export(
            model,
            (example,),
            dynamo=True,
            dynamic_shapes=_batch(),
            input_names=[INPUT],
            output_names=[OUTPUT],
            verbose=False,
        )
        assert program is not None
        data: bytes = program.model_proto.SerializeToString()
        return data, _onnx_runner(data) if find_spec("onnxruntime") else None


def _onnx_runner(data: bytes) -> Run:
    from onnxruntime import InferenceSession

    session = InferenceSession(data, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run([OUTPUT], {INPUT: x.numpy()})[0])


def _as_program(model: nn.Module, example: Tensor) -> tuple[bytes, Run]:
    with _exporting("torch-export"):
        file = io.BytesIO()
        torch.export.save(torch.export.export(model, (example,), dynamic_shapes=_batch()), file)
        file.seek(0)
        run: Run = torch.export.load(file).module()
    return file.getvalue(), run


def _as_weights(model: nn.Module) -> tuple[bytes, Run]:
    from safetensors.torch import load, save

    # a tied tensor is written under each of its names, as load_state_dict wants it
    data: bytes = save({name: leaf.contiguous().clone() for name, leaf in model.state_dict().items()}, {"format": "pt"})
    again = copied(model)
    again.load_state_dict(load(data))
    return data, again


def _batch() -> tuple[dict[int, torch.export.Dim]]:
    return ({0: torch.export.Dim("batch")},)


@contextmanager
def _exporting(to: Export) -> Iterator[None]:
    """Quietens torch's exporter, and says in one line what it refuses."""
    log = logging.getLogger("torch.onnx")
    others, before = "safetensors" if to == "torch-export" else "torch-export or safetensors", log.level
    log.setLevel(logging.ERROR)  # it warns of packages that are not there
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            yield
    except Exception as error:  # each part of torch has its own kind
        reason = first_line(error).rstrip(".")
        raise ValueError(f"to={to}: this network cannot be exported ({reason}). Use to={others}.") from error
    finally:
        log.setLevel(before)


def _some(model: nn.Module, shape: Sequence[int], rows: int) -> Tensor:
    dtype = next((leaf.dtype for leaf in model.parameters() if leaf.is_floating_point()), torch.float32)
    return torch.randn(rows, *shape, generator=generator(0, "export", rows), dtype=dtype)


@torch.no_grad()
def _apart(model: nn.Module, run: Run, x: Tensor, to: Export) -> float:
    """Returns how far the outputs of a file lie from the network's, and refuses it if that is too far."""
    expected, found = output_of(model(x)), output_of(run(x))
    apart = float((found - expected).abs().max() / expected.abs().max().clamp(min=1))
    if not apart <= CLOSE:
        raise ValueError(
            f"to={to}: the outputs of the file lie {apart:.1e} from the network's, and may lie {CLOSE:g} apart. "
            f"Nothing is written. Use to=safetensors."
        )
    return apart
