"""An address is of numbers and words, whatever type the numbers have."""

import numpy as np
import pytest
import torch

from fedatoms.core.randomness import address


@pytest.mark.parametrize("kind", [np.int64, np.uint8, torch.tensor])
def test_a_whole_number_of_any_type_has_the_same_address(kind: type) -> None:
    assert address(kind(1), "clients", kind(7)) == address(1, "clients", 7)
