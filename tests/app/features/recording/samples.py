"""Records that recordings hold."""

from __future__ import annotations

from engine import messages as m
from engine.config import EngineConfig
from engine.hardware.peaks import Peaks
from engine.snapshot import GpuFigures, GpuProcess, ThreadFigures, ThreadsOf
from tests.widgets import synthetic

CARD = GpuFigures("A card", 8, 3, 1, (GpuProcess("Xorg", 7, 2),), power_w=90.0)
THREADS = ThreadFigures(4, 2, 3, 1.25, (ThreadsOf(1, 1, 2), ThreadsOf(4, 7, 3)))
CONFIG = EngineConfig(model="/m", max_num_seqs=4)
PEAKS = Peaks(40e9, 800e9, "float32", 2, "a machine", 1.7e9)
LOADED = m.Loaded(CONFIG, synthetic.MODEL, synthetic.PLAN)
