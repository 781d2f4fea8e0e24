"""The smallest kernel there is: whether Triton compiles and runs here at all."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from engine.errors import is_out_of_memory


@triton.jit
def add_one_kernel(number):
    tl.store(number, tl.load(number) + 1)


def runs_on(device: torch.device) -> bool:
    """Raises whatever Triton does where it cannot compile: it needs a C compiler, too."""
    number = torch.zeros(1, dtype=torch.int32, device=device)
    with torch.cuda.device(device):  # Triton launches on the thread's, which may be another
        add_one_kernel[(1,)](number)
    return int(number) == 1


@cache
def is_available() -> bool:
    """Whether Triton is installed. Does not import it."""
    return importlib.util.find_spec("triton") is not None


OLDEST = (8, 0)
"""Ampere: before it there is no bfloat16 in the matrix units, and less shared memory."""


def problem(device: torch.device) -> str:
    """Why the kernels cannot run on `device`, in words; "" where they can. The first call for a
    GPU compiles a small one and runs it."""
    try:
        return _problem_of(device)
    except RuntimeError as error:  # others may give memory back: tried again the next time
        if not is_out_of_memory(error):
            raise
        return "there was no memory to try Triton"


@cache
def _problem_of(device: torch.device) -> str:
    if device.type != "cuda":
        return "Triton's kernels are for NVIDIA GPUs"
    if not is_available():
        return "Triton is not installed"
    if torch.cuda.get_device_capability(device) < OLDEST:
        return "a GPU before Ampere"

    try:
        return "" if runs_on(device) else "Triton computes wrongly here"
    except Exception as error:  # no C compiler, a driver that is too old, a folder not writable...
        if is_out_of_memory(error):
            raise
        words = str(error).strip().partition("\n")[0] or type(error).__name__
        return f"Triton cannot compile here: {words.rstrip('.')}"


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
