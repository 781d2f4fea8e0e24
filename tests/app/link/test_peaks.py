"""Measured peaks are kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from app.link.hardware_monitor import PeaksStore
from engine.config import EngineConfig
from engine.hardware.machine import machine_name
from engine.hardware.peaks import Peaks

PEAKS = Peaks(40e9, 800e9, "bfloat16", 2, "a machine", 0.0)


def test_peaks_are_kept_by_machine_format_and_threads(tmp_path: Path) -> None:
    store = PeaksStore(tmp_path / "peaks.json")
    config = EngineConfig(dtype="bfloat16", num_threads=2)
    name = machine_name()
    assert store.find(config, name) is None
    here = dataclasses.replace(PEAKS, machine=machine_name())
    for peaks in (here, dataclasses.replace(here, num_threads=4), PEAKS):
        store.keep(peaks)
    assert store.find(config, name) == here
    assert store.find(config, PEAKS.machine) == PEAKS
    again = dataclasses.replace(here, read_bytes_per_s=50e9)
    store.keep(again)
    assert store.find(config, name) == again
    assert store.find(config.replace(dtype="float32"), name) is None
    store.path.write_text("{damaged")
    assert store.find(config, name) is None
