"""Reading float8_e4m3fn by shifts: every code there is, against torch's own conversion."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.tiled import Fp8Weights
from engine.numerics import rounding as e4m3
from engine.numerics.codes import FloatCodes

CODES = torch.arange(-128, 128).to(torch.int8)
IS_NAN = (CODES == 0x7F) | (CODES == -1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_code_is_the_number_that_torch_reads(dtype: torch.dtype) -> None:
    codes = CODES[~IS_NAN]
    found = e4m3.decode(codes, dtype)
    assert found.dtype is dtype
    assert torch.equal(found, codes.view(torch.float8_e4m3fn).to(dtype))
    out = torch.full((2, 127), -1.0, dtype=dtype)
    assert e4m3.decode_into(codes.view(2, 127), out) is out
    assert torch.equal(out.flatten(), found)


def test_codes_of_nan_are_found() -> None:
    assert torch.equal(CODES.view(torch.float8_e4m3fn).float().isnan(), IS_NAN)
    assert not e4m3.has_nan(CODES[~IS_NAN])
    assert not e4m3.has_nan(CODES[:0])
    for code in CODES[IS_NAN]:
        assert e4m3.has_nan(torch.cat([CODES[~IS_NAN], code.view(1)]))


@pytest.mark.parametrize("code", [0x7F, -1])
def test_nan_in_a_weight_stays_where_it_is(code: int) -> None:
    values = CODES[~IS_NAN].clone().view(2, 127)
    values[1, 5] = code
    codes = FloatCodes(values.view(torch.float8_e4m3fn), torch.rand(2, 1) + 0.5, (1, 127))
    weights = Fp8Weights(codes, torch.float32)
    assert torch.equal(weights.dense().isnan(), codes.dequantize().isnan())
    found = weights.product(torch.ones(3, 127), None)
    assert found[:, 1].isnan().all() and found[:, 0].isfinite().all()
