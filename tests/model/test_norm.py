"""Both forms of RMSNorm against the formula, where eps matters too."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from tracegen.model.norm import RMSNorm


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 1e4])
def test_agrees_with_the_formula(dtype, scale):
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn(3, 2, 24, generator=generator) * scale).to(dtype)
    weight = torch.randn(24, generator=generator).to(dtype)
    y = RMSNorm(24, 1e-5, torch.device("cpu"), dtype)(x, weight)
    exact = x.double()
    exact = exact / (exact.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert y.dtype == dtype
    assert_close(y, exact.to(dtype))
