"""Two threads that need transformers at once, as when the first-run page looks at what fits while
the engine loads."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests import ROOT

GATE = ROOT / "engine" / "lazy_transformers.py"
HANGS_S = 120  # two threads that wait for each other
OF_SINGLE_MODELS = "transformers.models.llama.modeling_llama"

TWO_THREADS = f"""
import threading

def load():
    import engine.llm_engine

def look():
    from engine.memory.model_sizes import describe_model
    describe_model({str(ROOT / "resources" / "starter" / "chat")!r})

def run(work):
    start.wait()
    work()
    done.append(work.__name__)

start, done = threading.Barrier(2), []
threads = [threading.Thread(target=run, args=(work,)) for work in (load, look)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(done))
"""


@pytest.mark.slow
def test_both_get_it() -> None:
    """Without the gate one of both ends in "cannot import name ... from 'transformers'"."""
    done = subprocess.run(
        [sys.executable, "-c", TWO_THREADS], cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=HANGS_S,
    )  # fmt: skip
    assert done.stdout.strip() == "['load', 'look']", done.stderr[-3000:]


def test_nothing_else_imports_transformers() -> None:
    found = []
    for file in [*(ROOT / "engine").rglob("*.py"), *(ROOT / "app").rglob("*.py")]:
        text = file.read_text(encoding="utf-8")
        if file == GATE or "transformers" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Import():
                    names = [alias.name for alias in node.names]
                case ast.ImportFrom(module=str(module), level=0):
                    names = [module]
                case _:
                    continue
            found += [f"{file}: {n}" for n in names if n.split(".")[0] == "transformers"]
    assert [place for place in found if not place.endswith(OF_SINGLE_MODELS)] == []
