"""Runs as columns, their changes, and verdicts in a sentence."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.features.runs.difference import difference
from app.features.runs.difference_view import has_no_spread
from app.features.runs.records import of_change, of_report
from app.features.runs.verdicts import NOT_RECORDED, TARGET, of_difference, speed_words, verdict
from app.features.tune.verdict import Observed, Verdict
from app.storage.intervals import WIDE
from app.storage.report_store import StoredReport
from app.storage.run_records import Kind, Measured, RunRecord, RunSide, State
from app.storage.run_store import RunStore
from engine.evaluate.report import Loss, ReportError, Speed
from tests.engine.evaluate.reports import make_facts, make_report

SPEEDS = st.floats(0.1, 1e5)
DECODE = "decode_tokens_per_s"


def rate(*samples: float) -> Measured:
    return Measured(sorted(samples)[len(samples) // 2], samples)


@given(st.lists(SPEEDS, min_size=1, max_size=9), st.floats(0.01, 100))
def test_a_spread_is_relative_and_of_two_or_more(samples: list[float], factor: float) -> None:
    found = rate(*samples)
    if len(samples) < 2:
        assert found.spread is None
        return
    assert found.spread is not None and found.spread >= 0
    scaled = rate(*(factor * sample for sample in samples))
    assert scaled.spread == pytest.approx(found.spread, rel=1e-6, abs=1e-9)
    assert rate(*[samples[0]] * 3).spread == pytest.approx(0, abs=1e-9)


@given(SPEEDS, st.floats(0, 0.2), st.floats(0.3, 3))
def test_a_change_within_the_spread_has_no_tone(speed: float, noise: float, ratio: float) -> None:
    def run(name: str, value: float) -> RunRecord:
        samples = (value * (1 - noise), value, value * (1 + noise))
        side = RunSide(name, {DECODE: Measured(value, samples)})
        return RunRecord(name, Kind.EVALUATE, "m", name, f"2026-01-0{name}", (side,))

    found = difference([run("2", speed * ratio), run("1", speed)])
    (row,) = found.rows
    spread = row.spread(1)
    assert found.titles == ("m, 1", "m, 2") and spread is not None
    expected = "" if abs(ratio - 1) <= spread else "better" if ratio > 1 else "worse"
    change = row.change(1)
    assert change == pytest.approx(ratio - 1) and row.tone(0) == ""
    if abs(abs(ratio - 1) - spread) > 1e-6:
        assert row.tone(1) == expected
        assert ("no clear" in of_difference(found)) is (expected == "")


def test_reports_beside_each_other() -> None:
    better = make_report(candidate_loss=Loss(1.99, 7.3, 0.73), candidate=make_facts("int8", 1000),
                         created="2026-01-03T00:00:00+00:00")  # fmt: skip
    runs = [of_report(StoredReport(f"{i}", n, r))
            for i, (n, r) in enumerate((("b", better), ("a", make_report())))]  # fmt: skip
    found = difference(runs)
    rows = {row.metric.key: row for row in found.rows}
    assert found.titles == ("a", "b")  # the oldest is the baseline
    assert [value.value for value in rows["perplexity"].values if value] == [7.5, 7.3]
    assert rows["perplexity"].tone(1) == rows["weights_bytes"].tone(1) == "better"
    assert rows["kl_mean"].tone(1) == "" and rows["bits_per_byte"].tone(1) == ""  # told once
    assert rows[DECODE].tone(1) == ""  # equal, and of an older version without its spread
    assert "perplexity_change" not in rows
    table = list(csv.reader(io.StringIO(found.as_csv())))
    assert table[0] == ["metric", "unit", "a", "a: spread", "b", "b: spread"]
    assert ["weights_bytes", "bytes", "2000.0", "", "1000.0", ""] in [
        [*line[:2], *(f"{float(x)}" if x else x for x in line[2:])] for line in table[1:]
    ]
    assert found.as_markdown().count("\n") == len(found.rows) + 2


def test_one_run_is_compared_with_its_reference() -> None:
    found = difference([of_report(StoredReport("1", "x", make_report()))])
    rows = {row.metric.key: row for row in found.rows}
    assert found.titles == ("FP32", "BF16")
    assert rows["weights_bytes"].texts()[1:] == ["1.95 KiB", "−50 %"]
    assert rows["kl_mean"].values[0] is None and rows["kl_mean"].tone(1) == ""


@pytest.mark.parametrize(("bytes_after", "text"), ((3900, "+95 %"), (998_000, "499×")))
def test_a_large_change_is_a_factor(bytes_after: int, text: str) -> None:
    def run(name: str, size: float) -> RunRecord:
        side = RunSide(name, {"weights_bytes": Measured(size)})
        return RunRecord(name, Kind.EVALUATE, "m", name, f"2026-01-0{name}", (side,))

    runs = [run("1", 2000.0), run("2", float(bytes_after))]
    assert difference(runs).rows[0].texts()[-1] == text


def test_a_total_is_measured_once_and_a_report_may_lack_its_spread() -> None:
    side = RunSide("INT8", {"total_tokens_per_s": Measured(10.0)})
    run = RunRecord("1", Kind.BROADCAST, "m", "INT8", "2026-01-01T00:00:00+00:00", (side,))
    report = of_report(StoredReport("2", "x", make_report()))
    assert not has_no_spread(difference([run])) and has_no_spread(difference([run, report]))


@pytest.mark.parametrize("share", [0.97, TARGET, 0.995])
def test_a_verdict_passes_from_the_target(share: float) -> None:
    report = make_report()
    assert report.divergence is not None
    report = make_report(divergence=dataclasses.replace(report.divergence, top1_agreement=share))
    text = verdict(of_report(StoredReport("1", "x", report)))
    assert ("passes" in text) is (share >= TARGET) and ("fails" in text) is (share < TARGET)
    assert NOT_RECORDED in text and text.startswith("BF16: ")


def test_speeds_with_their_spread() -> None:
    slow, fast = rate(9.9, 10.0, 10.1), rate(14.0, 14.2, 14.4)
    assert speed_words(slow, fast, "decode") == "1.42× faster decode (±5.6 %)"  # Welch
    assert speed_words(fast, slow, "decode").startswith("1.42× slower")
    assert "no clear difference" in speed_words(slow, rate(9.95, 10.05, 10.15), "decode")
    assert speed_words(slow, rate(9.0, 90.0, 400.0), "decode").endswith(WIDE)
    assert NOT_RECORDED in speed_words(Measured(10.0), Measured(14.2), "decode")
    speed = Speed(1000.0, 14.2, 512, 32, 3, (990.0, 1000.0, 1010.0), fast.samples)
    report = make_report(candidate=make_facts("int8", 9, speed=speed))
    run = of_report(StoredReport("1", "x", report))
    assert run.sides[-1].figures[DECODE] == Measured(14.2, fast.samples)


# The store -------------------------------------------------------------------------------------


def test_runs_are_kept_renamed_and_damaged_ones_told(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    assert store.read_all() == ([], [])
    side = RunSide("INT8", {"ttft": Measured(0.25, (0.2, 0.25, 0.3))})
    run = RunRecord("", Kind.BROADCAST, "m", "INT8", "2026-01-02T03:04:05+00:00", (side,),
                    State.STOPPED, "stopped", details={"num_done": 3, "replies": []})  # fmt: skip
    kept = store.add(run)
    assert store.load(kept.id) == kept == dataclasses.replace(run, id=kept.id)
    listed = dataclasses.replace(kept, details={"num_done": 3})  # without the replies
    assert store.read_all() == ([listed], [])
    assert store.rename(kept.id, " A\nname ").title == "A name"
    for number, text in enumerate(("{", '{"version": 9}', '{"version": 1, "run": {}}')):
        (store.folder / f"bad{number}").mkdir()
        (store.folder / f"bad{number}" / "run.json").write_text(text)
    runs, problems = store.read_all()
    assert [found.id for found in runs] == [kept.id] and len(problems) == 3
    with pytest.raises(ReportError, match="etc"):
        store.load("../etc")


def test_a_change_of_settings_has_its_figures_of_before_and_after(tmp_path: Path) -> None:
    side = lambda *values: Observed(np.array(values, dtype=float), float(np.median(values)))
    verdicts = [
        Verdict("ttft", side(100.0, 120.0, 140.0), side(1200.0, 1500.0, 1800.0)),
        Verdict("itl", side(20.0), side(10.0)),
        Verdict("output", side(90.0, 100.0), Observed(np.empty(0), None)),
    ]
    made = of_change("Block size 16 → 32", "TTFT 12× longer", verdicts, "m", "BF16")
    store = RunStore(tmp_path)
    kept = store.load(store.add(made).id)
    assert kept.sides == made.sides and kept.kind is Kind.CHANGE
    before, after = (side.figures for side in kept.sides)
    assert (before["ttft"].value, after["itl"].value) == (0.12, 0.01)  # seconds
    assert before["total_tokens_per_s"].value == 95 and "total_tokens_per_s" not in after
    assert verdict(kept) == "Block size 16 → 32: TTFT 12× longer."
    found = difference([kept])
    assert {row.metric.key: row.change(1) for row in found.rows}["itl"] == pytest.approx(-0.5)
    assert len(difference([kept, kept]).titles) == 4
