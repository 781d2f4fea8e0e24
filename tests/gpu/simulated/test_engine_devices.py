"""The engine where there are several GPUs: on the second, and one on each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine import LLMEngine, SamplingParams
from engine.evaluate import EvaluationTask, run
from tests.gpu.engines import Make, tokens_of
from tests.gpu.simulated.machine import machine
from tests.gpu.simulated.several import in_threads

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="SIMULATE_GPUS=2 makes two of them"),
    pytest.mark.usefixtures("small_workspace"),
]
torch.set_num_threads(1)
PROMPTS = [[5, 6, 7, 8], [20, 21, 22]]
PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


def test_on_the_second_device(make: Make) -> None:
    wanted = tokens_of(make(device="cpu"), PROMPTS, PARAMS)
    taken, before = machine.asked, machine.waits
    engine = make(device="cuda:1")
    assert "decode" in engine.model_info.kernels, engine.model_info.notices
    before = machine.waits
    assert tokens_of(engine, PROMPTS, PARAMS) == wanted
    assert machine.waits == before
    assert machine.asked == taken  # nothing of the first


def test_two_engines_of_one_thread(make: Make) -> None:
    """Their steps in turn, whichever was made last."""
    wanted = tokens_of(make(device="cpu"), PROMPTS, PARAMS)
    engines = [make(device=f"cuda:{index}", enforce_eager=True) for index in (0, 1)]
    found: dict[tuple[LLMEngine, str], list[int]] = {}
    for engine in engines:
        for prompt in PROMPTS:
            found[engine, engine.add_request(prompt, PARAMS)] = []
    while any(engine.has_unfinished for engine in engines):
        for engine in engines:
            for event in engine.step():
                found[engine, event.request_id] += event.token_ids
    assert list(found.values()) == wanted * 2
    engines[0].reconfigure(block_size=32)
    assert tokens_of(engines[0], PROMPTS, PARAMS) == wanted


def test_an_engine_in_each_of_two_threads(make: Make) -> None:
    wanted = tokens_of(make(device="cpu"), PROMPTS, PARAMS)
    found = in_threads(
        *(
            lambda index=index: tokens_of(make(device=f"cuda:{index}"), PROMPTS, PARAMS)
            for index in (0, 1)
        )
    )
    assert found == [wanted] * 2


@pytest.mark.slow
def test_an_evaluation_of_one_device_against_the_other(make: Make, models: dict[str, Path]) -> None:
    """The reference's head, of few bits, computes while the candidate does."""
    base = make(device="cpu").config.replace(enforce_eager=True, max_num_batched_tokens=64)
    candidate = base.replace(device="cuda:1", quantization_head="int8", quantization="int8")
    reference = candidate.replace(device="cuda:0")
    text = " ".join(f"t{3 + i % 150}" for i in range(40))
    report = run(EvaluationTask(candidate, reference=reference, text=text, context_length=24))
    assert report.divergence is not None and 0 <= report.divergence.kl.mean < 1e-9
