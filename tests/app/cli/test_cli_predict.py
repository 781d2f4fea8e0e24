"""`inferdeck predict` on a tiny shape with random weights: what it reports, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main
from app.bench import calibrate

FIXED = ["--input-len", "8", "--output-len", "4", "--num-requests", "6", "--concurrency", "2"]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "MOST_ROUNDS", 1)


def predict(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    code = main(["predict", "--json", *argv])
    out, err = capsys.readouterr()
    assert code == 0, err
    return dict(json.loads(out))


def test_values_are_predicted_and_measured(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    options = ["--compare", "max_num_seqs=1,2", "--measure", "--output-json", str(file)]
    report = predict(capsys, *tiny_flags, *FIXED, *options)
    assert json.loads(file.read_text()) == report
    assert report["compare"] == "max_num_seqs"
    assert set(report["runs"]) == {"1", "2"}
    assert report["calibration"]["steps"] > 20
    for most, run in report["runs"].items():
        assert set(run) == {"predicted", "measured", "error"}
        predicted, measured = run["predicted"], run["measured"]
        assert set(predicted) - set(measured) == {"standard_error"}
        for key in ("completed", "max_concurrent_requests", "preemptions", "peak_kv_usage"):
            assert predicted[key] == measured[key]
        assert predicted["max_concurrent_requests"] == int(most)
        expected = predicted["output_tokens_per_s"] / measured["output_tokens_per_s"] - 1
        assert run["error"]["output_tokens_per_s"] == pytest.approx(expected)


def test_without_a_comparison_the_settings_as_they_are_are_predicted(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str], tmp_path: Path
) -> None:
    report = predict(capsys, *tiny_flags, *FIXED)
    assert report["compare"] is None
    assert set(report["runs"]["predicted"]) == {"predicted"}
    assert report["runs"]["predicted"]["predicted"]["completed"] == 6
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("What is TTFT?\nWhat is a KV block?\n")
    assert main(["predict", "--num-threads", "1", "--prompts", str(prompts), "--output-len", "4",
                 "--measure"]) == 0  # fmt: skip
    assert "predicted" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["--compare", "quantization=none,int4"],
        ["--compare", "max_num_seqs=1,2", "--speculative-method", "ngram"],
    ],
)
def test_what_the_scheduler_does_not_show_is_refused(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str], options: list[str]
) -> None:
    assert main(["predict", *tiny_flags, *FIXED, *options]) == 2
    assert "cannot be predicted" in capsys.readouterr().err
