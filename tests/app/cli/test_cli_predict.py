"""`inferdeck predict` on a tiny shape with random weights: what it reports, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main
from app.bench import calibrate
from app.features.recording import file
from app.wire.recording import Frame
from engine import messages
from engine.simulate.engine import SimulatedEngine
from tests.engine.simulate.scripted import KNOWN, like, serve

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


@pytest.mark.slow
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


SECONDS, RATE = 8.0, 6.0


def saved(path: Path, **changes: Any) -> Path:
    """A recording of a scripted engine under load."""
    snapshots = serve(SimulatedEngine(like(), KNOWN, **changes), SECONDS, None, RATE)
    frames = [Frame(one.time, messages.SnapshotEvent(one)) for one in snapshots]
    file.write(path, {}, [file.pack(frames)])
    return path


def test_a_recorded_load_is_predicted_at_other_settings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recording = str(saved(tmp_path / "one.inferdeck-flight"))
    wanted = ["--set", "max_num_seqs=3", "--set", "block_size=32"]
    report = predict(capsys, "--recording", recording, *wanted, "--last", "30")
    assert report["set"] == {"max_num_seqs": 3, "block_size": 32}
    assert report["requests"] > 40 and report["concurrency"] is None
    runs = report["runs"]
    assert set(runs) == {"recorded", "predicted", "changed"}
    other = saved(tmp_path / "two.inferdeck-flight", **report["set"])
    truth = predict(capsys, "--recording", str(other), "--last", "30")["runs"]
    assert set(truth) == {"recorded", "predicted"}
    for found, expected in ((runs["predicted"], runs["recorded"]),
                            (runs["changed"], truth["recorded"])):  # fmt: skip
        for key, statistic in (("itl_ms", "p50"), ("ttft_ms", "p50"), ("ttft_ms", "max")):
            assert found[key][statistic] == pytest.approx(expected[key][statistic], rel=0.01)
        rate = expected["output_tokens_per_s"]
        assert found["output_tokens_per_s"] == pytest.approx(rate, rel=0.01)
        assert found["peak_kv_usage"] == pytest.approx(expected["peak_kv_usage"], abs=0.01)
    assert main(["predict", "--recording", recording, *wanted]) == 0
    assert "ITL, p50" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["--set", "quantization=int4"], ["--set", "max_num_seqs"], ["--set", "nothing=3"],
        ["--workload", "voice-bot"], ["--measure"],
    ],
)  # fmt: skip
def test_a_recording_is_not_run_and_has_no_other_weights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str]
) -> None:
    assert main(["predict", "--recording", str(tmp_path / "one"), *options]) == 2
    assert capsys.readouterr().err


def test_settings_without_a_recording_and_a_file_that_is_none_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["predict", "--set", "max_num_seqs=3"]) == 2
    (tmp_path / "no.txt").write_text("hello")
    assert main(["predict", "--recording", str(tmp_path / "no.txt")]) != 0
    assert "not an Inferdeck recording" in capsys.readouterr().err
