"""Smooth atoms to start from: what dct and Fourier-Bessel bases of a kernel are, and what is refused."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.fft import dctn, idctn
from scipy.special import jn_zeros, jv
from torch import nn
from torch.nn.functional import normalize

from fedatoms.core.randomness import generator
from fedatoms.nn.atoms import decompose
from fedatoms.nn.bases import _bessel, _modes, dct, fourier_bessel
from fedatoms.nn.layers import Conv


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.data())
def test_dct_atoms_are_the_lowest_frequencies_of_scipys_transform(kernel: list[int], data: st.DataObject) -> None:
    entries = math.prod(kernel)
    count = data.draw(st.integers(1, entries))
    waves = dct(kernel, count).view(count, *kernel).numpy()
    spectra = torch.from_numpy(dctn(waves, axes=range(1, waves.ndim), norm="ortho"))
    torch.testing.assert_close(
        spectra.flatten(1).abs().sum(1), torch.ones(count, dtype=torch.float64)
    )  # each is one frequency
    found = [tuple(place) for place in spectra.round().nonzero()[:, 1:].tolist()]
    norm = lambda place: sum((k / side) ** 2 for k, side in zip(place, kernel, strict=True))  # noqa: E731
    others = set(itertools.product(*map(range, kernel))) - set(found)
    assert len(set(found)) == count and all(norm(place) <= norm(other) + 1e-12 for place in found for other in others)


def test_nine_dct_atoms_of_a_5x5_kernel_are_its_3x3_lowest_frequencies() -> None:
    atoms = decompose(nn.Conv2d(3, 4, 5, dtype=torch.float64), 9, init="dct").atoms.detach()
    low = torch.from_numpy(idctn(np.eye(25).reshape(25, 5, 5), axes=(1, 2), norm="ortho")).view(5, 5, 25)[:3, :3]
    torch.testing.assert_close(
        atoms.flatten(1).T @ atoms.flatten(1), low.reshape(9, 25).T @ low.reshape(9, 25)
    )  # they span the same


def test_all_layers_of_a_kernel_size_start_from_the_same_smooth_atoms_whatever_the_seed() -> None:
    layers = [decompose(nn.Conv2d(2, 2, 3), 4, init="dct", generator=generator(seed)) for seed in (0, 1)]
    assert torch.equal(layers[0].atoms, layers[1].atoms)
    assert not torch.equal(layers[0].coefficients, layers[1].coefficients)


def test_fourier_bessel_atoms_vanish_outside_of_their_disc_and_are_nearly_orthogonal() -> None:
    atoms = fourier_bessel((5, 5), 9)
    assert not atoms.view(9, 5, 5)[:, ::4, ::4].any()  # the corners
    cosines = normalize(atoms, dim=1) @ normalize(atoms, dim=1).T
    assert (cosines - torch.eye(9)).abs().max() < 0.1
    assert torch.equal(fourier_bessel((3, 3), 11)[9:], fourier_bessel((3, 3), 11)[:2])  # more than entries: again


@pytest.mark.parametrize("entries", [1, 9, 25, 49, 961])
def test_fourier_bessel_functions_are_those_of_the_lowest_zeros_that_scipy_finds(entries: int) -> None:
    found = sorted((zero, n) for n in range(70) for zero in jn_zeros(n, 40) for _ in range(1 + (n > 0)))[:entries]
    assert [order for order, _, _ in _modes(entries)] == [n for _, n in found]
    torch.testing.assert_close(torch.stack([zero for _, zero, _ in _modes(entries)]).tolist(), [z for z, _ in found])


@pytest.mark.parametrize("order", [0, 1, 5, 40])
def test_bessel_functions_are_scipys(order: int) -> None:
    x = torch.linspace(0, 90, 400, dtype=torch.float64)
    torch.testing.assert_close(_bessel(order, x), torch.from_numpy(jv(order, x.numpy())), rtol=0, atol=1e-14)


@pytest.mark.parametrize("conv", [nn.Conv1d(2, 2, 3), nn.Conv3d(2, 2, 3)])
def test_fourier_bessel_atoms_are_for_two_dimensions(conv: Conv) -> None:
    with pytest.raises(ValueError, match=r"init='fourier-bessel' is for kernels of two dimensions.*Use init='dct'"):
        decompose(conv, init="fourier-bessel")
