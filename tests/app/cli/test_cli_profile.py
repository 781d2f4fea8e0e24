"""`inferdeck profile` on a tiny shape with random weights."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from app.cli.main import main

FIXED = ("--prompt-tokens", "12", "--concurrency", "2", "--steps", "3")


@pytest.fixture(autouse=True)
def quick_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine import llm_engine
    from engine.hardware.peaks import Peaks

    peaks = Peaks(10e9, 100e9, "float32", 1, "a machine", 0.0)
    monkeypatch.setattr(llm_engine, "peaks_for", lambda *_: peaks)


def test_the_report_has_both_kinds_of_steps_and_the_trace_is_json(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str], tmp_path: Path
) -> None:
    file, trace = tmp_path / "report.json", tmp_path / "trace.json.gz"
    code = main(["profile", *tiny_flags, *FIXED, "--json", "--trace", str(trace),
                 "--output-json", str(file)])  # fmt: skip
    out, _ = capsys.readouterr()
    assert code == 0
    report = json.loads(out)
    assert json.loads(file.read_text("utf-8")) == report
    prefill, decode = report["profiles"]
    assert (prefill["kind"], prefill["num_tokens"], prefill["num_steps"]) == ("prefill", 24, 1)
    assert (decode["kind"], decode["num_tokens"], decode["num_steps"]) == ("decode", 6, 3)
    for one in report["profiles"]:
        spent = sum(each["share"] for each in one["operations"]) * one["step_ms"]
        assert spent + one["rest_ms"] == pytest.approx(one["step_ms"])
        assert one["plain_step_ms"] > 0
        assert {each["bound"] for each in one["operations"]} <= {"memory", "compute"}
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = {event.get("name") for event in events}
    assert {"prefill: attention", "decode: LM head"} <= names


def test_the_table_has_a_row_for_each_operation(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str]
) -> None:
    assert main(["profile", *tiny_flags, *FIXED]) == 0
    out = capsys.readouterr().out
    assert all(out.count(f"\n{name}") == 2 for name in ("qkv projection", "attention", "Python"))


@pytest.mark.parametrize("argv", [
    ("--steps", "5000"),
    ("--concurrency", "9", "--max-num-seqs", "8"),
    ("--prompt-tokens", "4000", "--concurrency", "64", "--max-num-seqs", "64"),
    ("--trace", "/nowhere/trace.json"),
])  # fmt: skip
def test_a_load_without_room_is_an_error(tiny_flags: list[str], argv: tuple[str, ...]) -> None:
    assert main(["profile", *tiny_flags, *argv]) == 2
