"""`inferdeck bench` on a tiny shape with random weights: what it reports, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main
from app.cli.bench import model_line
from app.cli.options import write_report
from app.cli.session import CLEAR_LINE
from app.storage.intervals import WIDE
from engine.config import EngineConfig
from tests.figures import numbers
from tests.widgets import synthetic

LATENCY = {"mean", "p50", "p90", "p99", "max", "num_samples"}
FIGURES = {
    "completed", "failed", "error", "duration_s", "output_tokens_per_s", "total_tokens_per_s",
    "requests_per_s", "ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "peak_kv_usage", "kv_waste",
    "max_concurrent_requests", "prefix_cache_hit_rate", "preemptions", "weights_bytes",
    "kv_cache_bytes", "decode_bytes_per_s", "memory_read_bytes_per_s",
    "memory_bandwidth_utilization", "acceptance_length", "acceptance_rate",
    "mean_step_threads", "other_cores", "mean_batch_size", "memory_bytes", "client_core_wait",
}  # fmt: skip
FIXED = ["--input-len", "20", "--output-len", "5", "--num-requests", "6"]


@pytest.fixture(autouse=True)
def quick_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summing 1 GiB five times takes seconds: here 1 MiB will do."""
    from app.bench import runner
    from app.bench.runner import read_bandwidth

    monkeypatch.setattr(runner, "read_bandwidth", lambda threads: read_bandwidth(threads, 2**20))


def bench(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    code = main(["bench", "--json", *argv])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert out.count("\n") == 1
    return dict(json.loads(out))


def test_the_report_has_every_figure(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str]
) -> None:
    report = bench(capsys, *tiny_flags, *FIXED, "--concurrency", "2")
    assert set(report) == FIGURES | {"config", "model", "machine", "workload"}
    assert report["config"]["num_threads"] == 1
    assert report["machine"]["total_memory"] > 0
    assert report["model"]["is_dummy"] is True
    assert (report["completed"], report["failed"], report["preemptions"]) == (6, 0, 0)
    assert report["max_concurrent_requests"] == 2
    for key in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        assert set(report[key]) == LATENCY
    assert report["itl_ms"]["num_samples"] == 6 * 4
    assert report["itl_ms"]["p99"] is None
    assert 0 < report["itl_ms"]["p50"] <= report["itl_ms"]["max"]
    assert report["weights_bytes"] == report["model"]["weights_bytes"] > 0
    assert report["kv_cache_bytes"] > 0
    # throughput is tokens over the same duration
    duration = report["duration_s"]
    assert report["output_tokens_per_s"] == pytest.approx(30 / duration)
    assert report["total_tokens_per_s"] == pytest.approx(150 / duration)
    assert report["requests_per_s"] == pytest.approx(6 / duration)
    assert 0 < report["peak_kv_usage"] < 1
    assert report["mean_step_threads"] == pytest.approx(1)
    assert report["memory_bandwidth_utilization"] == pytest.approx(
        report["decode_bytes_per_s"] / report["memory_read_bytes_per_s"]
    )


def test_the_cache_s_precision_is_reported_and_compared(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str]
) -> None:
    report = bench(
        capsys, *tiny_flags, *FIXED, "--compare", "kv_cache_dtype=auto;k=int8,v=fp8",
        "--rounds", "1", "--num-warmups", "0",
    )  # fmt: skip
    plain, narrow = report["runs"]["auto"], report["runs"]["k=int8,v=fp8"]
    assert plain["completed"] == narrow["completed"] == 6
    alone = bench(capsys, *tiny_flags, *FIXED, "--kv-cache-dtype", "int8")
    assert alone["config"]["kv_cache_dtype"] == "int8"
    assert alone["kv_cache_bytes"] > 0


def test_the_heading_names_the_model_its_precision_and_threads() -> None:
    model = dataclasses.replace(synthetic.MODEL, name="tiny", dtype="float32", is_dummy=False)
    config = EngineConfig(adaptive_threads=False, num_threads=2)
    assert model_line(config, model) == "tiny, float32, 2 threads"


def test_drafts_are_reported(capsys: pytest.CaptureFixture[str], tiny_flags: list[str]) -> None:
    plain = bench(capsys, *tiny_flags, *FIXED)
    assert plain["acceptance_length"] is plain["acceptance_rate"] is None
    flags = ["--speculative-method", "ngram", "--prompt-lookup-min", "1", "--output-len", "40"]
    drafting = bench(capsys, *tiny_flags, *FIXED, *flags, "--no-speculative-adaptive")
    assert 1 <= drafting["acceptance_length"] <= 5
    assert 0 <= drafting["acceptance_rate"] <= 1
    assert drafting["completed"] == 6


def test_a_preset_reports_its_variants_apart(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str]
) -> None:
    report = bench(
        capsys, *tiny_flags, "--workload", "shared-system-prompt", "--num-requests", "3",
        "--concurrency", "1",
    )  # fmt: skip
    assert list(report["variants"]) == ["shared", "unique"]
    assert set(report) >= FIGURES
    assert report["ttft_ms"] == report["variants"]["shared"]["ttft_ms"]
    # the warm-up has a prefix of its own: the first of three requests finds nothing, two find 512
    assert 0.4 < report["variants"]["shared"]["prefix_cache_hit_rate"] < 0.67
    assert report["variants"]["unique"]["prefix_cache_hit_rate"] == 0


def test_one_variant_alone(capsys: pytest.CaptureFixture[str], tiny_flags: list[str]) -> None:
    report = bench(
        capsys, *tiny_flags, "--workload", "shared-system-prompt", "--variant", "unique",
        "--num-requests", "1", "--num-warmups", "0",
    )  # fmt: skip
    assert "variants" not in report
    assert report["workload"]["variants"] == {"unique": 0}


def test_replies_end_before_their_limit_in_the_mixed_workload(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str]
) -> None:
    report = bench(
        capsys, *tiny_flags, "--workload", "mixed-lengths", "--num-requests", "2",
        "--num-warmups", "0",
    )  # fmt: skip
    assert (report["completed"], report["failed"]) == (2, 0)
    assert report["itl_ms"]["num_samples"] < 2 * 1023


def test_requests_arrive_at_a_rate(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str]
) -> None:
    report = bench(capsys, *tiny_flags, *FIXED, "--request-rate", "200")
    assert report["completed"] == 6
    assert report["workload"]["request_rate"] == 200
    assert report["workload"]["concurrency"] is None


def test_settings_are_compared_on_the_same_work(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str]
) -> None:
    report = bench(
        capsys, *tiny_flags, "--workload", "mixed-lengths", "--num-requests", "3",
        "--compare", "kv-allocation=paged,contiguous", "--rounds", "1", "--num-warmups", "0",
    )  # fmt: skip
    assert report["compare"] == "kv_allocation"
    paged, contiguous = report["runs"]["paged"], report["runs"]["contiguous"]
    assert paged["completed"] == contiguous["completed"] == 3
    assert paged["itl_ms"]["num_samples"] == contiguous["itl_ms"]["num_samples"]
    assert paged["kv_waste"]["mean"] < contiguous["kv_waste"]["mean"]
    (change,) = report["differences"].values()
    rates = (one["rounds"][0]["output_tokens_per_s"] for one in (paged, contiguous))
    before, after = rates
    expected = {"change": pytest.approx(after / before - 1), "half": None}  # one run
    assert change["output_tokens_per_s"] == expected


def test_people_get_a_table(capsys: pytest.CaptureFixture[str], tiny_flags: list[str]) -> None:
    assert main(["bench", *tiny_flags, *FIXED, "--compare", "max_num_seqs=1,4"]) == 0
    out = capsys.readouterr().out
    assert "random weights" in out
    header = next(line for line in out.splitlines() if line.split() == ["1", "4"])
    (completed,) = [line.split() for line in out.splitlines() if line.startswith("Completed")]
    assert completed == ["Completed", "12", "12"]  # two rounds of six each
    rows = [line for line in out.splitlines() if line.startswith("TTFT, mean")]
    assert len(rows) == 1
    (change,) = [line for line in out.splitlines() if line.startswith("Output  ")][-1:]
    assert "±" in change or WIDE in change  # of two rounds
    assert len(rows[0]) == len(header)  # numbers stand under their column


def test_the_report_goes_to_a_file(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    printed = bench(capsys, *tiny_flags, *FIXED, "--output-json", str(file))
    assert json.loads(file.read_text()) == printed
    assert list(tmp_path.glob("*.part")) == []


def test_failed_requests_are_a_failure(capsys: pytest.CaptureFixture[str], nan_model: Path) -> None:
    argv = ["--model", str(nan_model), "--num-threads", "1", "--kv-cache-memory-bytes", "16MiB"]
    assert main(["bench", "--json", *argv, *FIXED, "--num-warmups", "0"]) == 1
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert (report["completed"], report["failed"]) == (0, 6)
    assert "NaN" in report["error"]
    assert "6 requests failed" in err
    assert "NaN" in err


def test_a_full_disk_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.json"
    file.write_text("old")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(file, {"new": 1})
    assert file.read_text() == "old"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ("--num-requests", "--workload")),
        (["--input-len", "5", "--output-len", "5"], ("--num-requests",)),
        (["--workload", "no-such"], ("'no-such'", "voice-bot")),
        (["--workload", "voice-bot", "--input-len", "5"], ("voice-bot", "--input-len")),
        (["--workload", "voice-bot", "--variant", "none"], ("'none'", "shared")),
        (["--variant", "shared", *FIXED], ("--workload",)),
        (["--workload", "voice-bot", "--max-model-len", "1024"], ("2,200", "1,024")),
        (["--workload", "voice-bot", "--kv-cache-memory-bytes", "512KiB"], ("2,200", "1,024")),
        ([*FIXED, "--compare", "speed=1,2"], ("'speed'", "max_num_seqs")),
        ([*FIXED, "--compare", "batching=static"], ("batching=static",)),
        ([*FIXED, "--compare", "kv_cache_dtype=int4,int8"], ("'int4'", "k=int8,v=fp8")),
        ([*FIXED, "--compare", "batching=static,dynamic"], ("'dynamic'", "continuous")),
        ([*FIXED, "--output-json", "/no/such/folder/x.json"], ("/no/such/folder",)),
    ],
)
def test_what_cannot_be_run_is_refused_in_words(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str], argv: list[str],
    words: tuple[str, ...],
) -> None:  # fmt: skip
    assert main(["bench", *tiny_flags, *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    for word in words:
        assert word in err


@pytest.mark.parametrize("argv", [["--concurrency", "0"], ["--request-rate", "0"],
                                  ["--request-rate", "nan"], ["--num-warmups", "-1"],
                                  ["--concurrency", "1", "--request-rate", "1"]])  # fmt: skip
def test_impossible_numbers_are_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", *FIXED, *argv])
    assert end.value.code == 2


def test_each_run_has_a_line_where_stderr_is_no_terminal(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that is written over on a terminal, by every request."""
    monkeypatch.setattr("app.bench.progress.TELL_S", 0.0)
    assert main(["bench", "--json", *tiny_flags, *FIXED, "--rounds", "2"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if " run " in line]
    assert [numbers(line) for line in lines] == [[1, 2, 0, 6], [2, 2, 0, 6]]
    argv = ["bench", "--json", *tiny_flags, *FIXED, "--sweep", "concurrency=1,2"]
    assert main(argv) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Conc")]
    assert [numbers(line)[:3] for line in lines] == [[1, 0, 12], [2, 6, 12]]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(argv) == 0
    shown = capsys.readouterr().err
    lines = [line for line in shown.split(CLEAR_LINE) if line.startswith("Conc")]
    counts = [numbers(line)[1] for line in lines]
    assert "\n" not in "".join(lines)
    assert counts == sorted(counts) and set(counts) >= {*range(7), 12}
