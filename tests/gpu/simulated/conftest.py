"""These tests need the simulated device, and it needs a process of its own: see
tests/gpu/test_simulated_device.py."""

from __future__ import annotations

import os

if os.environ.get("SIMULATE_GPU") != "1":
    collect_ignore_glob = ["test_*.py"]
