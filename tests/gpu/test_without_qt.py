"""A machine with a GPU may have no window system: what runs there asks for few packages.

torch, triton, transformers, safetensors, tokenizers, numpy, psutil, msgspec, pytest, hypothesis,
and what those bring along; of this repository, engine/, resources/, tests/gpu, the tiny models of
tests/engine and the tiers of tests.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFUSED = (
    "PySide6", "shiboken6", "pytestqt", "pyqtgraph", "xdist", "schemathesis", "openai",
    "app", "widgets", "starlette", "uvicorn", "keyring", "markdown_it",
    "prometheus_client", "pynvml", "platformdirs", "websockets",
)  # fmt: skip

KNOWN = ("tests.gpu", "tests.engine", "tests.tiers")
"""Of tests/."""

WITHOUT = f"""
import importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {REFUSED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
"""

RUN = """
import importlib, pkgutil
import pytest
import tests.gpu.bench
for module in pkgutil.iter_modules(tests.gpu.bench.__path__):
    importlib.import_module(f"tests.gpu.bench.{module.name}")
import tests.gpu.run_all
status = pytest.main(["-p", "no:cacheprovider", "--collect-only", "-q", "tests/gpu"])
assert status == 0, status
status = pytest.main(["-p", "no:cacheprovider", "-q", "tests/gpu/test_floors.py"])
assert status == 0, status

from engine import EngineConfig, LLMEngine, SamplingParams
folder = tests.gpu.bench.shapes.folder_of("tiny")
engine = LLMEngine(EngineConfig(model=str(folder), load_format="dummy", max_model_len=64,
                                num_threads=1, kv_cache_memory_bytes=2**20))
(output,) = engine.generate([[5, 6, 7]], SamplingParams(temperature=0.0, max_tokens=3))
engine.shutdown()
print("done", len(output.token_ids))
"""


@pytest.mark.slow
def test_the_engine_and_its_gpu_tests_run_without_a_window_system() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + RUN], cwd=ROOT, capture_output=True, text=True,
        timeout=300, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "done 3"


def test_nothing_here_imports_the_window_or_its_widgets() -> None:
    files = sorted((ROOT / "tests" / "gpu").rglob("*.py"))
    assert files
    wrong = [
        f"{file.relative_to(ROOT)}: {module}"
        for file in files
        for module in _imported(file)
        if module.split(".")[0] in REFUSED
        or (module.startswith("tests.") and not module.startswith(KNOWN))
    ]
    assert wrong == []


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
