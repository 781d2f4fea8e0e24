"""Formatters: what they say is the value within rounding, in the unit that fits it."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import units as u

SECONDS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0}
BINARY = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
durations = st.floats(1e-6, 1e7)
values = st.floats(-1e12, 1e12).filter(lambda v: not v or abs(v) > 1e-4)


def read(text: str, factors: dict[str, float]) -> float:
    """The value of "2 h 5 min"."""
    pairs = re.findall(r"(−?[\d,.]+) ([^\d\s]+)", text)
    assert pairs and " ".join(f"{number} {unit}" for number, unit in pairs) == text
    return sum(float(number.replace(",", "").replace("−", "-")) * factors[unit]
               for number, unit in pairs)  # fmt: skip


@given(durations)
def test_a_duration_reads_back_within_its_rounding(seconds: float) -> None:
    step = 0.3 if seconds >= 48 * 3600 else 0.0
    found = read(u.duration_text(seconds), SECONDS)
    assert found == pytest.approx(seconds, rel=max(0.009, step))
    assert read(u.rough_duration(seconds), SECONDS) == pytest.approx(seconds, rel=max(0.3, step))


@given(durations, durations)
def test_a_longer_duration_never_reads_shorter(one: float, other: float) -> None:
    low, high = sorted((one, other))
    for write in (u.duration_text, u.rough_duration):
        assert read(write(low), SECONDS) <= read(write(high), SECONDS) * (1 + 1e-12)


@given(durations, st.booleans())
def test_a_duration_has_at_most_three_digits_a_unit(seconds: float, rough: bool) -> None:
    text = u.rough_duration(seconds) if rough else u.duration_text(seconds)
    assert all(len(n.replace(".", "").strip("0")) <= 3 for n in re.findall(r"[\d.]+", text))
    assert not re.search(r"\d{4}", text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(81.294, "81 s"), (81, "81 s"), (14.6, "14.6 s"), (0.063, "63 ms"), (0.0074, "7.4 ms"),
     (7500, "2 h 5 min"), (125, "2 min 5 s"), (120, "2 min"), (15, "15 s"), (8.5e-4, "850 µs"),
     (0.99999, "1 s"), (59.97, "60 s"), (0, "0 s"), (3 * 86400, "3 days"), (-14.6, "−14.6 s"),
     (math.nan, u.NOTHING), (None, u.NOTHING)],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert u.duration_text(seconds) == text


def test_a_column_of_durations_has_one_unit() -> None:
    assert [u.duration_in(s, "ms") for s in (0.00741, 0.0632, 81.294)] == ["7.41", "63.2", "81,294"]
    assert u.duration_with(0.0632, "ms") == "63.2 ms"
    assert u.duration_with(math.nan, "ms") == u.NOTHING


@given(st.floats(1, 2**60))
def test_a_size_reads_back_and_stays_below_1024_of_its_unit(size: float) -> None:
    text = u.bytes_text(size)
    assert read(text, BINARY) == pytest.approx(size, rel=0.006, abs=0.51)
    assert text.endswith("TiB") or float(text.split()[0].replace(",", "")) <= 1024


@given(values, st.integers(2, 4))
def test_a_figure_has_its_digits(value: float, digits: int) -> None:
    for write in (u.figure, u.short_figure):
        found = float(write(value, digits).replace(",", "").replace(u.MINUS, "-"))
        assert found == pytest.approx(value, rel=0.51 * 10 ** (1 - digits), abs=10.0**-digits)


@given(st.floats(-0.99, 50))
def test_a_change_carries_its_sign(share: float) -> None:
    text = u.change_text(share)
    value = float(text.lstrip("+−").removesuffix(" %").replace(",", ""))
    assert (text[0] in "+−") == (value != 0)
    signed = -value if text[0] == "−" else value
    assert signed == pytest.approx(100 * share, rel=0.06, abs=0.01)


def test_what_is_not_measured_is_a_dash() -> None:
    for write in (
        u.number, u.figure, u.short_figure, u.percent_text, u.change_text, u.factor_text,
        u.duration_text, u.bytes_text, u.gib, u.rate_text, u.speed_text, u.bandwidth_text,
        u.compute_text,
    ):  # fmt: skip
        assert {write(value) for value in (None, math.nan, math.inf)} == {u.NOTHING}


@pytest.mark.parametrize(
    ("text", "expected"),
    [(u.factor_text(1.423), "1.42×"), (u.factor_text(50.3), "50×"), (u.percent_text(0.621), "62 %"),
     (u.counted(1, "token"), "1 token"),
     (u.progress_text(412 * 2**20, 1.4 * 2**30), "412 MiB of 1.40 GiB"),
     (u.rate_text(81.3), "81.3 tok/s"), (u.bandwidth_text(29.9e9), "29.9 GB/s"),
     (u.compute_text(989e12), "989 TFLOP/s"), (u.bandwidth_text(736_247), "736 kB/s"),
     (u.operations_text(79_872), "79.9 kFLOP"), (u.operations_text(12), "12 FLOP"),
     (u.speed_text(11 * 2**20), "11.0 MiB/s"),
     (u.scaled_count(1.24e9), "1.24 B"), (u.scaled_count(17), "17")],
)  # fmt: skip
def test_forms(text: str, expected: str) -> None:
    assert text == expected


def test_a_precision_has_one_name() -> None:
    for names, shown in (
        (("float32", "torch.float32", "fp32", "FP32", "float"), "FP32"),
        (("bfloat16", "bf16", "BF16", "torch.bfloat16"), "BF16"),
        (("float16", "half", "fp16"), "FP16"),
        (("nf4", "NF4"), "NF4"), (("int4", "INT4"), "INT4"), (("fp8", "float8_e4m3fn"), "FP8"),
        (("none",), "unquantized"), (("compressed-tensors",), "compressed-tensors"),
    ):  # fmt: skip
        assert {u.precision_name(name) for name in names} == {shown}
        assert {u.setting_text(name) for name in names if "torch" not in name} == {shown}
    assert u.setting_text("k=int8,v=fp8") == "K INT8, V FP8"
    assert [u.setting_text(share) for share in (0.05, 0.125, 0.9)] == ["5 %", "12.5 %", "90 %"]
    assert [u.setting_text(m) for m in ("ngram", "draft_model", "eagle3", "off", None)] == [
        "n-gram", "draft model", "EAGLE-3", "off", "auto",
    ]  # fmt: skip
    assert u.weights_text("int4, groups of 128") == "INT4 weights (groups of 128)"
    assert u.weights_text("none") == u.weights_text("") == ""


# Lines --------------------------------------------------------------------------------------


@given(st.floats(1e-6, 1e6))
def test_a_wrapped_line_never_parts_a_number_from_its_unit(value: float) -> None:
    for text in (
        u.duration_text(value), u.bytes_text(value), u.rate_text(value), u.percent_text(value),
        u.speed_text(value), u.bandwidth_text(value), u.operations_text(value), u.gib(value),
    ):  # fmt: skip
        found = u.unbroken(f"In {text} or so")
        parted = found.replace("\u2060", "")
        assert parted.replace("\u00a0", " ") == f"In {text} or so"
        for number_and_unit in re.findall(r"[\d.,]+ [^\d ]+", text):
            assert number_and_unit.replace(" ", "\u00a0") in parted


@pytest.mark.parametrize("text", ["16 → 3", "4 bits", "in 3 steps", "2 Mine", "7 sides", "B 1 a"])
def test_other_words_may_part(text: str) -> None:
    assert u.unbroken(text) == text


@pytest.mark.parametrize(
    ("before", "after", "unit", "text"),
    [
        (63.0, 151.0, "ms", "63 → 151 ms"), (63.0, 1600.0, "ms", "63 ms → 1.60 s"),
        (2900.0, 54.0, "ms", "2.90 s → 54 ms"), (2900.0, 999.6, "ms", "2.90 → 1.00 s"),
        (1600.0, 440.0, "ms", "1.60 → 0.440 s"), (None, 3.0, "ms", f"{u.NOTHING} → 3.0 ms"),
        (82.0, 55.0, "tok/s", "82 → 55 tok/s"), (1200.0, 900.0, "tok/s", "1,200 → 900 tok/s"),
    ],
)  # fmt: skip
def test_two_values_share_a_unit_where_both_have_digits_in_it(
    before: float | None, after: float, unit: str, text: str
) -> None:
    assert u.from_to(before, after, unit) == text


def test_a_rate_is_not_divided_and_markup_stays() -> None:
    assert u.unbroken("<s>(41 tok/s)</s></span>") == "<s>(41\u00a0tok/\u2060s)</s></span>"
