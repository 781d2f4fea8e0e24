"""Work of the Quantize page takes cores, which the chat's engine leaves to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from app.features.quantize import work
from app.features.quantize.evaluation import EvaluationPlan, ModelChoice
from app.features.quantize.plan import QuantizePlan
from engine.hardware.idle_cores import FreeCores, Used
from engine.quantize.recipe import Recipe


@pytest.fixture
def threads_put_back() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def seen_by_another_engine() -> float | None:
    """Asked in a thread of its own."""
    found: list[float | None] = []
    free = FreeCores(1, lambda: 0.0, read=lambda: Used(0.0, 0.0))
    asking = threading.Thread(target=lambda: found.append(free.others(0.0)))
    asking.start()
    asking.join()
    return found[0]


def test_quantizing_counts_its_threads(
    tmp_path: Path, threads_put_back: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def quantize(*arguments: object) -> None:
        seen.append((torch.get_num_threads(), seen_by_another_engine()))
        raise RuntimeError("enough")

    monkeypatch.setattr("engine.quantize.quantize.quantize", quantize)
    plan = QuantizePlan(str(tmp_path), Recipe("rtn"), str(tmp_path / "made"))
    with pytest.raises(RuntimeError, match="enough"):
        work.quantizing(plan, 3)(work.Progress())
    assert seen == [(3, 3)] and seen_by_another_engine() is None


def test_evaluating_counts_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "engine.evaluate.run", lambda task, at, cancelled: seen_by_another_engine()
    )
    monkeypatch.setattr(EvaluationPlan, "task", lambda self: None)
    monkeypatch.setattr("engine.hardware.machine.default_threads", lambda: 5)
    device = "cpu"
    monkeypatch.setattr("engine.hardware.devices.resolve_device", lambda wanted: device)
    for threads, counted in ((2, 2), (None, 5)):
        plan = EvaluationPlan(ModelChoice("/m"), num_threads=threads)
        assert work.evaluating(plan)(work.Progress()) == counted
    device = "cuda:0"
    plan = EvaluationPlan(ModelChoice("/m"))
    assert work.evaluating(plan)(work.Progress()) == 1, "a GPU computes, on one thread's behalf"
    assert seen_by_another_engine() is None
