"""Starting: nothing heavy before the window shows, and a clear word where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import ROOT

PROBE = """
import sys, time
import app.main.start
application = app.main.start.Application(app.main.start.make_application())
application.show()
app.main.start.QApplication.processEvents()
heavy = [name for name in ("torch", "transformers", "tokenizers", "huggingface_hub")
         if name in sys.modules]
print(application.window.isVisible(), heavy, len(sys.modules), time.process_time(), flush=True)
application.shutdown()
"""


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    wanted = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**wanted, **environment},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_the_window_shows_before_anything_heavy_is_imported() -> None:
    result = _run(PROBE)
    assert result.returncode == 0, result.stderr
    visible, rest = result.stdout.split(" ", 1)
    heavy, num_modules, seconds = rest.rsplit(" ", 2)
    assert visible == "True" and heavy == "[]"
    assert int(num_modules) < 1500  # it takes 1,000; with torch they are 3,000
    assert float(seconds) < 15.0  # of the processor; 1.7 where it is not slow


@pytest.mark.slow
def test_without_a_display_it_says_so_and_what_to_do() -> None:
    code = (
        "import os, sys; del os.environ['QT_QPA_PLATFORM'];"
        "from app.cli.main import main; sys.exit(main([]))"
    )
    result = _run(code, QT_QPA_PLATFORM="")
    assert result.returncode not in (0, None) and result.returncode > 0  # not killed by Qt
    assert "DISPLAY" in result.stderr and "inferdeck generate" in result.stderr
    assert "Traceback" not in result.stderr
