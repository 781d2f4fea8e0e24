"""The commands that cases run, in the child."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests import ROOT
from tests.corpus.controls import NUM_TOKENS, PROMPT

SMALL = ("--kv-cache-memory-bytes", "1MiB", "--num-threads", "1", "--dtype", "float32",
         "--device", "cpu")  # fmt: skip
MARK = "code-of-the-folder-ran"


as_program = False
"""Whether commands run as a program of their own, as a user starts them: slow, to compare."""


def command(*words: str) -> int:
    if as_program:
        line = [sys.executable, "-m", "app", *words]
        return subprocess.run(line, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode
    from app.cli.main import main

    return main(words)


def generate(folder: Path, *prompt: str) -> int:
    """The control's command: greedy tokens as JSON. 99 if a file of code in the folder ran."""
    prompt = prompt or ("--prompt-token-ids", ",".join(map(str, PROMPT)))
    code = command(
        "generate", "--model", str(folder), *prompt, "--max-tokens", str(NUM_TOKENS),
        "--temperature", "0", "--json", *SMALL,
    )  # fmt: skip
    return 99 if (folder / MARK).exists() else code


def chat(folder: Path) -> int:
    return generate(folder, "--chat", "hello")


def text(content: str) -> Callable[[Path], int]:
    return lambda folder: generate(folder, "--prompt", content)
