"""The matrices of orthogonal pairs are formed in the type of their triangle where that is fp64, else in fp32."""

from __future__ import annotations

import pytest
import torch

from ppdgrow.pretrained.modeling_ppdgrow import OrthogonalPair, orthogonal

WIDTH = 32


@pytest.mark.parametrize(("dtype", "miss"), [(torch.float64, 1e-14), (torch.float32, 1e-5)])
def test_a_trained_pair_is_undone_to_the_rounding_of_its_type(dtype: torch.dtype, miss: float) -> None:
    draw = torch.Generator().manual_seed(0)
    pair = OrthogonalPair(WIDTH).to(dtype)
    with torch.no_grad():
        for member in (pair.plus, pair.minus):
            member.copy_(torch.randn(WIDTH, WIDTH, generator=draw) / WIDTH**0.5)
    x = torch.randn(2, 5, WIDTH, generator=draw).to(dtype)
    with torch.no_grad():
        y = pair(x, {})
        back = pair.inverse(y, {})
    assert (y - x).norm() > 0.1 * x.norm(), "control: it is not the identity"
    assert (back - x).abs().max() < miss * x.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_are_formed_in_fp32(dtype: torch.dtype) -> None:
    triangle = (torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0)) / WIDTH**0.5).to(dtype)
    assert torch.equal(orthogonal(triangle), orthogonal(triangle.float()).to(dtype))
