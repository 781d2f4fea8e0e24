"""`inferdeck doctor`: devices, kernels and why they were selected, versions and paths."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import shutil
import sys
import textwrap
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from app.cli.options import add_json_option
from app.features.models.torch_build import advice, torch_build
from app.paths import config_dir, data_dir, resources_dir, starter_model
from engine.units import bytes_text, precision_name, scaled_count

if TYPE_CHECKING:
    from engine.hardware.devices import Gpu

NAME = "doctor"
HELP = "Show devices, kernels, versions and paths."
DESCRIPTION = "Show devices, versions and paths, and which kernels are selected and why."
EPILOG = """\
examples:
  inferdeck doctor
  inferdeck doctor --json > report.json
"""

PACKAGES = ("torch", "triton", "transformers", "tokenizers", "safetensors", "numpy",
            "PySide6-Essentials", "pyqtgraph")  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    report = gather()
    columns = shutil.get_terminal_size().columns
    print(json.dumps(report) if args.json else as_text(report, columns))
    return 0


def gather() -> dict[str, Any]:
    """Everything as plain data. Sizes in bytes."""
    import psutil
    from huggingface_hub.constants import HF_HUB_CACHE

    from engine.attention import choices as attention
    from engine.hardware.devices import gpus, resolve_device, why_none
    from engine.hardware.machine import machine_info
    from engine.hardware.nvml import driver_version
    from engine.kernels.registry import choices

    machine = dataclasses.asdict(machine_info())
    build = torch_build()
    found = advice(machine["gpus"], build)
    return {
        "advice": [dataclasses.asdict(found)] if found else [],
        "machine": machine,
        "memory": {
            "total": psutil.virtual_memory().total,
            "limit": machine["total_memory"],
            "free": machine["available_memory"],
        },
        "devices": [
            {
                "device": "cpu",
                "name": machine["cpu"],
                "default_threads": machine["default_threads"],
                "default_dtype": "bfloat16" if machine["fast_bf16"] else "float32",
            },
            *map(_gpu, gpus()),
        ],
        "auto_device": resolve_device("auto"),
        "no_gpu": "" if gpus() or not machine["gpus"] else why_none(),
        "nvidia_driver": driver_version(),
        "torch": {**dataclasses.asdict(build), "text": build.text},
        "kernels": [choice._asdict() for choice in (*choices(), *attention.choices())],
        "versions": _versions(),
        "paths": {
            "data": str(data_dir()),
            "settings": str(config_dir()),
            "resources": str(resources_dir()),
            "starter_model": str(starter_model()),
            "huggingface_cache": str(HF_HUB_CACHE),
        },
    }


def as_text(report: dict[str, Any], columns: int = 80) -> str:
    """columns: of the terminal, at which the reasons of kernels are wrapped."""
    machine, memory = report["machine"], report["memory"]
    sections = {
        "Machine": {
            "system": machine["platform"],
            "CPU": machine["cpu"],
            "cores": f"{machine['physical_cores']} physical, {machine['logical_cores']} logical",
            "memory": f"{bytes_text(memory['total'])}, process limit "
            f"{bytes_text(memory['limit'])}, {bytes_text(memory['free'])} free",
            "GPUs": ", ".join(machine["gpus"]) or "none found",
            **({"driver": report["nvidia_driver"]} if report["nvidia_driver"] else {}),
            "PyTorch": report["torch"]["text"],
        },
        "Engine": {
            "device": report["auto_device"],
            **{device["device"]: _device_text(device) for device in report["devices"][1:]},
            **({"GPU not used": report["no_gpu"]} if report["no_gpu"] else {}),
            "threads": str(machine["default_threads"]),
            "compute dtype": _dtype_text(report["devices"][0]["default_dtype"]),
        },
        "Kernels": {},
        "Versions": report["versions"],
        "Paths": report["paths"],
    }
    width = max(len(name) for section in sections.values() for name in section)
    blocks = [
        "\n".join([f"! {a['cause']}", f"  {a['remedy']}", f"  {a['command']}"])
        for a in report["advice"]
    ]
    for title, section in sections.items():
        lines = [f"  {name.ljust(width)}  {value}" for name, value in section.items()]
        if title == "Kernels":
            lines = [line for choice in report["kernels"] for line in _kernel(choice, columns)]
        blocks.append("\n".join([title, *lines]))
    return "\n\n".join(blocks)


def _kernel(choice: dict[str, Any], columns: int) -> list[str]:
    """A line with the operation and its implementation, and below it why."""
    name = f"{choice['operation']} {choice['dtype']}, {choice['rows']}+ input rows"
    reason = textwrap.wrap(
        choice["reason"], max(40, columns - 1), initial_indent=6 * " ", subsequent_indent=6 * " ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [f"  {name}: {choice['implementation']}", *reason]


def _dtype_text(dtype: str) -> str:
    """Of dtype auto on the CPU, where models that fit into its cache use FP32."""
    from engine.hardware.machine import SMALL_MODEL

    large, small = precision_name(dtype), precision_name("float32")
    if large == small:
        return small
    return f"{large}; {small} for models up to {scaled_count(SMALL_MODEL)} parameters (CPU cache)"


def _gpu(gpu: Gpu) -> dict[str, Any]:
    """`problem`: why it is not used; "" if it is usable."""
    from engine.hardware.devices import why_not
    from engine.hardware.machine import default_dtype, free_memory

    problem = why_not(gpu)
    usable = not problem
    return {
        "device": gpu.device,
        "name": gpu.name,
        "memory": gpu.total_memory,
        "free": free_memory(gpu.device)[0] if usable else None,
        "capability": ".".join(map(str, gpu.capability)),
        "default_dtype": default_dtype("bfloat16", 2**30, gpu.device) if usable else None,
        "problem": problem,
    }


def _device_text(gpu: dict[str, Any]) -> str:
    size = bytes_text(gpu["memory"])
    text = f"{gpu['name']}, {size}, compute capability {gpu['capability']}"
    if gpu["problem"]:
        return f"{text}; not used: {gpu['problem']}"
    return f"{text}; {bytes_text(gpu['free'])} free, default dtype " + precision_name(
        gpu["default_dtype"]
    )


def _versions() -> dict[str, str]:
    found = {"inferdeck": _version("inferdeck"), "python": platform.python_version()}
    return {**found, **{name: _version(name) for name in PACKAGES}, "executable": sys.executable}


def _version(package: str) -> str:
    """From the package's metadata: importing torch or Qt just for its number takes seconds."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
