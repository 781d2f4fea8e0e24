"""`inferdeck tune` on a tiny shape with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.bench.axes import usual_values, with_usual_values
from app.cli.main import main

FIXED = ("--input-len", "12", "--output-len", "4", "--num-requests", "4", "--concurrency", "4")
VARIED = ("--vary", "max_num_seqs=1,4")


@pytest.mark.parametrize("more", [
    "seed=1,2",  # of which nothing is predicted, and so no step is timed first
    pytest.param("block_size=8,16", marks=pytest.mark.slow),
])  # fmt: skip
def test_the_report_has_the_best_settings_and_the_commands(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str], tmp_path: Path, more: str
) -> None:
    file = tmp_path / "tuned.json"
    code = main(["tune", *tiny_flags, *FIXED, *VARIED, "--vary", more, "--trials", "3",
                 "--goodput", "e2el:60000", "--output", str(file)])  # fmt: skip
    assert code == 0
    report: dict[str, Any] = json.loads(file.read_text("utf-8"))
    assert report["best"] in [point["settings"] for point in report["points"]]
    assert sum(len(point["rounds"]) for point in report["points"]) <= 3
    printed = capsys.readouterr().out
    for command in ("vllm serve", "sglang.launch_server", "trtllm-serve"):
        assert command in printed
    assert f"--max-num-seqs {report['best']['max_num_seqs']}" in printed


@pytest.mark.slow
def test_the_least_memory_is_an_objective(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str]
) -> None:
    """A block of 64 tokens is used as a whole by requests of 16."""
    argv = ["tune", *tiny_flags, *FIXED, "--vary", "block_size=16,64", "--trials", "2", "--json",
            "--goodput", "e2el:60000", "--objective", "memory"]  # fmt: skip
    assert main(argv) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["objective"] == "memory" and report["best"] == {"block_size": 16}
    small, large = (point["memory_bytes"] for point in report["points"])
    assert report["points"][0]["weights_bytes"] < small < large


def test_a_goal_that_nothing_meets_has_no_command(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str]
) -> None:
    argv = [*tiny_flags, *FIXED, "--vary", "seed=1,2", "--trials", "2", "--goodput", "ttft:1e-6"]
    assert main(["tune", *argv]) == 0
    assert "vllm serve" not in capsys.readouterr().out


@pytest.mark.parametrize("argv", [
    VARIED,
    ("--vary", "watermark", "--goodput", "itl:50"),
    ("--vary", "colour", "--goodput", "itl:50"),
])  # fmt: skip
def test_what_cannot_be_tuned_is_an_error(tiny_flags: list[str], argv: tuple[str, ...]) -> None:
    assert main(["tune", *tiny_flags, *FIXED, *argv]) == 2


def test_usual_values() -> None:
    assert with_usual_values("--block-size") == "block_size=8,16,32,64"
    assert with_usual_values("enable_prefix_caching") == "enable_prefix_caching=on,off"
    assert with_usual_values("block_size=4") == "block_size=4"
    assert with_usual_values("kv_allocation") == "kv_allocation=paged,contiguous"
    assert usual_values("max_model_len", 2048) == "512,1024,2048,4096"
    assert usual_values("watermark", 0.05) == ""
