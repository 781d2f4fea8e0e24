"""Whether the installed PyTorch can use the GPU that is there, and the command that mends it.
Imports no Qt."""

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
    """`accelerator`: "CUDA 13.0", "ROCm 7.0", or empty for a build for the CPU only."""

    version: str
    accelerator: str

    @property
    def text(self) -> str:
        return f"{self.version}, built for {self.accelerator or 'the CPU only'}"


@dataclass(frozen=True, slots=True)
class Advice:
    """cause: what is not as it could be; remedy: what to do; command: to copy into a terminal."""

    cause: str
    remedy: str
    command: str


def torch_build() -> TorchBuild:
    """The build that is installed. Imports torch: call it off the GUI thread."""
    import torch

    cuda, hip = torch.version.cuda, torch.version.hip
    accelerator = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else ""
    return TorchBuild(torch.__version__, accelerator)


def advice(
    gpus: Sequence[str], build: TorchBuild, system: str = "", python: str = ""
) -> Advice | None:
    """What to do where a GPU stands beside a build that cannot use it; None where all is well.
    `system` and `python`: this machine's where empty."""
    if not gpus or build.accelerator:
        return None
    number = build.version.split("+")[0]
    index = PYPI if (system or platform.system()) == "Linux" else CUDA_WHEELS
    there = gpus[0] if len(gpus) == 1 else f"{len(gpus)} GPUs ({gpus[0]})"
    verb = "is" if len(gpus) == 1 else "are"
    return Advice(
        f"{there} {verb} there, and PyTorch {build.version} is built for the CPU only: it cannot "
        f"use {'it' if len(gpus) == 1 else 'them'}.",
        "To install the build for CUDA, close the program and run:",
        # forced: to pip the build for the CPU is the same version
        f'"{python or sys.executable}" -m pip install --force-reinstall "torch=={number}" '
        f"--index-url {index}",
    )
