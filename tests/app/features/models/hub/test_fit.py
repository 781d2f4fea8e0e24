"""What fits at which precision: figures and rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytestqt.qtbot import QtBot

from app.features.models.estimate import NOTHING, SHORTEST_CONTEXT, Estimate, Held, Need, estimate
from app.features.models.fit import Fit, fits, longest, machine_facts, shape_fits
from app.features.models.fit_rows import FitRows
from app.storage.model_sources import shape_sources
from engine.config import EngineConfig
from tests.app.features.models.test_open_model import report
from tests.figures import numbers

GIB = 2**30
SIZES = st.integers(min_value=0, max_value=64 * GIB)


def need(weights: int, per_token: int, limit: int, length: int = 1024) -> Need:
    return Need(length, "bfloat16", weights, GIB // 8, per_token * length, limit, 2 * limit, limit)


@given(weights=SIZES, per_token=st.integers(1, 2**21), limit=SIZES,
       own=st.none() | st.integers(256, 2**20))  # fmt: skip
def test_the_longest_context_fits_and_hardly_more_would(
    weights: int, per_token: int, limit: int, own: int | None
) -> None:
    asked = need(weights, per_token, limit)
    found = longest(asked, own)
    base = asked.weights + asked.activations
    if found:
        assert base + found * per_token <= limit
        assert own is None or found <= own
    if found != own:
        assert base + (max(found, SHORTEST_CONTEXT) + 256) * per_token > limit


def halves(config: EngineConfig, in_use: Held) -> Estimate:
    """8 GiB in float32, 4 in 16 bits, 2 in int8 and fp8; all else is not supported."""
    sizes = {"float32": 8, "auto": 4, "bfloat16": 4, "int8": 2, "fp8": 2}
    size = sizes.get(config.dtype if config.quantization == "auto" else config.quantization)
    if size is None:
        return Estimate(report(), problem="no")
    length = config.max_model_len or 8192
    return Estimate(report(context_length=8192), need(size * GIB, 4096, 6 * GIB, length))


def test_each_precision_has_its_verdict() -> None:
    found = fits(EngineConfig(model="/m", max_model_len=4096), NOTHING, halves)
    assert [fit.name for fit in found] == ["FP32", "BF16", "INT8, FP8 weights"]
    assert [(fit.longest, fit.need.fits) for fit in found[:2]] == [(0, False), (8192, True)]
    assert [numbers(fit.text) for fit in found[:2]] == [[], [8192]]
    long = fits(EngineConfig(model="/m", max_model_len=2**20), NOTHING, halves)
    assert (long[1].longest, long[1].need.fits) == (8192, False)
    assert numbers(long[1].text) == [8192] and long[1].text != found[1].text


def test_precisions_that_need_the_same_stand_in_one_row() -> None:
    shape = shape_sources()[0]
    config = EngineConfig(model=shape.path, load_format="dummy", max_model_len=1024)
    found = fits(config, NOTHING, estimate)
    names = ["FP32", "BF16, FP16", "INT8, FP8 weights", "NF4 weights", "INT4 weights"]
    assert [fit.name for fit in found][:3] == names[:3]
    assert {fit.name for fit in found} == set(names)
    assert found[0].need.weights == 2 * found[1].need.weights
    # embeddings in float32, where the processor computes int8's other operations in it
    assert found[2].need.weights < 0.9 * found[1].need.weights


def test_what_is_not_supported_has_no_rows() -> None:
    refused = Estimate(report(), problem="no")
    assert fits(EngineConfig(model="/m"), NOTHING, lambda config, in_use: refused) == []


def test_rows_take_room_only_for_what_they_show_and_say_it_in_words(qtbot: QtBot) -> None:
    rows = FitRows()
    qtbot.addWidget(rows)
    assert rows.isHidden() and rows.sizeHint().height() == 0
    rows.resize(400, 100)
    fit = Fit("bfloat16", need(2 * GIB, 4096, 6 * GIB), 4096)
    other = Fit("float32", need(8 * GIB, 4096, 6 * GIB), 0)
    rows.show_fits([fit, other])
    rows.grab()
    assert not rows.isHidden()
    first, second = rows.accessibleName().split(other.name)
    assert fit.name in first and fit.text in first and numbers(first) == [16, 2.13, 4096]
    assert other.text in second and numbers(second) == [8.13]
    assert "6.00 GiB" in rows.toolTip()


def test_facts_of_this_machine_are_measured() -> None:
    facts = dict(machine_facts().rows)
    assert set(facts) == {"CPU", "Cores", "Memory", "GPU", "Precision", "PyTorch"}
    assert facts["Memory"].count("GiB") == 2 and facts["PyTorch"].startswith(torch.__version__)


def test_known_sizes_are_compared_at_one_context() -> None:
    found = shape_fits(NOTHING, halves)
    assert [fit.name for fit in found] == [f"{s.title}, BF16" for s in shape_sources()]
    assert all(fit.need.max_model_len == 4096 for fit in found)


@pytest.mark.parametrize("limit", [None, 512])
def test_nothing_fits_in_no_memory(limit: int | None) -> None:
    assert longest(need(GIB, 4096, 0), limit) == 0
