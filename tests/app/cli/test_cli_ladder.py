"""`inferdeck ladder` on a tiny shape with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.bench.runner import BenchRunner
from app.cli.main import main
from app.paths import runs_dir
from app.storage.run_records import Kind
from app.storage.run_store import RunStore

FIXED = ("--input-len", "12", "--output-len", "4", "--num-requests", "2")


def test_every_rung_is_measured_and_kept_as_a_run(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str], tmp_path: Path
) -> None:
    """A goal that nothing meets: each rung is one or two runs of one user."""
    file = tmp_path / "ladder.json"
    code = main(["ladder", *tiny_flags, *FIXED, "--goodput", "ttft:1e-3", "--price-per-hour", "2",
                 "--output", str(file)])  # fmt: skip
    assert code == 0
    report: dict[str, Any] = json.loads(file.read_text("utf-8"))
    assert [rung["state"] for rung in report["rungs"]] == ["measured"] * 7
    for rung in report["rungs"]:
        assert rung["users"] == 0 and rung["concurrency"] == 1 and rung["completed"] > 0
        cost = 2 / (3600 * rung["output_tokens_per_s"]) * 1e6
        assert rung["cost_per_million_output_tokens"] == pytest.approx(cost)
        assert sum(rung["step_shares"].values()) == pytest.approx(1)
        assert rung["quality"] is None  # random weights
    weights = {rung["key"]: rung["weights_bytes"] for rung in report["rungs"]}
    assert weights["weights"] < weights["prefix"] == weights["naive"]
    printed = capsys.readouterr().out
    assert "vllm serve" not in printed  # nothing meets the goal
    kept = RunStore(runs_dir()).read_all()[0]
    assert [run.kind for run in kept] == [Kind.LADDER] and len(kept[0].sides) == 7


@pytest.mark.parametrize("argv", [
    (),
    ("--goodput", "itl:50", "--concurrency", "4"),
    ("--goodput", "itl:50", "--output", "ladder.pdf"),
    ("--goodput", "itl:50", "--price-per-hour", "-1"),
])  # fmt: skip
def test_what_cannot_be_climbed_is_an_error(tiny_flags: list[str], argv: tuple[str, ...]) -> None:
    try:
        code = main(["ladder", *tiny_flags, *FIXED, *argv])
    except SystemExit as end:
        code = end.code
    assert code == 2


@pytest.mark.parametrize("argv", [
    ("ladder", "--goodput", "ttft:1e-3"),
    ("bench", "--sweep", "concurrency=1,2,4"),
])  # fmt: skip
def test_ctrl_c_keeps_what_is_measured(
    argv: tuple[str, ...], tiny_flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, calls, measure = tmp_path / "report.json", [0], BenchRunner.measure

    def interrupted(self: BenchRunner, *args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return measure(self, *args)

    monkeypatch.setattr(BenchRunner, "measure", interrupted)
    assert main([*argv, *tiny_flags, *FIXED, "--output-json", str(file)]) == 130
    report = json.loads(file.read_text("utf-8"))
    assert report["state"] == "stopped"
    done = [one for one in report.get("points") or report["rungs"] if one.get("completed")]
    assert done and calls == [3]
    assert [run.state for run in RunStore(runs_dir()).read_all()[0]] == ["stopped"]
