"""What the loaded checkpoint could be held in, and how long changing it takes. No Qt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.features.models.precision import (
    MAX_KEPT,
    QUANTIZE,
    SOURCE,
    Checkpoint,
    SwitchTimes,
    look_at,
)
from app.paths import starter_model
from app.window.settings_store import SettingsStore
from engine.config import EngineConfig
from engine.errors import InferdeckError
from engine.llm_engine import LLMEngine
from tests.engine.quantized_checkpoints import make_quantized
from tests.figures import numbers

STARTER = EngineConfig(model=str(starter_model()), dtype="float32", max_model_len=512)
PLAIN = Checkpoint(
    "/m", "bfloat16", 128, held=10**9, rounding={"int8": 4e-9, "int4": 8e-9},
    weights={("none", "none"): 2 * 2**30, ("int8", "none"): 2**30},
)  # fmt: skip
AWQ = Checkpoint(
    "/m", "bfloat16", 128, "awq", "AWQ, 4 bits, groups of 128", {("stored", "none"): 2**30}
)


class Memory:
    def __init__(self) -> None:
        self.switch_times: Mapping[str, float] = {}


def test_plain_weights_can_be_rounded_and_formats_that_need_a_checkpoint_are_refused() -> None:
    choices = {c.value: c for c in PLAIN.of_weights("none", "bfloat16")}
    assert choices["none"].text == "BF16 · 2.00 GiB" and not choices["none"].refusal
    assert choices["int8"].text == "INT8 · 1.00 GiB" and not choices["int8"].refusal
    assert "AWQ" in choices["awq"].refusal
    assert PLAIN.way_out == QUANTIZE and PLAIN.limits == ""
    assert {c.value: c.text for c in PLAIN.of_weights("none", "float32")}["none"].startswith("FP32")


def test_a_quantized_checkpoint_has_no_way_back_without_its_source() -> None:
    choices = {c.value: c for c in AWQ.of_weights("none", "bfloat16")}
    auto = choices["auto"].text
    assert auto.startswith("auto: AWQ") and numbers(auto) == [4, 128, 1]
    assert not choices["auto"].refusal and not choices["awq"].refusal
    assert "BF16" in choices["none"].refusal
    assert choices["int8"].refusal and choices["gptq"].refusal
    assert AWQ.way_out == SOURCE and "AWQ, 4 bits" in AWQ.limits


def test_what_is_refused_is_what_the_engine_refuses(tmp_path: Path) -> None:
    make_quantized(tmp_path, "awq")
    config = EngineConfig(model=str(tmp_path), dtype="float32", max_model_len=64)
    known = look_at(config)
    assert known.method == "awq" and not known.rounding
    for choice in known.of_weights("none", "float32"):
        try:
            engine = LLMEngine(config.replace(quantization=choice.value, num_threads=1))
        except InferdeckError:
            assert choice.refusal, choice
        else:
            assert not choice.refusal, choice
            engine.shutdown()


def test_predicted_weights_are_those_of_the_engine() -> None:
    known = look_at(STARTER)
    for method, head in (("none", "none"), ("int8", "int8")):
        config = STARTER.replace(quantization=method, quantization_head=head, num_threads=1)
        engine = LLMEngine(config)
        predicted, measured = known.bytes_of(method, head), engine.model_info.weights_bytes
        engine.shutdown()
        assert predicted is not None and abs(measured - predicted) < 0.001 * predicted
    assert all(seconds > 0 for seconds in known.rounding.values())


def test_a_change_is_estimated_and_then_known(tmp_path: Path) -> None:
    times = SwitchTimes(Memory())
    plain = EngineConfig(model="/m", dtype="bfloat16")
    int8 = plain.replace(quantization="int8")
    assert times.expected(int8, PLAIN) is None  # nothing was loaded yet
    times.learn_load(plain, 40.0)
    assert times.expected(int8, PLAIN) is None  # it compiled kernels
    times.learn_load(plain, 6.0)
    expected = times.expected(int8, PLAIN)
    assert expected is not None and expected.seconds == pytest.approx(10.0)
    assert numbers(expected.words) == [10]
    times.learn(int8, 12.0)
    again = times.expected(int8, PLAIN)
    assert again is not None and numbers(again.words) == [12]
    other = times.expected(plain.replace(quantization="int4"), PLAIN)
    assert other is not None and other.seconds == pytest.approx(6.0 + 8.0)
    assert times.expected(EngineConfig(model="/other"), PLAIN) is None


@given(st.floats(0.1, 600), st.lists(st.floats(0.1, 600), max_size=4))
def test_one_slow_load_decides_no_prediction(slow: float, quiet: list[float]) -> None:
    """The first one compiles kernels, another shares the machine."""
    times = SwitchTimes(Memory())
    plain = EngineConfig(model="/m", dtype="bfloat16")
    small = replace(PLAIN, held=10)
    times.learn_load(plain, slow)
    assert times.expected(plain.replace(quantization="int4"), small) is None
    for seconds in (slow, *quiet):
        times.learn(plain, seconds)
    known = times.expected(plain, small)
    assert known is not None and known.seconds <= (quiet or [slow])[-1] + 0.001
    times.learn(plain, 100 * known.seconds)
    after = times.expected(plain, small)
    assert after is not None and after.seconds <= 10 * known.seconds + 0.01


def test_only_the_last_times_are_kept_and_survive_the_program(tmp_path: Path) -> None:
    store = SettingsStore(tmp_path / "settings.ini")
    times = SwitchTimes(store)
    for number in range(MAX_KEPT + 5):
        times.learn(EngineConfig(model=f"/m{number}"), number)
    store.sync()
    again = SettingsStore(tmp_path / "settings.ini").switch_times
    assert len(again) == MAX_KEPT and not any(name.startswith("/m0|") for name in again)
