"""Gains that were measured after a change are found again, and those alone that compare."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from app.features.inspect.measured_gains import MeasuredGains
from app.features.tune.verdict import Observed, Verdict
from engine.config import Change, EngineConfig
from engine.messages import Loaded, Reconfigured
from engine.telemetry.gain import THROUGHPUT, GainEstimate, corrected
from tests.widgets import synthetic

PLAIN = EngineConfig(model="/m")
INT8 = GainEstimate("quantization", "Weights", "int8", 1.1, 1.3, THROUGHPUT, "Why.")


def observed(seconds: float, count: int = 40) -> Observed:
    values = seconds * (1 + 0.01 * np.sin(np.arange(count)))
    return Observed(values, float(np.median(values)))


def opened(path: Path) -> MeasuredGains:
    gains = MeasuredGains(path)
    model = dataclasses.replace(synthetic.snapshot(0.0).model, device_name="here")
    gains.opened(Loaded(PLAIN, model, synthetic.snapshot(0.0).memory.plan))
    return gains


def test_a_gain_is_remembered_and_corrects_the_estimate(tmp_path: Path) -> None:
    gains = opened(tmp_path / "gains.json")
    assert gains.find(INT8) is None
    gains.changed(Reconfigured(PLAIN.replace(quantization="int8"), Change.RELOAD, 1.0))
    gains.judged([Verdict("itl", observed(0.08), observed(0.04))])
    for known in (gains, opened(tmp_path / "gains.json")):
        found = known.find(INT8)
        assert found is not None and found.factor == pytest.approx(2, rel=0.01)
        assert corrected(INT8, found).high >= 2 > INT8.high
        assert known.find(INT8._replace(value="int4")) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, {"quantization": "int8", "max_num_seqs": 3}), ({}, {"max_num_seqs": 3}),
     ({"quantization": "int4"}, {"quantization": "int8"}),
     ({"quantization": "int8"}, {"quantization": "none"})],
)  # fmt: skip
def test_changes_that_do_not_compare_are_left_out(
    tmp_path: Path, before: dict[str, object], after: dict[str, object]
) -> None:
    gains = opened(tmp_path / "gains.json")
    config = PLAIN.replace(**before)
    gains.changed(Reconfigured(config, Change.RELOAD, 1.0))
    gains.judged([])
    gains.changed(Reconfigured(config.replace(**after), Change.RELOAD, 1.0))
    gains.judged([Verdict("itl", observed(0.08), observed(0.04))])
    assert gains.find(INT8) is None


def test_too_few_samples_are_no_measurement(tmp_path: Path) -> None:
    gains = opened(tmp_path / "gains.json")
    gains.changed(Reconfigured(PLAIN.replace(quantization="int8"), Change.RELOAD, 1.0))
    gains.judged([Verdict("itl", observed(0.08), observed(0.04, count=3))])
    assert gains.find(INT8) is None
