"""`inferdeck doctor`: what is there, as text and as one object."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from app.__main__ import main
from app.cli.doctor import as_text, gather
from app.features.models.torch_build import TorchBuild, advice
from engine.hardware.machine import SMALL_MODEL
from tests.figures import numbers


def test_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    report = json.loads(out)
    sections = {"machine", "memory", "devices", "torch", "kernels", "versions", "paths", "advice",
                "auto_device", "no_gpu", "nvidia_driver"}  # fmt: skip
    assert set(report) == sections
    assert report["torch"]["version"] == version("torch")
    assert report["devices"][0]["device"] == "cpu"
    assert report["devices"][0]["default_threads"] >= 1
    memory = report["memory"]
    assert 0 < memory["free"] <= memory["limit"] <= memory["total"]
    assert report["versions"]["torch"] == version("torch")
    assert report["versions"]["PySide6-Essentials"] == version("PySide6-Essentials")
    for kernel in report["kernels"]:
        assert kernel["implementation"]
        assert kernel["reason"]


def test_the_text_names_every_kernel_and_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    words = " ".join(shown.split())
    for kernel in report["kernels"]:
        assert kernel["reason"].split(":")[0] in words
    for path in report["paths"].values():
        assert path in shown


@pytest.mark.parametrize("columns", (60, 100))
def test_kernels_fit_the_terminal_with_their_whole_reason(columns: int) -> None:
    report = gather()
    report["kernels"].append(
        {"operation": "linear", "dtype": "any", "rows": 8, "implementation": "native",
         "reason": " ".join(["batch-invariant"] * 30)}
    )  # fmt: skip
    section = as_text(report, columns).split("\n\n")[2]
    assert section.startswith("Kernels") and all(
        len(line) <= columns for line in section.splitlines() if line.startswith(6 * " ")
    )
    words = " ".join(section.split())
    assert all(" ".join(kernel["reason"].split()) in words for kernel in report["kernels"])


def test_the_compute_dtype_names_that_of_small_models() -> None:
    report = gather()
    report["devices"][0]["default_dtype"] = "bfloat16"
    line = next(line for line in as_text(report).splitlines() if "compute dtype" in line)
    assert "BF16" in line and "FP32" in line and SMALL_MODEL / 1e6 in numbers(line)


def test_a_gpu_beside_a_build_for_the_cpu_is_noticed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.hardware.machine.gpu_names", lambda: ("NVIDIA H200",))
    monkeypatch.setattr("app.cli.doctor.torch_build", lambda: TorchBuild("2.13.0+cpu", ""))
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("! NVIDIA H200") and "2.13.0+cpu" in shown.splitlines()[0]
    assert '-m pip install --force-reinstall "torch==2.13.0"' in shown


def test_advice_is_given_only_where_it_helps() -> None:
    cpu, cuda = TorchBuild("2.13.0+cpu", ""), TorchBuild("2.13.0+cu130", "CUDA 13.0")
    assert advice((), cpu) is None and advice(("NVIDIA H200",), cuda) is None
    linux = advice(("A", "B"), cpu, "Linux", "/usr/bin/python")
    assert linux is not None and linux.cause.startswith("2 GPUs (A)")
    assert linux.command.startswith('"/usr/bin/python" -m pip') and "pypi.org" in linux.command
    windows = advice(("A",), cpu, "Windows")
    assert windows is not None and "download.pytorch.org/whl/cu" in windows.command
    assert cpu.text.startswith("2.13.0+cpu")
