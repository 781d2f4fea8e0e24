"""Where a model can run: the CPU, and NVIDIA GPUs by their number.

    cpu        this machine's processors
    cuda:N     a GPU, in the driver's order (CUDA_VISIBLE_DEVICES applies)
    auto       the first GPU that computes, else the CPU

An unusable GPU is an error with the reason: a CPU build of PyTorch, an old driver, a GPU that the
build does not support.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from dataclasses import dataclass
from functools import cache

from engine.errors import ConfigError, is_out_of_memory

CPU, AUTO = "cpu", "auto"
CHOICES = (AUTO, CPU)
"""Besides cuda and cuda:0, cuda:1 and so on."""

LEAST_CAPABILITY = (7, 5)
"""Turing: the oldest GPUs that Triton 3 compiles for."""
_FAST_BF16 = (8, 0)
_CUDA = re.compile(r"cuda(?::(\d{1,3}))?")
log = logging.getLogger(__name__)

# CUDA counts the fastest first unless told: numbers are to be the driver's, as nvidia-smi has them
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A CUDA device. total_memory in bytes; capability: compute capability, (9, 0) for Hopper.
    problem: why it cannot be used, "" if usable; None: not tried yet, see `why_not`."""

    index: int
    name: str
    total_memory: int
    capability: tuple[int, int]
    uuid: str = ""
    problem: str | None = ""

    @property
    def device(self) -> str:
        return f"cuda:{self.index}"


def check_device(value: object) -> None:
    """Raise ConfigError unless `value` names a device, here or not."""
    if value in CHOICES or (isinstance(value, str) and _CUDA.fullmatch(value)):
        return
    raise ConfigError(f"Invalid device: {value!r}.", "Use auto, cpu, cuda, or cuda:0, cuda:1, ...")


def is_cuda(device: str) -> bool:
    return device.startswith("cuda")


def resolve_device(wanted: str) -> str:
    """ "cpu" or "cuda:N" for what a configuration says. Raises ConfigError with the reason where
    that GPU cannot be used; "auto" falls back to the CPU, and the log says why. Imports torch."""
    if wanted == CPU:
        return CPU
    found = gpus()
    if wanted == AUTO:
        usable = next((gpu for gpu in found if not why_not(gpu)), None)
        for gpu in found if usable is None else ():
            log.warning("Not using %s: %s", gpu.name, why_not(gpu))
        return CPU if usable is None else usable.device
    match = _CUDA.fullmatch(wanted)
    index = int(match[1] or 0) if match else 0
    if not found:
        raise ConfigError(
            f"Device {wanted} is not available: {why_none()}",
            "Set device to cpu, or run `inferdeck doctor`.",
        )
    if index >= len(found):
        names = ", ".join(f"{gpu.device} ({gpu.name})" for gpu in found)
        raise ConfigError(f"No device {wanted}. Available: {names}.", "Choose an available device.")
    if problem := why_not(found[index]):
        raise ConfigError(
            f"{found[index].name} ({wanted}) cannot be used: {problem}",
            "Set device to cpu or another GPU.",
        )
    return found[index].device


def make_current(device: str) -> None:
    """Make `device` this thread's current GPU. Triton kernels and events use that one, wherever the
    tensors are; another engine in the same thread may have changed it."""
    if is_cuda(device):
        import torch

        torch.cuda.set_device(device)


@cache
def gpus() -> tuple[Gpu, ...]:
    """The GPUs that CUDA shows to this process. Imports torch; the first call takes a moment."""
    import torch

    with warnings.catch_warnings():  # `why_none` reports a driver that does not match
        warnings.simplefilter("ignore")
        if not torch.cuda.is_available():
            return ()
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = (properties.major, properties.minor)
        problem = None
        if capability < LEAST_CAPABILITY:
            number, least = (".".join(map(str, pair)) for pair in (capability, LEAST_CAPABILITY))
            problem = f"compute capability {number} is below the required {least}."
        name, total = properties.name, int(properties.total_memory)
        uuid = f"GPU-{properties.uuid}" if getattr(properties, "uuid", "") else ""
        found.append(Gpu(index, name, total, capability, uuid, problem))
    return tuple(found)


def gpu_of(device: str) -> Gpu:
    """The GPU that a resolved "cuda:N" names."""
    return gpus()[int(device.partition(":")[2] or 0)]


def why_none() -> str:
    """Why CUDA shows no GPU to this process."""
    import torch

    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} was built without CUDA."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # the driver's own words, with its version
        return _first_sentence(error)
    return f"CUDA {torch.version.cuda} found no GPU (check CUDA_VISIBLE_DEVICES)."


def has_fast_bf16(device: str) -> bool:
    return gpu_of(device).capability >= _FAST_BF16


def why_not(gpu: Gpu) -> str:
    """Why a GPU cannot be used; "" if it can. The first call tests it with a small computation,
    which takes some hundred MiB of its memory until the process ends."""
    return _tried(gpu.index, gpu.capability) if gpu.problem is None else gpu.problem


@cache
def _tried(index: int, capability: tuple[int, int]) -> str:
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one = torch.ones(8, device=f"cuda:{index}")
            works = float((one + one).sum()) == 16.0
    except RuntimeError as error:
        if is_out_of_memory(error):  # used by other programs: loading reports how much is free
            return ""
        made_for = ", ".join(torch.cuda.get_arch_list())
        return (
            f"a test computation failed ({_first_sentence(error)}; compute capability "
            f"{'.'.join(map(str, capability))}, "
            f"PyTorch {torch.__version__} supports {made_for})."
        )
    return "" if works else "a test computation returned an incorrect result."


def _first_sentence(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
