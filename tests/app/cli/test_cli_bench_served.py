"""`inferdeck bench --base-url`: a server elsewhere, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.__main__ import main
from app.bench import remote
from app.bench.report import NOT_REPORTED
from engine.snapshot.metrics import METRICS
from tests.app.clients.conftest import PAGES, Exchange, ScriptedServer

WORK = ["--input-len", "6", "--output-len", "3", "--num-requests", "2"]


def write(exchange: Exchange) -> None:
    exchange.stream(
        *(
            {
                "choices": [{"index": 0, "text": "x", "finish_reason": finish}],
                "usage": {"prompt_tokens": 6, "completion_tokens": number},
            }
            for number, finish in ((1, None), (2, None), (3, "length"))
        ),
        "[DONE]",
    )


@pytest.fixture
def vllm(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> ScriptedServer:
    monkeypatch.setattr(remote, "MOST_SETTLE_S", 0.1)
    server.models("vllm", "Qwen/Qwen3-8B", "other", max_model_len=4096)
    server.answers |= {
        "/version": {"version": "0.12.0"},
        "/metrics": (PAGES / "vllm_0.12.txt").read_text(),
        "/tokenize": {"tokens": list(range(64))},
        "/v1/completions": write,
    }  # fmt: skip
    return server


def test_the_report_names_the_server_and_what_it_says_itself(
    vllm: ScriptedServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url, file = f"http://{vllm.host}/v1", tmp_path / "report.json"
    code = main(["bench", "--base-url", url, *WORK, "--json", "--output-json", str(file)])
    out, err = capsys.readouterr()
    assert code == 0, err
    report = json.loads(out)
    assert report == json.loads(file.read_text())
    assert report["base_url"] == url
    target = report["target"]
    assert (target["dialect"], target["version"]) == ("vLLM", "0.12.0")
    assert (target["model"], target["prompts_sent_as"]) == ("Qwen/Qwen3-8B", "token ids")
    assert (report["completed"], report["failed"], report["ended_early"]) == (2, 0, 0)
    assert report["e2e_ms"]["num_samples"] == 2
    assert report["weights_bytes"] is None
    assert "explanation" in report["server"]


def test_the_table_marks_what_a_client_cannot_know(
    vllm: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--base-url", vllm.host, "--served-model", "other", *WORK]) == 0
    out = capsys.readouterr().out
    assert out.startswith("other on vLLM 0.12.0")
    assert "token ids" in out
    row = next(line for line in out.splitlines() if line.startswith(METRICS["weights"].title))
    assert row.endswith(NOT_REPORTED)
    assert all(body["model"] == "other" for body in vllm.asked)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--dtype", "float32"], "--dtype"),
        (["--compare", "block_size=8,16"], "--compare"),
        (["--model", "x"], "--served-model"),
        (["--served-model", "nobody"], "'nobody'"),
    ],
)
def test_what_makes_no_sense_with_a_server(
    vllm: ScriptedServer, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert main(["bench", "--base-url", vllm.host, *WORK, *flags]) != 0
    assert said in capsys.readouterr().err


def test_a_server_that_is_none(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["/v1/models"] = "<html>a page"
    assert main(["bench", "--base-url", server.host, *WORK]) != 0
    err = capsys.readouterr().err
    assert "HTML" in err and "Traceback" not in err
    assert main(["bench", "--served-model", "m", *WORK]) != 0
    assert "--base-url" in capsys.readouterr().err
