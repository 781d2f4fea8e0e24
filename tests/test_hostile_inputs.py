"""A sample of the corpus, the faults, the fuzzers and the soak; each is a command of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.corpus.case import LARGEST_BYTES, Case, Outcome, faults
from tests.corpus.table import KINDS, all_cases
from tests.corpus.weights import Weights, write
from tests.faults.fault import Fault, Point, find
from tests.faults.table import POINTS, kinds_of
from tests.soak.ledger import Ledger, asks

FORKS = pytest.mark.skipif(sys.platform != "linux", reason="cases run in forked children")
CASE = Case("folder", "a", lambda folder: 0, names=("config.json", "hidden_size"))
SAID = "inferdeck: config.json has hidden_size = 0.\nUse 1 or more.\n"
TOKENS = '{"token_ids": [5, 6]}'


def outcome(code: int, err: str = "", out: str = "", ended: str = "exit") -> Outcome:
    return Outcome(ended, code, 1.0, 10**6, out, err)


@pytest.mark.parametrize(
    ("expected", "got", "num_faults"),
    [
        ("refused", outcome(2, SAID), 0),
        ("refused", outcome(2, SAID.replace("hidden_size", "a field")), 1),
        ("refused", outcome(2, SAID.splitlines()[0]), 1),
        ("refused", outcome(1, f"Traceback ...\n{SAID}"), 1),
        ("refused", outcome(134, SAID), 1),
        ("refused", outcome(0, out=TOKENS), 1),
        ("sound", outcome(0, out=TOKENS), 0),
        ("sound", outcome(2, SAID), 0),
        ("sound", outcome(0, out='{"token_ids": [5, 7]}'), 1),
        ("same", outcome(0, out=TOKENS), 0),
        ("same", outcome(2, SAID), 1),
        ("same", outcome(0, out="rubbish"), 1),
        ("sound", outcome(9, ended="signal"), 1),
        ("sound", outcome(0, ended="slow"), 1),
        ("sound", outcome(0, ended="large")._replace(peak=LARGEST_BYTES), 1),
    ],
)
def test_how_a_case_may_end(expected: Any, got: Outcome, num_faults: int) -> None:
    case = Case(**{**vars(CASE), "expected": expected})
    assert len(faults(case, got, [5, 6])) == num_faults


def test_there_are_cases_of_every_kind() -> None:
    count = Counter(case.kind for case in all_cases())
    assert set(count) == set(KINDS)
    least = {"folder": 300, "quantized": 100, "command": 200, "storage": 100}
    assert {kind: n for kind, n in least.items() if count[kind] < n} == {}


def test_weights_are_written_as_they_were_read(tmp_path: Path) -> None:
    header = {"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
              "b": {"dtype": "U8", "shape": [1], "data_offsets": [2, 3]}}  # fmt: skip
    write(tmp_path / "model.safetensors", json.dumps(header).encode(), b"xyz")
    weights = Weights(tmp_path)
    weights.remove("a")
    weights.save()
    again = Weights(tmp_path)
    assert bytes(again.bytes_of("b")) == b"z" and list(again.header) == ["b"]
    assert bytes(again.data) == b"z"


def test_what_a_soak_counts_as_lost() -> None:
    ledger, (ask, other) = Ledger(), asks(2)
    ledger.finished(ask, "one", "stop", changes=0)
    ledger.finished(ask, "one", "stop", changes=0)
    ledger.finished(other, "two", "length", changes=0)
    assert ledger.num_faults == 0 and ledger.ended["finished"] == 3
    ledger.finished(ask, "another", "stop", changes=0)
    ledger.finished(ask, "one", "abort", changes=0)
    ledger.failed("the model was changed to draft", changes=0)
    assert ledger.num_faults == 3
    with ledger.closed(at_change=True):
        ledger.failed("the model was changed to draft", changes=0)
        assert ledger.num_faults == 3
        ledger.failed("no reason", changes=0)
    assert ledger.num_faults == 4


def test_nobody_asks_while_a_soak_changes_the_model() -> None:
    ledger, begun = Ledger(), threading.Event()

    def ask() -> None:
        with ledger.asking() as changes:
            assert changes == 1 and ledger.is_open
            begun.set()

    with ledger.closed(at_change=True):
        thread = threading.Thread(target=ask)
        thread.start()
        assert ledger.wait_quiet(0) and not begun.wait(0.05)
    thread.join(60)
    assert begun.is_set()


@pytest.mark.parametrize("target", sorted({point.target for point in POINTS}))
def test_points_of_faults_exist(target: str) -> None:
    owner, name = find(target)
    assert callable(getattr(owner, name))


def test_every_stage_has_points_and_every_point_kinds() -> None:
    stages = {point.stage.partition(":")[0] for point in POINTS}
    assert stages >= {"load", "step", "add", "save", "download", "live", "cache rebuild", "reload",
                      "unload", "shutdown", "process"}  # fmt: skip
    assert all(kinds_of(point) and point.calls for point in POINTS)


def test_a_fault_strikes_at_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("json.dumps", json.dumps)  # undone afterwards
    fault = Fault(Point("a stage", "json:dumps", "a scene", calls=(2,)), "memory")
    fault.arm()
    assert json.dumps(1) == "1"
    with pytest.raises(MemoryError):
        json.dumps(1)
    assert json.dumps(1) == "1" and fault.hits == 1


def run(module: str, *words: str, timeout: float = 600) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


CRASHES = ("Traceback", "This is a bug", "panicked")


@FORKS
@pytest.mark.slow
def test_a_sample_of_the_corpus(tmp_path: Path) -> None:
    """How each case ends; the words of its message are the command's to judge."""
    file = tmp_path / "report.json"
    line = [sys.executable, "-m", "tests.corpus", "--sample", "15", "--json", str(file)]
    subprocess.run(line, cwd=ROOT, capture_output=True, timeout=600)
    records = json.loads(file.read_text())["records"]
    wrong = {
        record["key"]: fault
        for record in records
        for fault in record["faults"]
        if not fault.startswith(("not named", "raw text")) or any(c in fault for c in CRASHES)
    }
    assert len(records) >= 5 and wrong == {}


@FORKS
@pytest.mark.slow
def test_a_fork_ends_as_the_program_does(tmp_path: Path) -> None:
    """Exit codes and messages, but for the names of temporary folders."""
    ends = []
    for words in ((), ("--program",)):
        file = tmp_path / f"report{len(words)}.json"
        run("tests.corpus", "--only", "config/vocab_size=10**", "--json", str(file), *words)
        records = json.loads(file.read_text())["records"]
        ends.append({r["key"]: (r["code"], len(r["message"].splitlines())) for r in records})
    assert ends[0] == ends[1] and ends[0]


@FORKS
@pytest.mark.slow
def test_a_sample_of_the_faults() -> None:
    run("tests.faults", "--sample", "15")


@FORKS
@pytest.mark.slow
def test_a_sample_of_the_fuzzers() -> None:
    run("tests.fuzz", "all", "--seconds", "1")


@FORKS
@pytest.mark.slow
def test_a_sample_of_the_soak(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    run("tests.soak", "--minutes", "0.3", "--streams", "8", "--pause", "0.2", "--json", str(file))
    report = json.loads(file.read_text())
    assert report["ended"]["finished"] > 0 and report["model_changes"] > 0
