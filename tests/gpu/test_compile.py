"""The kernels pass Triton's compiler, for GPUs that are not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
KERNELS = {
    "attend_pages", "join_splits", "write_pages", "one_row_kernel", "tile_kernel", "join_kernel",
    "plain_kernel", "one_by_one_kernel", "tiles_kernel", "rms_norm_kernel", "rotary_kernel",
    "silu_and_mul_kernel", "quantize_kernel", "rows_kernel", "scale_kernel",
}  # fmt: skip


@pytest.mark.slow(seconds=60)
@pytest.mark.skipif(torch.cuda.is_available(), reason="they are compiled and run natively here")
def test_every_kernel_compiles_without_spilling_registers(tmp_path: Path) -> None:
    """In a process of its own: in this one the interpreter stands in the compiler's place."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.compile_all", "--quick", "--capability", "90",
         "--json", str(report)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert {one["kernel"] for one in found} == KERNELS
    assert not [one for one in found if one["spilled"]]
    assert all(one["shared"] <= 227 * 1024 and one["registers"] <= 255 for one in found)
