"""Whether the installed PyTorch build supports the GPU, and the command that installs one that
does. Imports no Qt."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass

PYPI = "https://pypi.org/simple"
CUDA_WHEELS = "https://download.pytorch.org/whl/cu130"
"""On Windows the wheels of PyPI are for the CPU only; on Linux they are built for CUDA."""


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """`accelerator`: "CUDA 13.0", "ROCm 7.0", or empty for a CPU-only build."""

    version: str
    accelerator: str

    @property
    def text(self) -> str:
        return f"{self.version}, {self.accelerator or 'CPU-only build'}"


@dataclass(frozen=True, slots=True)
class Advice:
    """cause, remedy, and the `command` for a terminal."""

    cause: str
    remedy: str
    command: str


def torch_build() -> TorchBuild:
    """The installed build. Imports torch: call it off the GUI thread."""
    import torch

    cuda, hip = torch.version.cuda, torch.version.hip
    accelerator = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else ""
    return TorchBuild(torch.__version__, accelerator)


def advice(
    gpus: Sequence[str], build: TorchBuild, system: str = "", python: str = ""
) -> Advice | None:
    """How to install a CUDA build where a GPU is unused; None where none is needed. `system` and
    `python`: empty for this machine's."""
    if not gpus or build.accelerator:
        return None
    number = build.version.split("+")[0]
    index = PYPI if (system or platform.system()) == "Linux" else CUDA_WHEELS
    there = gpus[0] if len(gpus) == 1 else f"{len(gpus)} GPUs ({gpus[0]})"
    return Advice(
        f"{there} not used: PyTorch {build.version} is a CPU-only build.",
        "To install the CUDA build, close Inferdeck and run:",
        # forced: to pip the CPU-only build is the same version
        f'"{python or sys.executable}" -m pip install --force-reinstall "torch=={number}" '
        f"--index-url {index}",
    )
