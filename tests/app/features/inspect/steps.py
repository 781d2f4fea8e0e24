"""Steps, and snapshots with them, for the panels of Inspect."""

from __future__ import annotations

import dataclasses

from engine.config import EngineConfig
from engine.snapshot import EngineSnapshot, StepEntry, StepRecord
from tests.widgets import synthetic

CONFIG = EngineConfig(max_num_seqs=8, max_num_batched_tokens=512)


def step(index: int, kind: str = "decode", tokens: int = 1) -> StepRecord:
    entry = StepEntry("r0", kind, tokens, num_context=500 + tokens, num_logits=1)
    return StepRecord(
        index, index * 0.04, 0.036, (entry,), 1, 0, schedule_s=0.001, model_s=0.033,
        sample_s=0.001, commit_s=0.001,
    )  # fmt: skip


def seen(at: float, *steps: StepRecord, num_running: int = 1) -> EngineSnapshot:
    return dataclasses.replace(
        synthetic.snapshot(at, num_running=num_running, num_used=40), steps=steps, config=CONFIG
    )
