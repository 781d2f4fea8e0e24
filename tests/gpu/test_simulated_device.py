"""What the engine does on a GPU, on one that is simulated (tests/gpu/simulated).

A process gets the simulated device instead of none, and keeps it: so these tests run in processes
of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.slow(seconds=100),
    pytest.mark.skipif(
        torch.cuda.is_available() or sys.platform != "linux",
        reason="nothing is simulated where there is a GPU, or torch's libraries have other names",
    ),
]

FOLDER = Path(__file__).parent / "simulated"
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("test_*.py")))
def test_in_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "pytest", "-p", "no:xdist", "-q", "--no-header",
        "-o", "addopts=", "-m", "not slow", "--basetemp", str(tmp_path / "run"),
        str(FOLDER / f"{name}.py"),
    ]  # fmt: skip
    environment = os.environ | {
        "SIMULATE_GPU": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ".",
    }  # fmt: skip
    for inherited in [word for word in environment if word.startswith("PYTEST_XDIST")]:
        del environment[inherited]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and " skipped" not in done.stdout
