"""BatchNorm with its activation is vectorised, and nothing that only has its name."""

import pytest
import torch
from torch import Tensor, nn
from zoo.convolutional import BatchNormAct2d as NormAct

from fedatoms.nn.masked_norm import MaskedBatchNorm, counts_padding, with_masked_norm
from fedatoms.nn.pure import network, why_not_vectorised


class BatchNormAct2d(NormAct):
    """Has timm's name, and normalises last."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.BatchNorm2d.forward(self, self.act(x))


@pytest.mark.parametrize("act", [nn.ReLU(inplace=True), nn.SiLU(), nn.PReLU(3)])
def test_what_follows_the_normalisation_is_applied_to_it(act: nn.Module) -> None:
    plain = NormAct(3, act).double()
    masked = with_masked_norm(nn.Sequential(NormAct(3, act).double()))[0]
    assert isinstance(masked, MaskedBatchNorm)
    assert masked.state_dict().keys() == plain.state_dict().keys()
    masked.real = torch.tensor([True, True, False])
    x = torch.randn(3, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(masked(x.clone())[:2], plain(x[:2].clone()))
    torch.testing.assert_close(masked.running_var, plain.running_var)


def test_padding_counts_for_nothing_in_a_network_of_them() -> None:
    net = network(nn.Sequential(nn.Conv2d(1, 3, 3), NormAct(3, nn.ReLU(inplace=True))).double())
    params = {**net.parameters, **net.statistics, **net.constants}
    x = torch.randn(4, 1, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    key, real = torch.tensor(0), torch.tensor([True, True, True, False])
    (padded, one), (short, other) = net.train(params, x, real, key), net.train(params, x[:3], None, key)
    assert isinstance(padded, Tensor) and isinstance(short, Tensor)
    torch.testing.assert_close(padded[:3], short)
    torch.testing.assert_close(one, other)


def test_a_layer_that_only_has_the_name_is_not_believed() -> None:
    assert counts_padding(BatchNormAct2d(3, nn.ReLU()))
    assert why_not_vectorised(nn.Sequential(NormAct(3, nn.ReLU()))) is None
    assert "padded rows" in str(why_not_vectorised(nn.Sequential(BatchNormAct2d(3, nn.ReLU()))))


def test_a_gradient_of_a_gradient_is_that_of_torchs_layer() -> None:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3, 2, 2, dtype=torch.float64, generator=draws)
    plain = nn.BatchNorm2d(3, track_running_stats=False).double()
    masked = MaskedBatchNorm(plain)
    masked.real = torch.ones(5, dtype=torch.bool)

    def steepness(layer: nn.Module) -> Tensor:
        def slope(x: Tensor) -> Tensor:
            return torch.func.grad(lambda x: layer(x).pow(3).sum())(x).square().sum()

        return torch.func.grad(slope)(x)

    expected = steepness(plain)
    assert expected.norm() > 1
    torch.testing.assert_close(steepness(masked), expected)


def test_one_pixel_far_from_all_others_costs_no_digits() -> None:
    x = torch.randn(20, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    x[0, 0, 0, 0] = 1e3
    masked, exact = MaskedBatchNorm(nn.BatchNorm2d(1)), nn.BatchNorm2d(1).double()
    masked.real = torch.ones(20, dtype=torch.bool)
    torch.testing.assert_close(masked(x).double(), exact(x.double()), rtol=1e-5, atol=1e-5)


def test_a_layer_of_few_digits_keeps_statistics_of_its_own_type() -> None:
    masked = MaskedBatchNorm(nn.BatchNorm1d(2).bfloat16())
    masked.real = torch.ones(4, dtype=torch.bool)
    masked(torch.randn(4, 2).bfloat16())
    assert masked.running_mean.dtype == masked.running_var.dtype == torch.bfloat16


def test_images_of_few_digits_have_statistics_of_many() -> None:
    """As torch's own layer sums bf16 in float32; a mean in bf16 would have three digits."""
    draws = torch.Generator().manual_seed(0)
    x = (torch.randn(20, 3, 7, 7, generator=draws) + 40).bfloat16()
    plain, masked = nn.BatchNorm2d(3), MaskedBatchNorm(nn.BatchNorm2d(3))
    masked.real, exact = torch.ones(20, dtype=torch.bool), nn.BatchNorm2d(3).double()
    exact(x.double())
    found, expected = masked(x), plain(x)
    assert found.dtype == expected.dtype == torch.bfloat16
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(masked, name), getattr(exact, name).float(), rtol=1e-5, atol=0)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
