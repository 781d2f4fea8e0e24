"""What operations ask for on a GPU and the CPU forgives: one device, and shapes that its libraries
can take. Which of them the host has to wait for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.gpu.simulated.machine import each

_aten = torch.ops.aten
_INDEXED = {
    _aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default,
}  # fmt: skip
_WAITS = {
    _aten._local_scalar_dense.default, _aten.nonzero.default, _aten.masked_select.default,
    _aten.equal.default, _aten._unique2.default, _aten.unique_dim.default,
    _aten.repeat_interleave.Tensor, _aten.bincount.default,
}  # fmt: skip
_PRODUCTS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}


def waits(func: Any, args: Any) -> bool:
    """Whether the host waits for the device inside an operation."""
    if func in _INDEXED:
        masks = any(t.dtype in (torch.bool, torch.uint8) for t in each(args[1], Tensor))
        # a mask is counted; places or numbers of the host are copied
        return masks or any(not t.is_cuda for t in each(args[1:], Tensor))
    return func in _WAITS


def check(func: Any, args: Any, kwargs: Any) -> None:
    """Raise what torch would on a GPU."""
    given = each((args, kwargs), Tensor)
    if any(t.is_cuda for t in given):
        device = next(t.device for t in given if t.is_cuda)
        strangers = [t for t in given if t.device != device and (t.is_cuda or t.dim() > 0)]
        if func in _INDEXED:
            strangers = [t for t in strangers if t.is_cuda or not any(t is i for i in args[1])]
        if strangers:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, "
                f"{device} and {strangers[0].device}! ({func}, {tuple(strangers[0].shape)})"
            )
    if func in _PRODUCTS and not given[-1].dtype.is_floating_point:
        raise RuntimeError(f'"addmm_cuda" not implemented for {given[-1].dtype}')
    if func is _aten._int_mm.default:
        _check_int_mm(*args)


def instead(func: Any) -> Any:
    """What computes on the CPU what only a GPU has this operation for."""
    return _INSTEAD.get(func, func)


def _histc(values: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _aten.histc.default(values.double(), *args, **kwargs).to(values.dtype)


_INSTEAD = {_aten.histc.default: _histc}


def _check_int_mm(rows: Tensor, weight: Tensor) -> None:
    if rows.shape[0] <= 16:
        raise RuntimeError(f"self.size(0) needs to be greater than 16, but got {rows.shape[0]}")
    for name, size in (("self.size(1)", rows.shape[1]), ("mat2.size(1)", weight.shape[1])):
        if size == 0 or size % 8:
            raise RuntimeError(f"{name} needs to be greater than 0 and a multiple of 8: {size}")
