"""Changes to single logits that a request asks for: logit_bias, and min_tokens.

Both touch a handful of tokens per row, so they are one scatter over the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.sampling_params import SamplingParams
from engine.transfer import upload, upload_places

_LARGEST_BIAS = 1e30
"""Larger ones would overflow float32 when added; this much already decides or forbids."""


class EditedRow(Protocol):
    @property
    def params(self) -> SamplingParams: ...
    @property
    def output_token_ids(self) -> Sequence[int]: ...
    @property
    def eos_token_ids(self) -> frozenset[int]: ...


def forbidden_tokens(row: EditedRow) -> frozenset[int]:
    """Tokens that would end the request before min_tokens: EOS and its stop tokens.

    EOS too with ignore_eos, as in vLLM: a forced length should not fill with end markers.
    """
    if len(row.output_token_ids) >= row.params.min_tokens:
        return frozenset()
    return row.eos_token_ids.union(row.params.stop_token_ids)


def has_edits(row: EditedRow) -> bool:
    return bool(row.params.logit_bias) or len(row.output_token_ids) < row.params.min_tokens


def apply_edits(work: Tensor, rows: Sequence[EditedRow], vocab_size: int) -> None:
    """Add logit_bias, then mask the tokens that min_tokens forbids, in `work` [R, padded_vocab].

    Token ids outside the vocabulary have no logit and are skipped (adding such a request is
    refused before).
    """
    width = work.shape[1]
    biased: list[int] = []
    bias: list[float] = []
    masked: list[int] = []
    for i, row in enumerate(rows):
        for token_id, value in row.params.logit_bias.items():
            if token_id < vocab_size:
                biased.append(i * width + token_id)
                bias.append(min(max(value, -_LARGEST_BIAS), _LARGEST_BIAS))
        masked += [i * width + t for t in forbidden_tokens(row) if 0 <= t < vocab_size]
    flat = work.view(-1)
    if biased:
        index = upload_places(biased, work.device)
        flat[index] += upload(bias, work.device, torch.float32)
    if masked:
        flat.index_fill_(0, upload_places(masked, work.device), -torch.inf)
