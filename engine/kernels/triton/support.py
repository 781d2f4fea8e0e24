"""Whether Triton's kernels run here, and the device's properties. Imports no Triton."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import NamedTuple

import torch

from engine.errors import is_out_of_memory


@cache
def is_available() -> bool:
    """Whether Triton is installed. Does not import it."""
    return importlib.util.find_spec("triton") is not None


OLDEST = (8, 0)
"""Ampere: before it there is no bfloat16 in the matrix units, and less shared memory."""


def is_usable(device: torch.device) -> bool:
    """Whether Triton's kernels compute on `device`."""
    return not problem(device)


def problem(device: torch.device) -> str:
    """Why the kernels cannot run on `device`; "" where they can. The first call for a
    GPU compiles a small one and runs it."""
    try:
        return _problem_of(device)
    except RuntimeError as error:  # other programs may free memory: tested again the next time
        if not is_out_of_memory(error):
            raise
        return "not enough free GPU memory to test Triton"


@cache
def _problem_of(device: torch.device) -> str:
    if device.type != "cuda":
        return "the Triton kernels need an NVIDIA GPU"
    if not is_available():
        return "Triton is not installed"
    if torch.cuda.get_device_capability(device) < OLDEST:
        return f"Triton kernels need compute capability {OLDEST[0]}.{OLDEST[1]} (Ampere) or higher"
    from engine.kernels.triton.probe import runs_on

    try:
        return "" if runs_on(device) else "Triton's test kernel returned an incorrect result"
    except Exception as error:  # no C compiler, a driver that is too old, a folder not writable...
        if is_out_of_memory(error):
            raise
        words = str(error).strip().partition("\n")[0] or type(error).__name__
        return f"Triton compilation failed: {words.rstrip('.')}"


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, which does not multiply bfloat16 rightly (triton
    #11584) and cuts bfloat16 off where a GPU rounds it."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is at least `number`; 1 for 0."""
    return 1 << max(0, number - 1).bit_length()


class Device(NamedTuple):
    """Of a GPU. capability: major, minor. shared_memory: bytes that one program may take."""

    capability: tuple[int, int]
    num_sms: int
    shared_memory: int


_INTERPRETED = Device((9, 0), 4, 227 * 1024)
"""What stands for the CPU: few multiprocessors, so that a small test splits its work as well."""


@cache
def device_of(device: torch.device) -> Device:
    """The properties of a CUDA device; of the interpreter for any other."""
    if device.type != "cuda":
        return _INTERPRETED
    found = torch.cuda.get_device_properties(device)
    shared = getattr(found, "shared_memory_per_block_optin", 99 * 1024)
    return Device((found.major, found.minor), found.multi_processor_count, shared)
