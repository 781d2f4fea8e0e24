"""Speculation on a GPU: the tokens of the CPU from replayed drafts and verifications, while limits
change, and no memory kept."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import LLMEngine, SamplingParams
from engine.errors import UnsupportedModelError
from engine.runner.cuda_capture import CudaCapture
from tests.gpu.test_engine_gpu import PARAMS, PROMPTS, STARTER, exact_products, make, on_cpu

__all__ = ["exact_products", "on_cpu"]

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]

DRAFT: dict[str, Any] = {
    "speculative_method": "draft_model", "speculative_model": str(STARTER),
    "speculative_adaptive": False, "num_speculative_tokens": 4,
}  # fmt: skip
"""The model is its own draft: almost every draft stands."""


def tokens_of(engine: LLMEngine) -> list[list[int]]:
    return [output.token_ids for output in engine.generate(PROMPTS, PARAMS)]


@pytest.mark.parametrize("enforce_eager", [True, False])
@pytest.mark.parametrize("method", ["draft_model", "ngram"])
def test_drafts_change_no_token(on_cpu: list[list[int]], method: str, enforce_eager: bool) -> None:
    settings = DRAFT if method == "draft_model" else {
        "speculative_method": "ngram", "prompt_lookup_min": 1, "speculative_adaptive": False,
    }  # fmt: skip
    engine = make("cuda:0", enforce_eager=enforce_eager, **settings)
    kernels = engine.model_info.kernels
    assert ("draft" in kernels) == (method == "draft_model" and not enforce_eager)
    if not enforce_eager:
        assert engine.runner.graphs is not None and engine.runner.graphs.worth is not None
        # whatever was measured here: every verification is replayed
        worth = engine.runner.graphs.worth
        worth.saved_s.update(dict.fromkeys(engine.runner.graphs.sizes, 3600.0))
    found = tokens_of(engine)
    figures = engine.snapshot().speculation
    engine.check_integrity()
    engine.shutdown()
    assert found == on_cpu
    assert figures is not None and figures.drafted > 0


def test_limits_may_rise_while_requests_run(on_cpu: list[list[int]]) -> None:
    engine = make("cuda:0", **DRAFT | {"num_speculative_tokens": 2})
    ids = [engine.add_request(p, q) for p, q in zip(PROMPTS, PARAMS, strict=True)]
    found: dict[str, list[int]] = {request_id: [] for request_id in ids}
    steps = 0
    while engine.has_unfinished:
        for event in engine.step():
            found[event.request_id] += event.token_ids
        steps += 1
        if steps == 4:
            engine.reconfigure(num_speculative_tokens=4)
        if steps == 8:
            engine.reconfigure(max_num_seqs=70)
    sizes = engine.runner.graphs.sizes if engine.runner.graphs is not None else ()
    engine.shutdown()
    assert [found[request_id] for request_id in ids] == on_cpu
    assert max(sizes) == 256


def test_unloading_gives_the_memory_of_drafts_back() -> None:
    make("cuda:0", **DRAFT).shutdown()  # what CUDA and libraries keep
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    engine = make("cuda:0", **DRAFT)
    engine.generate(PROMPTS[:2], SamplingParams(temperature=0, max_tokens=8))
    engine.reconfigure(speculative_method="off")
    engine.shutdown()
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before


def test_a_step_that_waits_is_not_captured() -> None:
    """Nothing is begun that torch would leave half done."""
    device = torch.device("cuda:0")
    number = torch.ones(1, device=device)
    stream = torch.cuda.current_stream(device)
    with pytest.raises(UnsupportedModelError, match="waits"):
        CudaCapture(device)(lambda: (number * 2).item())
    assert torch.cuda.current_stream(device) == stream
    assert float(number + 1) == 2.0
    torch.cuda.empty_cache()


def test_a_capture_that_fails_spoils_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.failed_capture"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
