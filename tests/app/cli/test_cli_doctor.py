"""`inferdeck doctor`: what is there, as text and as one object."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from app.__main__ import main


def test_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    report = json.loads(out)
    assert set(report) == {"machine", "memory", "devices", "kernels", "versions", "paths"}
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
    for kernel in report["kernels"]:
        assert kernel["reason"].split(":")[0] in shown
    for path in report["paths"].values():
        assert path in shown
