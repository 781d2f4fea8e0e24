"""What measures on a GPU, tried out without one: cells, processes, results, report, verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.gpu import run_all
from tests.gpu.bench.bench import Bench
from tests.gpu.bench.cell import Cell, Result, in_order
from tests.gpu.bench.goals import MET, MISSED, UNKNOWN, goals
from tests.gpu.bench.parts import FIRST, FULL, PARTS, QUICK, cells_of
from tests.gpu.bench.report import build
from tests.gpu.bench.table import table
from tests.gpu.run_all import KINDS, REPORT, measure


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench("cpu", quick=True)
    yield made
    made.close()


def test_an_error_is_the_result_of_its_cell_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(bench: Bench, *, value: int) -> dict[str, int]:
        if value:
            return {"value": value}
        raise RuntimeError("wrong")

    monkeypatch.setattr("tests.gpu.bench.ceilings.copy", raises)
    bad, good = (measure(bench, Cell(f"{v}", "p", "copy", {"value": v})) for v in (0, 3))
    assert not bad.is_ok and "RuntimeError" in bad.error and "test_run_all.py:" in bad.error
    assert good.is_ok and good.figures == {"value": 3}


def test_a_run_that_is_stopped_keeps_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(bench: Bench) -> dict[str, int]:
        raise KeyboardInterrupt

    monkeypatch.setattr("tests.gpu.bench.machine.describe", lambda bench: {"name": "cpu"})
    monkeypatch.setattr("tests.gpu.bench.ceilings.copy", stop)
    status = run_all.main(["--part", "ceilings", "--quick", "--output", str(tmp_path)])
    report = json.loads((tmp_path / REPORT).read_text())
    assert status == 1 and report["num_left"] > 0
    assert report["machine"] == {"name": "cpu"}


def test_every_cell_of_every_part_can_be_run() -> None:
    for scale in (FULL, QUICK):
        cells = cells_of(["all"], scale)
        names = [cell.name for cell in cells]
        assert len(set(names)) == len(names)
        assert {cell.kind for cell in cells} <= set(KINDS)
        for cell in cells:
            json.dumps(dict(cell.settings))
    kinds = {cell.kind for cell in cells_of(["all"], QUICK)}
    assert kinds == set(KINDS) - {"tests"}, "what is only tried on a GPU breaks there"
    parts = {cell.part for cell in cells_of(["all"], FULL)}
    assert parts | {"tests"} == {*PARTS, "machine"}


def test_the_concurrencies_that_matter_come_first() -> None:
    cells = in_order(cells_of(["all"], FULL))
    assert [cell.part for cell in cells[:2]] == ["machine", "ceilings"]
    waves = [cell for cell in cells if cell.part == "decode"]
    assert len(waves) == 2 * 2 * 2 * 9
    first = [cell.settings["concurrency"] for cell in waves[: len(waves) * 4 // 9]]
    assert set(first) == set(FIRST)
    assert first[:4] == [1, 8, 64, 256]
    assert {cell.kind for cell in cells[-6:]} == {"divided"}, "slow, and of less interest"
    # an engine is loaded once in each of the two passes
    groups = [cell.group for cell in cells if cell.group.startswith("engine")]
    changes = sum(a != b for a, b in pairwise(groups))
    assert changes == 3


def ok(name: str, kind: str, figures: dict[str, object], **settings: object) -> Result:
    return Result(name, name.split("/")[0], kind, figures, settings=settings)


def wave(precision: str, concurrency: int, step_ms: float, context: float = 2000) -> Result:
    summary = {"p50": 40.0, "p99": None, "max": 50.0}
    decode = {"step_ms": step_ms, "tokens_per_s": concurrency / step_ms * 1000, "context": context}
    return ok(
        f"decode/{precision}/kv-auto/unique/{concurrency}", "wave",
        {"ttft_ms": summary, "itl_ms": summary, "tokens_per_s": 200.0, "requests_per_s": 1.0,
         "preemptions": 0, "decode": decode},
        shape="llama-3.1-8b", precision=precision, kv="auto", concurrency=concurrency,
        num_input=1950, num_output=200, num_shared=0,
    )  # fmt: skip


CEILINGS = [
    ok("ceilings/copy", "copy", {"bytes_per_s": 4.3e12}),
    ok("ceilings/product/bf16", "product", {"flops_per_s": 790e12}),
]


def test_fractions_and_verdicts_follow_from_figures_and_ceilings() -> None:
    peer = ok(
        "peers/generate_batch/1", "peer",
        {"ttft_ms": {"p50": 1, "p99": 1}, "itl_ms": {"p50": 1, "p99": 1}, "tokens_per_s": 1.0,
         "requests_per_s": 1.0, "decode": {"step_ms": 7.5, "tokens_per_s": 133, "context": 2000}},
        engine="generate_batch", shape="llama-3.1-8b", concurrency=1,
    )  # fmt: skip
    results = [*CEILINGS, wave("bf16", 1, 4.0), wave("int4", 1, 2.4), peer]
    report = build(results, commit="abc", quick=False, num_left=2)
    row = report["rows"]["wave"]["decode/bf16/kv-auto/unique/1"]
    assert row["step_fraction"] == pytest.approx(3.5515 / 4.0, rel=1e-3)
    assert row["ttft_ms"] == 50.0, "the longest, where there are too few for a p99"
    assert row["ttft_p50_fraction"] == pytest.approx(35.72 / 40, rel=1e-3)
    verdicts = {goal["text"]: goal["verdict"] for goal in report["goals"]}
    assert verdicts == {
        "decode, bf16, 1 at once: share of the floor": MET,
        "decode, int4, 1 at once: share of the floor": MISSED,
        "decode, bf16, 64 at once: share of the floor": UNKNOWN,
        "decode, int4, 64 at once: share of the floor": UNKNOWN,
        "prefill, bf16, one prompt: share of the matrix rate": MET,
        "decode, bf16, 1 at once: times generate_batch": MISSED,
    }
    assert report["misses"] == [text for text, verdict in verdicts.items() if verdict == MISSED]
    text = table(report)
    assert "2 cells" in text.splitlines()[-1]


def divided(budget_gb: float, figures: dict[str, object]) -> Result:
    return ok(
        f"budgets/{budget_gb:g}GB/bf16/divided", "divided", figures, shape="llama-3.1-8b",
        precision="bf16", kv="auto", budget_gb=budget_gb,
    )  # fmt: skip


def test_a_divided_model_s_floor_is_that_of_both_parts() -> None:
    """20 layers of 0.436 GB at 50 GB/s: 174.5 ms. 12 and the head, 6.286 GB, at 4.3 TB/s: 1.46."""
    measured = {
        "fits": True, "is_divided": True, "num_layers": 32, "host_layers": 20, "num_input": 1950,
        "num_output": 64, "ttft_ms": {"p50": 20_000.0}, "itl_ms": {"p50": 220.0},
        "host_bytes_per_s": 50e9, "host_flops_per_s": 1e12,
    }  # fmt: skip
    others = [
        divided(24, {"fits": True, "is_divided": False}),
        divided(2, {"fits": False, "is_divided": False, "why": "Nothing fits."}),
    ]
    results = [*CEILINGS, divided(8, measured), *others]
    report = build(results, commit="", quick=False, num_left=0)
    row = report["rows"]["divided"]["budgets/8GB/bf16/divided"]
    kv = 1982 * 2 * 8 * 128 * 2  # bytes of a layer's keys and values
    host_ms = 20 * (436_207_616 + kv) / 50e9 * 1000
    gpu_ms = (12 * (436_207_616 + kv) + 128_256 * 4096 * 2) / 4.3e12 * 1000
    assert row["step_floor_ms"] == pytest.approx(host_ms + gpu_ms, rel=1e-6)
    assert row["step_fraction"] == pytest.approx(row["step_floor_ms"] / 220)
    assert row["host_share"] == pytest.approx(host_ms / (host_ms + gpu_ms))
    products = 2 * 1950 * 218_103_808  # of a layer
    attention = 4 * 32 * 128 * 1950 * 1951 / 2
    assert row["ttft_floor_ms"] == pytest.approx(20 * (products + attention) / 1e9, rel=1e-3)
    text = table(report)
    assert "12 of 32 layers on the GPU, step 220.0 (0.8" in text and "Nothing fits." in text
    assert "24 GB" not in text, "what fits whole has cells of its own"


def test_without_ceilings_there_are_figures_and_no_fractions() -> None:
    report = build([wave("bf16", 1, 4.0)], commit="", quick=False, num_left=0)
    row = report["rows"]["wave"]["decode/bf16/kv-auto/unique/1"]
    assert row["step_ms"] == 4.0 and "step_fraction" not in row
    assert {goal.verdict for goal in goals(report["rows"]["wave"], {})} == {UNKNOWN}
    assert "4.00" in table(report)


def test_the_table_is_short_whatever_went_wrong() -> None:
    failed = [Result(f"cell {i}", "p", "k", {}, error="x" * 500) for i in range(100)]
    rows = [wave(p, n, 4.0) for p in ("bf16", "int4") for n in range(1, 100)]
    text = table(build([*CEILINGS, *rows, *failed], commit="", quick=False, num_left=0))
    assert len(text) < 12_000
    assert "GOALS" in text and "FAILED: 100 cells" in text and "are in the report" in text


CHOSEN = (
    "machine", "ceilings/copy", "ceilings/product/bf16", "ceilings/launch", "ceilings/round_trip",
    "decode/bf16/kv-auto/unique/1", "decode/bf16/kv-fp8/shared/1", "profile/bf16/decode/2",
    "kernels/attention/decode/kv-auto/2x48", "kernels/attention/prompt/1x48-of-48",
    "kernels/linear/bf16/qkv", "kernels/linear/int4/down", "kernels/fused", "kernels/sampler",
    "budgets/0.0001GB/bf16/kv-auto", "budgets/0.0001GB/bf16/divided", "small/40", "drafts/bf16/2",
    "peers/generate_batch/2", "peers/generate/2",
)  # fmt: skip
"""At least one cell of every kind."""


@pytest.mark.slow
def test_every_kind_of_cell_measures_on_the_cpu(bench: Bench) -> None:
    cells = [cell for cell in in_order(cells_of(["all"], QUICK)) if cell.name in CHOSEN]
    assert {cell.kind for cell in cells} == set(KINDS) - {"tests"}
    results = {cell.name: measure(bench, cell) for cell in cells}
    report = build(list(results.values()), commit="abc", quick=True, num_left=0)
    assert report["failed"] == []
    row = report["rows"]["wave"]["decode/bf16/kv-auto/unique/1"]
    assert row["tokens_per_s"] > 0 and row["tokens_fraction"] > 0 and row["step_ms"] > 0
    wave = results["decode/bf16/kv-auto/unique/1"].figures
    assert wave["num_requests"] == 4 and wave["itl_ms"]["num_samples"] == 4 * (6 - 1)
    arrivals = report["rows"]["arrivals"]["small/40"]
    assert arrivals["requests_per_s"] > 0 and arrivals["itl_ms"] > 0
    assert report["rows"]["budget"]["budgets/0.0001GB/bf16/kv-auto"]["users"] > 0
    divided = report["rows"]["divided"]["budgets/0.0001GB/bf16/divided"]
    assert divided["gpu_layers"] == 0 and divided["num_input"] == 40, divided
    assert divided["step_ms"] > 0 and divided["step_fraction"] > 0 and divided["ttft_fraction"] > 0
    peer = report["rows"]["peer"]["peers/generate_batch/2"]
    assert peer["decode_tokens_per_s"] > 0
    drafts = report["rows"]["drafts"]["drafts/bf16/2"]
    assert drafts["replayed_ms"] > 0 and drafts["launched_ms"] > 0 and drafts["fraction"] > 0
    host = results["profile/bf16/decode/2"].figures["host"]
    assert any("embedding" in operation["name"] for operation in host), host
    text = table(report)
    for word in ("TRANSFORMERS", "LINEAR LAYERS", "ATTENTION", "BUDGET", "CEILINGS", "DRAFTS"):
        assert word in text


def test_without_a_gpu_the_command_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    status = run_all.main(["--part", "small", "--output", str(tmp_path), "--time-limit", "100"])
    assert status == 1
    printed = capsys.readouterr().out
    assert "--device cpu --quick" in printed
    report = json.loads((tmp_path / REPORT).read_text())
    assert report["num_left"] > 5 and report["failed"][0]["name"] == "machine"
