"""The comparison with other engines: its children's protocol, and what it concludes."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.hardware.peaks import Peaks
from engine.telemetry.step_cost import ModelCost
from tests.benchmarks.peers.comparison import compare, goals, row
from tests.benchmarks.peers.floors import Rates, floor_ms, of_floor
from tests.benchmarks.peers.peer import CHILDREN, KINDS, OURS, Peer, PeerError
from tests.benchmarks.peers.work import ITL, OUTPUT, TTFT, WORKS, Steps, Work, figures

COST = ModelCost(1e6, 1e5, 0.0, 0, 0, 100.0, 2e6, 2e5, 10.0, 50.0)
PEAKS = Peaks(1e9, 1e11, "bfloat16", 1, "a machine", 0.0)
CHILD = """
import sys
sys.path.insert(0, {folder!r})
from serve import Engine, serve

def load(options):
    if options["bits"] == 4:
        raise ValueError("no such weights")
    print("chatter of an engine")
    def run(prompts, num_output, made):
        for index in range(len(prompts)):
            for _ in range(num_output - (prompts[index] == [13])):
                made(index, 1)
    return Engine("fake 1.0", run, cost={{"bits": options["bits"]}})

serve(load)
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    script = tmp_path / "fake_child.py"
    script.write_text(CHILD.format(folder=str(CHILDREN)))
    return [sys.executable, str(script)]


@pytest.fixture
def llama_cpp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of its child."""
    monkeypatch.syspath_prepend(str(CHILDREN))
    yield __import__("llama_cpp_child")
    sys.modules.pop("llama_cpp_child")
    sys.modules.pop("serve")


def test_a_child_answers_and_ends_with_its_input(command: list[str]) -> None:
    peer = Peer("fake", command, {"bits": 8})
    process = psutil.Process(peer._process.pid)
    assert (peer.engine, peer.cost) == ("fake 1.0", {"bits": 8})
    for prompts in ([[1, 2], [3]], [[4]] * 5):
        times = peer.run(prompts, 3)
        assert [len(each) for each in times] == [3] * len(prompts)
        assert all(0 <= a <= b for each in times for a, b in pairwise(each))
    before = process.cpu_times()
    assert not threading.Event().wait(0.2)
    after = process.cpu_times()
    assert after.user + after.system - before.user - before.system <= 0.02, "idle"
    peer.close()
    assert not process.is_running()


def test_a_child_that_fails_says_why(command: list[str]) -> None:
    with pytest.raises(PeerError, match="no such weights"):
        Peer("fake", command, {"bits": 4})
    peer = Peer("fake", command, {"bits": 8})
    with pytest.raises(PeerError, match="3 tokens asked"):
        peer.run([[13]], 3)  # one token less than asked for
    with pytest.raises(PeerError, match="no_such_script"):
        Peer("fake", [sys.executable, "no_such_script.py"], {})


def test_a_conversion_that_fails_has_the_converter_s_last_lines(
    llama_cpp: Any, tmp_path: Path
) -> None:
    """Of its other lines, none."""
    code = "print('chatter\\n' * 50)\ndef main():\n    raise ValueError('no such tensor')\n"
    (tmp_path / llama_cpp.CONVERTER).write_text(code)
    with pytest.raises(RuntimeError) as caught:
        llama_cpp.converted({"model": "m", "cache": str(tmp_path), "bits": 16}, tmp_path)
    said = str(caught.value)
    assert said.endswith("no such tensor") and len(said.splitlines()) <= 11


def test_every_kind_has_a_script() -> None:
    assert all((CHILDREN / kind.script).is_file() for kind in KINDS.values())
    assert all({16} <= {*kind.bits} & {*kind.kv_bits} for kind in KINDS.values())


@given(st.sampled_from(WORKS), st.integers(0, 3))
def test_prompts_are_the_work_and_share_what_they_should(work: Work, salt: int) -> None:
    prompts = work.prompts(150_000, salt)
    assert len(prompts) == work.num_requests
    assert {len(prompt) for prompt in prompts} == {work.num_input}
    assert len({tuple(prompt[: work.shared]) for prompt in prompts}) == 1
    assert len({tuple(prompt[work.shared :]) for prompt in prompts}) == len(prompts)
    assert prompts[0][:16] != work.prompts(150_000, salt + 1)[0][:16]


def test_figures_are_those_of_the_tokens_times() -> None:
    decode = Work("decode", 4, 3, 2, ITL, 0.8)
    assert figures(decode, [[[1.0, 1.5, 2.5], [2.0, 2.5, 3.0]]]) == {
        TTFT: pytest.approx(1500), ITL: pytest.approx(625), OUTPUT: pytest.approx(2)
    }  # fmt: skip
    shared = Work("shared", 8, 1, 3, TTFT, 0.7, shared=6)
    assert figures(shared, [[[9.0]], [[1.0]], [[2.0]]]) == {TTFT: 1500}, "the first fills the cache"


@given(st.sampled_from(WORKS))
def test_the_steps_of_a_work_add_up(work: Work) -> None:
    steps = Steps.of(work, work.num_output)
    count, new = (1 if work.shared else work.num_requests), work.num_input - work.shared
    assert steps.prompt.tokens == count * new
    assert steps.prompt.pairs == count * sum(range(work.shared + 1, work.num_input + 1))
    assert len(steps.decode) == work.num_output - 1
    assert all(step.tokens == step.logits == count for step in steps.decode)


@given(st.sampled_from(WORKS))
def test_an_engine_at_the_floor_reaches_all_of_it(work: Work) -> None:
    floor = floor_ms(COST, PEAKS, work, work.num_output)
    found = dict(floor)
    if OUTPUT in floor:
        found[OUTPUT] = work.num_requests * work.num_output / floor[OUTPUT] * 1000
    assert of_floor(work, work.num_output, floor, found) == pytest.approx(1)
    slower = {key: value / 2 if key == OUTPUT else value * 2 for key, value in found.items()}
    assert of_floor(work, work.num_output, floor, slower) == pytest.approx(0.5)


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_attention_has_the_rate_of_floating_point_numbers(bits: int) -> None:
    rates = Rates(read=1e15, floats=1e12, int8=4e12, num_threads=2)
    (work,) = (one for one in WORKS if one.name == "prompt-4096")
    cost = rates.at_peaks(COST, bits)
    found = floor_ms(cost, rates.peaks(bits), work, work.num_output)[TTFT]
    done = COST.work_of(Steps.of(work, work.num_output).prompt)
    seconds = done.linear / (1e12 if bits == 16 else 4e12) + done.attention / 1e12
    assert found == pytest.approx(1000 * seconds)


class Turns:
    """An engine of a constant speed that notes when it is called."""

    def __init__(self, name: str, token_s: float, log: list[str]) -> None:
        self.name, self.token_s, self.log = name, token_s, log

    def run(self, prompts: Any, num_output: int) -> list[list[float]]:
        self.log.append(self.name)
        return [[self.token_s * (i + 1) for i in range(num_output)] for _ in prompts]


@pytest.mark.parametrize(("theirs", "best", "met"), [(0.030, "slow", True), (0.015, "slow", False)])
def test_engines_alternate_and_the_goal_is_the_best_peer(
    theirs: float, best: str, met: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.benchmarks.peers.comparison.SETTLE_S", 0.0)
    log: list[str] = []
    engines = [Turns(OURS, 0.02, log), Turns("slow", theirs, log), Turns("slower", 0.5, log)]
    for work in (w for w in WORKS if w.name in ("decode-1", "decode-8", "prompt-128")):
        log.clear()
        rounds = compare(work, 8, engines, 150_000, work.num_output, 3)
        starts = log[3::3]
        assert set(starts) == {engine.name for engine in engines} and len(log) == 12
        found = row(work, 8, rounds, floor_ms(COST, PEAKS, work, 64), work.num_output)
        assert found.best_peer() == best
        ratio = theirs / 0.02 if work.is_rate else 0.02 / theirs
        assert found.ratios[best] == pytest.approx(ratio)
        against = goals(found)[0]
        assert against.met == met and best in against.text
        json.dumps(found.as_dict())


class Completion(BaseHTTPRequestHandler):
    """llama-server's documented streaming answer; the last token's text is held back."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["prompt"] == [5, 6] and asked["stream"] and asked["ignore_eos"]
        self.send_response(200)
        self.end_headers()
        made = asked["n_predict"]
        chunks: list[dict[str, Any]] = [{"tokens": [1], "stop": False}] * (made - 1)
        chunks.append({"tokens": [], "stop": True, "tokens_predicted": made})
        for chunk in chunks:
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Completion)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def test_llama_cpp_streams_every_token(port: int, llama_cpp: Any) -> None:
    assert list(llama_cpp.completion(port, [5, 6], 4)) == [1, 1, 1, 1]
