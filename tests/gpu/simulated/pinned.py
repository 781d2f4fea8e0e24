"""Memory of the host that the simulated device copies by itself."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

_storages: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_empty, _zeros = torch.empty, torch.zeros


def pin(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    _storages[storage._cdata] = storage
    return tensor


def is_pinned(tensor: Tensor, device: Any = None) -> bool:
    return not tensor.is_cuda and tensor.untyped_storage()._cdata in _storages


def empty(*size: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
    made = _empty(*size, **kwargs)
    return pin(made) if pin_memory else made


def zeros(*size: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
    made = _zeros(*size, **kwargs)
    return pin(made) if pin_memory else made


def pin_memory(tensor: Tensor, device: Any = None) -> Tensor:
    return pin(tensor.clone())
