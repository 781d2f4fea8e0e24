"""Which earlier tokens each layer of a transformers model sees, read from the masks that it builds.

Some classes pass their sliding window to the attention function; others express it in their mask
alone, and the engine builds no masks. So a model without memory runs once with masks that are
descriptions, and each attention module keeps the one that reaches it.

    create_sliding_window_causal_mask  -->  Visible(window=4096)  -->  module of each such layer
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engine.attention.interface import REMEDY, VISIBLE, Visible
from engine.errors import UnsupportedModelError

log = logging.getLogger(__name__)

_DESCRIBE = "inferdeck-masks"
_MOST_KNOWN = 32
_known: dict[tuple[type[nn.Module], str], dict[str, Visible]] = {}
"""What was read of models, by class and configuration: a model is loaded again for every setting
that changes its weights, and running it took half of that load."""


class _Described(NamedTuple):
    """What reaches an attention module in place of a mask. problem: the parts of it that are
    not supported."""

    visible: Visible
    problem: str = ""


def bind_masks(model: nn.Module, max_model_len: int) -> None:
    """Give each attention module of `model`, which is on the meta device, what its mask says about
    sequences of at most `max_model_len` tokens.

    Raises UnsupportedModelError for a mask that is neither causal, nor a causal window, nor causal
    in chunks, and for windows of 0 tokens. A class that cannot run this way keeps the windows that
    it passes itself. A model of the same class and configuration is not run again.
    """
    config: Any = model.config
    key = type(model), repr(config.to_dict())
    if (known := _known.get(key)) is None:
        known = _read(model)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = known
    for path, found in known.items():
        visible = Visible(*(_below(size, max_model_len) for size in found))
        setattr(model.get_submodule(path), VISIBLE, visible)


def _read(model: nn.Module) -> dict[str, Visible]:
    """What the masks of `model` say, by the paths of its attention modules."""
    from engine.lazy_transformers import ALL_MASK_ATTENTION_FUNCTIONS, AttentionInterface

    AttentionInterface.register(_DESCRIBE, _keep)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_DESCRIBE, _describe)
    config: Any = model.config
    before = config._attn_implementation, getattr(config, "_experts_implementation", None)
    config._attn_implementation = _DESCRIBE
    config._experts_implementation = "batched_mm"  # it has no sizes that depend on the router
    one = torch.zeros((1, 1), dtype=torch.int64, device="meta")
    try:
        with torch.inference_mode():
            # a padding mask: without one, transformers would look at the positions
            model(input_ids=one, attention_mask=one, position_ids=one, use_cache=False)
    except UnsupportedModelError:
        raise
    except Exception as error:  # whatever a class raises; the smoke test shows what it matters
        log.info("cannot read the attention masks of %s: %s", type(model).__name__, error)
    finally:
        config._attn_implementation, config._experts_implementation = before
    return {
        path: module.__dict__[VISIBLE]
        for path, module in model.named_modules()
        if VISIBLE in module.__dict__
    }


def copy_masks(source: nn.Module, target: nn.Module) -> None:
    """What was bound to the modules of a model, for another of the same structure."""
    for path, module in source.named_modules():
        if VISIBLE in module.__dict__:
            setattr(target.get_submodule(path), VISIBLE, module.__dict__[VISIBLE])


def _below(size: int | None, most: int) -> int | None:
    return size if size is not None and size < most else None


def _describe(*_: Any, mask_function: Callable[..., Any], **__: Any) -> _Described:
    """transformers' mask function of this name."""
    found: dict[str, Any] = {}
    for part in _parts(mask_function):
        name = getattr(part, "__qualname__", type(part).__name__).partition(".")[0]
        found[name] = inspect.getclosurevars(part).nonlocals if inspect.isfunction(part) else {}
    window = found.pop("sliding_window_overlay", {}).get("sliding_window")
    chunk = found.pop("chunked_overlay", {}).get("chunk_size")
    is_causal = found.pop("causal_mask_function", None) is not None
    problem = ", ".join(sorted(found)) or ("" if is_causal else "not causal")
    if any(size is not None and size < 1 for size in (window, chunk)):
        problem = "sliding_window or attention_chunk_size is 0"
    return _Described(Visible(window, chunk), problem)


def _parts(function: Any) -> list[Any]:
    """The mask functions of which all must agree."""
    if getattr(function, "__qualname__", "").startswith("and_masks."):
        inner = inspect.getclosurevars(function).nonlocals["mask_functions"]
        return [part for each in inner for part in _parts(each)]
    return [function]


def _keep(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None,
    **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """transformers' attention function of this name."""
    if isinstance(attention_mask, _Described):
        if attention_mask.problem:
            raise UnsupportedModelError(
                f"{type(module).__name__} has an unsupported attention mask: "
                f"{attention_mask.problem}.",
                REMEDY,
            )
        setattr(module, VISIBLE, attention_mask.visible)
    return value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None
