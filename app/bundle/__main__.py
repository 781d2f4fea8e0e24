"""A folder that runs without Python: `python -m app.bundle --output DIR`.

Needs `pip install "inferdeck[bundle]"` (PyInstaller). The build has this machine's architecture and
needs its C library's version or a newer one; the window needs a display.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from app.paths import APP_NAME
from engine.errors import InferdeckError
from engine.kernels.cpu.build import PROCESSORS, compiled, prebuilt_name
from engine.kernels.cpu.library_cache import UnavailableError
from engine.units import bytes_text

SPEC = Path(__file__).with_name("inferdeck.spec")


class BundleError(InferdeckError):
    """The build failed."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m app.bundle", description="Make a folder that runs without Python."
    )
    parser.add_argument(
        "--output", metavar="DIR", type=Path, default=Path("dist"), help="Default: dist."
    )
    try:
        folder = build(parser.parse_args(argv).output)
    except BundleError as error:
        print(f"{error.cause}\n{error.remedy}", file=sys.stderr)
        return 1
    size = sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())
    print(f"{folder}: {bytes_text(size)}. Start {folder / APP_NAME}")
    return 0


def build(output: Path) -> Path:
    """The folder of the build. Raises BundleError."""
    if importlib.util.find_spec("PyInstaller") is None:
        raise BundleError(
            "PyInstaller is not installed.", 'Run `pip install "inferdeck[bundle]"` first.'
        )
    with tempfile.TemporaryDirectory() as work:
        _add_kernels(work)
        done = subprocess.run(
            [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN",
             "--distpath", str(output), "--workpath", work,
             str(SPEC), "--", work], check=False,
        )  # fmt: skip
    if done.returncode != 0:
        raise BundleError(f"PyInstaller failed (exit code {done.returncode}).", "See its messages.")
    return output / APP_NAME


def _add_kernels(folder: str) -> None:
    """Compile the CPU kernels for each kind of processor; none where PyTorch computes."""
    try:
        for processor in PROCESSORS:
            library, _ = compiled(processor)
            shutil.copy(library, Path(folder, prebuilt_name(processor)))
    except UnavailableError as error:
        print(f"Building without CPU kernels: {error}.", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
