"""How a network leaves: as ONNX, as torch's exported program or as weights, each checked before it is written.

What is written is plain (``fuse``), in evaluation mode and on the CPU, and takes batches of any size.
"""

import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedatoms.core.border import as_path
from fedatoms.core.extras import has, need
from fedatoms.core.files import write_named
from fedatoms.core.inputs import Inputs, leaves, output_of
from fedatoms.core.lookup import first_line
from fedatoms.core.options import EXPORTS, Export, one_of
from fedatoms.core.outputs import check_output
from fedatoms.nn.atoms import fuse
from fedatoms.nn.examples import Batches, batches_of
from fedatoms.nn.layers import copied, require_eager, require_values, require_weights
from fedatoms.nn.pure import arguments, run_on

CLOSE = 1e-5  # how far outputs may lie apart, as a share of the largest one if that is above 1
INPUT, OUTPUT = "input", "output"  # of an ONNX graph; inputs by name have their own names, several are numbered
SUFFIXES: dict[Export, str] = {"onnx": ".onnx", "torch-export": ".pt2", "safetensors": ".safetensors"}
Axes = dict[int, torch.export.Dim]  # of an input, those whose size may be any
Run = Callable[[Inputs], object]  # from a batch of inputs to its outputs


class Exported(NamedTuple):
    """A file with a network in it, and how far its outputs lie from the network's (None: nothing ran it)."""

    path: Path
    size: int  # bytes
    parameters: int
    difference: float | None


def export(
    model: nn.Module,
    path: Path | str,
    *,
    shape: Sequence[int] | None = None,
    inputs: Inputs | None = None,
    to: Export = "onnx",
) -> Exported:
    """Writes a network, made plain, to a file for others; ``shape`` is that of one input, without the batch.

    A network that takes tokens or several inputs is given ``inputs`` instead: a batch of examples, as a tensor, tuple
    or dictionary. ``to`` is "onnx", "torch-export" (read by ``torch.export.load``) or "safetensors" (weights that a
    plain network takes by ``load_state_dict``; they need neither). Outputs of batches of one and of three inputs must
    equal the network's to 1e-5.

    >>> import tempfile
    >>> from fedatoms.nn.atoms import decompose
    >>> net = decompose(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), atoms=2, init="orthonormal")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(net, f"{folder}/net.safetensors", shape=(1, 4, 4), to="safetensors").parameters
    20
    """
    path = _checked_path(path, to)
    for require in (require_eager, require_weights, require_values):
        require(model)
    plain = fuse(model).cpu().eval().requires_grad_(False)
    batches = batches_of(plain, shape, inputs, needed=to != "safetensors")
    data, run = _written(plain, batches, to)
    apart = None
    if run is not None and batches is not None:
        apart = max(_apart(plain, run, batches(rows), to) for rows in (1, 3))
    write_named(path, data)
    return Exported(path, len(data), sum(leaf.numel() for leaf in plain.parameters()), apart)


def _checked_path(path: Path | str, to: Export) -> Path:
    one_of(EXPORTS, to, "to")
    path = as_path(path, "path")
    if path.suffix != SUFFIXES[to]:
        raise ValueError(f"{path} does not end in {SUFFIXES[to]}. Use for example {path.stem}{SUFFIXES[to]}.")
    check_output(path)
    return path


def _written(plain: nn.Module, batches: Batches | None, to: Export) -> tuple[bytes, Run | None]:
    """Returns a network as the bytes of a file, and what runs these bytes, if it is here."""
    if to == "safetensors" or batches is None:
        return _as_weights(plain)
    plain.register_forward_hook(lambda module, given, returned: output_of(returned))  # of several, what counts
    example = batches(2)  # of one row, torch would take the 1 for a constant
    return _as_onnx(plain, example) if to == "onnx" else _as_program(plain, example)


def _as_onnx(model: nn.Module, example: Inputs) -> tuple[bytes, Run | None]:
    need("to=onnx", "export", "onnx", "onnxscript", otherwise=", or use to=torch-export")
    given, named = arguments(example)
    with _exporting("onnx"):
        program = torch.onnx.export(
            model,
            given,
            kwargs=named,
            dynamo=True,
            dynamic_shapes=_batch(given, named),
            input_names=None if named else _input_names(example),  # those by name keep it, in the order of forward
            output_names=[OUTPUT],
            verbose=False,
        )
        assert program is not None
        data: bytes = program.model_proto.SerializeToString()
        return data, _onnx_runner(data) if has("onnxruntime") else None


def _onnx_runner(data: bytes) -> Run:
    from onnxruntime import InferenceSession

    session = InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(x: Inputs) -> Tensor:
        feed = dict(zip(_input_names(x), (leaf.numpy() for leaf in leaves(x)), strict=True))
        return torch.from_numpy(session.run([OUTPUT], feed)[0])

    return run


def _input_names(x: Inputs) -> list[str]:
    if isinstance(x, dict):
        return list(x)
    return [INPUT] if isinstance(x, Tensor) else [f"{INPUT}_{place}" for place in range(len(x))]


def _as_program(model: nn.Module, example: Inputs) -> tuple[bytes, Run]:
    given, named = arguments(example)
    with _exporting("torch-export"):
        file = io.BytesIO()
        program = torch.export.export(model, given, named, dynamic_shapes=_batch(given, named))
        torch.export.save(program, file)
        file.seek(0)
        loaded = torch.export.load(file).module()
    return file.getvalue(), lambda x: run_on(loaded, x)


def _as_weights(model: nn.Module) -> tuple[bytes, Run]:
    from safetensors.torch import load, save

    # a tied tensor is written under each of its names, as load_state_dict wants it
    data: bytes = save({name: leaf.contiguous().clone() for name, leaf in model.state_dict().items()}, {"format": "pt"})
    again = copied(model)
    again.load_state_dict(load(data))
    return data, lambda x: run_on(again, x)


def _batch(given: tuple[Tensor, ...], named: dict[str, Tensor]) -> dict[str, Axes] | tuple[Axes, ...]:
    """Says of each input that its first axis is the batch."""
    first = {0: torch.export.Dim("batch")}
    return dict.fromkeys(named, first) or tuple(first for _ in given)


@contextmanager
def _exporting(to: Export) -> Iterator[None]:
    """Quietens torch's exporter, which prints graphs and logs, and says in one line what it refuses."""
    others = "safetensors" if to == "torch-export" else "torch-export or safetensors"
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad(), redirect_stdout(io.StringIO()):
            with redirect_stderr(io.StringIO()):
                yield
    except Exception as error:  # each part of torch has its own kind
        raise ValueError(f"to={to}: this network cannot be exported ({_reason(error)}). Use to={others}.") from error
    finally:
        logging.disable(before)


def _reason(error: BaseException) -> str:
    """Returns the first line of the error that a chain of them began with, without colours."""
    while error.__cause__ is not None:
        error = error.__cause__
    return re.sub(r"\x1b\[[0-9;]*m", "", first_line(error)).rstrip(".")


@torch.no_grad()
def _apart(model: nn.Module, run: Run, x: Inputs, to: Export) -> float:
    """Returns how far the outputs of a file lie from the network's, and refuses it if that is too far."""
    expected, found = output_of(run_on(model, x)).double(), output_of(run(x)).double()
    apart = float((found - expected).abs().max() / expected.abs().max().clamp(min=1))
    if not apart <= CLOSE:
        raise ValueError(
            f"to={to}: the outputs of the file lie {apart:.1e} from the network's, and may lie {CLOSE:g} apart. "
            f"Nothing is written. Use to=safetensors."
        )
    return apart
