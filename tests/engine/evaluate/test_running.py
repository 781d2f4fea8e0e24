"""An evaluation while it runs: its progress, a stop, a thread of its own, and what it leaves."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.evaluate import EvaluationCancelled, EvaluationTask, PromptLine, plain, run, unit_of
from engine.evaluate.task import TEXT
from tests.engine.evaluate.tiny_evaluations import config_of, figures


def test_a_reference_takes_the_dtype_of_the_candidate(tiny_folder: Path, text: str) -> None:
    config = config_of(tiny_folder, dtype="bfloat16")
    report = run(EvaluationTask(config, reference=config.replace(dtype="auto"), text=text))
    assert report.reference is not None
    assert report.reference.dtype == report.candidate.dtype == "bfloat16"


@pytest.mark.slow
@pytest.mark.usefixtures("same_threads")
def test_progress_counts_up_and_a_stop_is_heeded_at_every_stage(
    tiny_folder: Path, text: str
) -> None:
    config = config_of(tiny_folder, max_num_batched_tokens=50)
    task = EvaluationTask(
        config, reference=config, text=text, prompts=(PromptLine(1, "t5 t6", 3),),
        measure_speed=True, context_length=100,
    )  # fmt: skip
    seen: list[tuple[str, int, int]] = []
    run(task, lambda *step: seen.append(step))
    stages = list(dict.fromkeys(stage for stage, _, _ in seen))
    for side in ("Reference", "Model"):
        own = [stage for stage in stages if stage.startswith(side)]
        assert [unit_of(s) for s in own][-3:] == ["tokens", "answers", "runs"]
        assert {unit_of(s) for s in own[:-3]} == {"bytes"}
        counts = [(d, t) for s, d, t in seen if s == f"{side}: {TEXT}"]
        assert counts == [(0, 149), (50, 149), (99, 149), (149, 149)]

    loading = [stage for stage in stages if unit_of(stage) == "bytes"]
    for stage in [*loading[:1], *(s for s in stages if s not in loading), loading[-1]]:
        reached: list[str] = []
        with pytest.raises(EvaluationCancelled):
            run(task, lambda *step, r=reached: r.append(step[0]), lambda r=reached, s=stage: s in r)  # type: ignore[misc]
        assert reached[-1] == stage


def test_it_runs_in_a_thread_beside_another_engine(tiny_folder: Path, text: str) -> None:
    config = config_of(tiny_folder)
    task = EvaluationTask(config, reference=config.replace(dtype="bfloat16"), text=text)
    expected = figures(run(task))
    found: list[list[float]] = []
    threads = [threading.Thread(target=lambda: found.append(figures(run(task)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected, expected]


def test_a_reference_is_plain() -> None:
    config = EngineConfig(model="x", dtype="bfloat16", block_size=4)
    assert plain(config) == config
    assert plain(config, dtype="float32") == config.replace(dtype="float32")
