"""`inferdeck serve` as a process: it says where it listens, serves, and ends cleanly."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main
from app.cli.serving import loading_text
from engine.config import EngineConfig
from engine.units import bytes_text
from tests import ROOT
from tests.figures import numbers

SMALL = ["--num-threads", "1", "--kv-cache-memory-bytes", "16MiB"]


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Nobody waits for a server that a failed check has left running."""
    try:
        yield
    except BaseException:
        process.kill()
        raise


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT as a terminal does")
def test_it_serves_until_ctrl_c_and_lets_replies_end() -> None:
    command = [sys.executable, "-m", "app", "serve", "--port", "0", "--json", *SMALL,
               "--served-model-name", "mine", "--shutdown-timeout", "0.3"]  # fmt: skip
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # a program that was started in the background ignores it, and its children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as server, ended(server):  # fmt: skip
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        assert set(ready) == {"url", "model", "pid"}
        assert ready["model"] == "mine"
        body = {"prompt": "a", "stream": True, "max_tokens": 1900, "ignore_eos": True}
        request = urllib.request.Request(
            f"{ready['url']}/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=120) as response:
            assert response.readline().startswith(b"data: {")
            server.send_signal(signal.SIGINT)
            rest = response.read().decode()
        assert '"finish_reason":"abort"' in rest
        assert rest.endswith("data: [DONE]\n\n")
        out, err = server.communicate(timeout=120)
    assert server.returncode == 0, err
    assert out == ""
    assert err.startswith("inferdeck: ") and len(err.splitlines()) == 1


def test_a_port_in_use_is_found_before_the_model_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port), *SMALL]) == 1
    err = capsys.readouterr().err
    assert numbers(err)[0] == port and "127.0.0.1" in err
    assert "--port" in err and numbers(err)[-1] == 0  # any free port


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--host", "0.0.0.0"], "--allow-unauthenticated"),
        (["--api-key", "ä"], "API key"),
        (["--model", "/no/such/model", "--port", "0"], "/no/such/model"),
    ],
)
def test_what_is_impossible_is_2(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.delenv("INFERDECK_API_KEY", raising=False)
    assert main(["serve", *argv]) == 2
    assert words in capsys.readouterr().err


def test_it_names_what_it_loads_and_its_size(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    config = EngineConfig(model=str(folder))
    assert loading_text(config).split() == ["Loading", "small"]  # nothing to read: an error follows
    (folder / "a.safetensors").write_bytes(bytes(2**20))
    (folder / "b.safetensors").symlink_to(folder / "a.safetensors")  # as in a cache
    (folder / "other").write_bytes(bytes(2**20))
    assert numbers(loading_text(config)) == numbers(bytes_text(2**21))
    assert not numbers(loading_text(config.replace(load_format="dummy")))
