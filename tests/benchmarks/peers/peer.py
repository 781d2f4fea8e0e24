"""This side of an engine's child process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

CHILDREN = Path(__file__).with_name("children")
ROOT = Path(__file__).parents[3]
LAST_WORDS = 2000
END_S = 30


class Kind(NamedTuple):
    """An engine: its child's script, and what precisions it serves weights and KV cache in."""

    script: str
    bits: tuple[int, ...] = (16,)
    kv_bits: tuple[int, ...] = (16,)


OURS = "inferdeck"
KINDS = {
    OURS: Kind("inferdeck_child.py", (16, 8, 4), (16, 8)),
    "openvino": Kind("openvino_child.py", (16, 8, 4), (16, 8)),
    "llama-cpp": Kind("llama_cpp_child.py", (16, 8, 4), (16, 8)),
    "vllm": Kind("vllm_child.py"),
    "transformers": Kind("transformers_child.py"),
}


class PeerError(RuntimeError):
    """A child did not load or failed; its text is what it said last."""


class Peer:
    """An engine in a child process, loaded. `engine`: name and version; `cost`: fields of
    ModelCost, where it counts them."""

    def __init__(self, name: str, command: Sequence[str], options: dict[str, Any]) -> None:
        """command: Python and script. Raises PeerError."""
        self.name = name
        environment = dict(os.environ)
        environment.pop("PYTHONPATH", None)
        if name == OURS:
            environment["PYTHONPATH"] = str(ROOT)
        self._log = TemporaryFile()  # noqa: SIM115 (closed with the child)
        self._process = subprocess.Popen(
            [*command, json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env=environment,
        )  # fmt: skip
        ready = self._answer()
        self.engine: str = ready["engine"]
        self.cost: dict[str, float] | None = ready.get("cost")

    def run(self, prompts: Sequence[Sequence[int]], num_output: int) -> list[list[float]]:
        """Seconds from the request to every token of every prompt, all served together."""
        assert self._process.stdin is not None
        try:
            print(json.dumps({"prompts": prompts, "num_output": num_output}),
                  file=self._process.stdin, flush=True)  # fmt: skip
        except OSError:
            raise PeerError(self._said()) from None
        times: list[list[float]] = self._answer()["times"]
        return times

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(END_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._said()}
        if "error" in answer:
            said = f"{self.name}: {answer['error']}"
            self.close()
            raise PeerError(said)
        return answer

    def _said(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LAST_WORDS))
        return self._log.read().decode(errors="replace").strip()
