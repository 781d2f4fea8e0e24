"""The server's process: started, measured at quiet points, and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from app.paths import starter_draft, starter_model
from tests import ROOT

MODEL, OTHER = starter_model(), starter_draft()
STARTING_S = 300.0
FREEING_S = 3.0
"""The server frees memory within this: its main thread looks at signals twice a second."""
OPTIONS = (
    "--port", "0", "--json", "--device", "cpu", "--dtype", "float32", "--num-threads", "1",
    "--kv-cache-memory-bytes", "64MiB", "--max-num-seqs", "64", "--max-num-batched-tokens", "512",
    "--max-connections", "512", "--served-model-name", "soak",
    "--model-dir", str(OTHER), "--model-dir", str(MODEL),
)  # fmt: skip


class Usage(NamedTuple):
    """Of the server and the processes that encode for it, at a quiet point `at` seconds after the
    start."""

    at: float
    resident_bytes: int
    num_fds: int
    num_threads: int
    num_processes: int


class Server:
    """Raises RuntimeError if it does not start. Its messages go to `log`."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("w")
        self._started = time.monotonic()
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.server", *OPTIONS],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
        self.url: str = json.loads(line)["url"]
        self._found = psutil.Process(self._process.pid)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def usage(self) -> Usage:
        """Only while nothing runs."""
        for _ in range(2):  # what the first collection ends may end more
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(FREEING_S)
        processes = [self._found, *self._found.children(recursive=True)]
        return Usage(
            time.monotonic() - self._started,
            sum(process.memory_info().rss for process in processes),
            sum(process.num_fds() for process in processes),
            sum(process.num_threads() for process in processes),
            len(processes),
        )

    def stop(self) -> int:
        """The exit code."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._log.close()
