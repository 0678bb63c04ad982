"""Launches of Triton kernels, and how a process that has no GPU compiles them for one that has; needs Triton."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from types import SimpleNamespace
from typing import NamedTuple, Protocol, cast

import torch
import triton
from torch import Tensor
from torch.utils import _pytree as pytree
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import MockTensor

Argument = Tensor | float | str | tuple[Tensor, ...] | tuple[int, ...] | None
FOLDER = "TRITON_CACHE_DIR"


class Kernel(Protocol):
    """The part of a kernel of Triton's that is used here."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]: ...
    def warmup(self, *args: object, grid: tuple[int, ...], **options: int) -> object: ...


def launch(kernel: Kernel, grid: tuple[int, ...], x: Tensor, *rest: Argument, **options: int) -> None:
    """Launches a kernel on the device of its first argument; one for tensors without memory is made ready only."""
    if x.is_meta:
        ready = kernel.warmup(*pytree.tree_map_only(Tensor, _by_type, (x, *rest)), grid=grid, **options)
        getattr(ready, "_init_handles", lambda: None)()  # else at its first launch: a C compiler makes what calls it
        return
    with torch.cuda.device_of(x):  # Triton launches on the current device
        kernel[grid](x, *rest, **options)


def _by_type(x: Tensor) -> object:
    """Returns what stands in for a tensor where a kernel is made ready, in a tuple, too."""
    return MockTensor(x.dtype)


def shared_memory(device: torch.device) -> int:
    """Returns the bytes of shared memory that a program may have; for a tensor without memory on the current GPU."""
    driver = triton.runtime.driver.active
    index = device.index if device.type == "cuda" else driver.get_current_device()
    return int(driver.utils.get_device_properties(index or 0)["max_shared_mem"])


class Card(NamedTuple):
    """A GPU that kernels are compiled for, by a process that does not use it: what Triton asks its driver."""

    backend: str
    arch: int | str
    warp_size: int
    shared: int  # bytes
    libdevice: str | None = None  # the file of NVIDIA's functions, which is a part of the cache's key
    cache: str | None = None  # the folder of the cache, if it is not the usual one

    def get_current_device(self) -> int:
        """Returns a number for it, where it would be one of several."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Returns a number that nothing is launched on."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """Returns what is compiled for."""
        return GPUTarget(self.backend, self.arch, self.warp_size)

    @property
    def utils(self) -> "Card":
        """What knows its properties."""
        return self

    def launcher_cls(self, source: object, metadata: object) -> None:
        """Lets a C compiler make what calls a kernel, where Triton has one made; it is kept with the kernel."""
        with suppress(Exception):  # made, but not to be loaded where there is no GPU
            import_module("triton.backends.nvidia.driver").CudaLauncher(source, metadata)

    def load_binary(self, name: str, *rest: object) -> tuple[int, ...]:
        """Loads nothing; returns what Triton asks of a kernel that is loaded."""
        return 0, 0, 0, 0, 1024  # module, function, registers, spills, and the most threads

    def get_device_properties(self, device: int) -> Mapping[str, int]:
        """Returns the one of its properties that tiles depend on."""
        return {"max_shared_mem": self.shared}


def this_card(device: torch.device) -> Card:
    """Describes the GPU of this process, as Inductor's kernels will see it, too."""
    _let_inductor_choose_files()
    with torch.cuda.device(device):
        target = triton.runtime.driver.active.get_current_target()
    where = _settings().libdevice_path, os.environ.get(FOLDER)
    return Card(target.backend, target.arch, target.warp_size, shared_memory(device), *where)


@contextmanager
def compiling_for(card: Card) -> Iterator[None]:
    """Lets Triton compile for a GPU that this process does not use, into its process's cache.

    The driver stays: Inductor's own kernels set what they need.
    """
    triton.runtime.driver.set_active(card)
    _settings().libdevice_path = card.libdevice
    before = os.environ.get(FOLDER)  # which Inductor sets where it is not
    _set_folder(card.cache)
    try:
        yield
    finally:
        _set_folder(before)


def _set_folder(folder: str | None) -> None:
    os.environ.pop(FOLDER, None)
    if folder is not None:
        os.environ[FOLDER] = folder


def _let_inductor_choose_files() -> None:
    """Lets Inductor choose its files of NVIDIA's now: it does before its first kernel, and they are in every key."""
    from torch._inductor.runtime import compile_tasks

    for name in ("_set_triton_ptxas_path", "_set_triton_libdevice_path"):
        getattr(compile_tasks, name, lambda: None)()


class _Settings(Protocol):
    """The part of Triton's settings that is used here."""

    libdevice_path: str | None


def _settings() -> _Settings:
    """Returns Triton's settings for NVIDIA; older ones have none."""
    knobs = getattr(triton, "knobs", None)
    return cast(_Settings, SimpleNamespace(libdevice_path=None) if knobs is None else knobs.nvidia)
