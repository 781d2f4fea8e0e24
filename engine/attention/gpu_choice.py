"""Which attention a model gets on a GPU, and why."""

from __future__ import annotations

from collections.abc import Collection

import torch

from engine.attention import varlen_trial
from engine.attention.interface import LayerSpec
from engine.config import SETTINGS
from engine.kernels.select import Choice
from engine.kernels.triton import support
from engine.kv_dtype import PLAIN, KVDtype

WIDEST_HEAD = 256
"""That our kernel is compiled for."""

_ORDINARY = LayerSpec(8, 128, 128)
_LARGE_BLOCK = 256  # what torch's kernel wants a multiple of


def choose_attention(
    device: torch.device,
    layers: Collection[LayerSpec],
    dtype: torch.dtype,
    kv_dtype: KVDtype,
    block_size: int,
) -> Choice:
    """For a cache of `layers`. Implementations: "triton", our kernel; "varlen", torch's own over
    pages; "torch", its SDPA over pages that are gathered."""
    widest = max(max(spec.key_dim, spec.value_dim) for spec in layers)
    without_ours = support.problem(device)
    if not without_ours and widest > WIDEST_HEAD:
        without_ours = f"heads of {widest}: our kernel is for {WIDEST_HEAD}"
    if not without_ours:
        why = "one launch for prompts, decoded tokens and drafts"
        return Choice(f"attention, {device}", "any", 1, "triton", why)
    unfit = varlen_trial.problem(device, layers, dtype, kv_dtype, block_size)
    if unfit:
        why = f"gathered pages and torch's SDPA; torch's attention over pages: {unfit}"
    else:
        why = "torch's attention over pages; with a soft cap or sinks, gathered pages and SDPA"
    return Choice(
        f"attention, {device}, blocks of {block_size}", str(dtype).removeprefix("torch."), 1,
        "torch" if unfit else "varlen", f"{without_ours}: {why}",
    )  # fmt: skip


def attention_choices(device: torch.device) -> list[Choice]:
    """For people to read: an ordinary model in bfloat16."""
    sizes = (SETTINGS["block_size"].default, _LARGE_BLOCK)
    found = [choose_attention(device, [_ORDINARY], torch.bfloat16, PLAIN, n) for n in sizes]
    return list(dict.fromkeys(found))
