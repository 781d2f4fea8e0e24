"""`inferdeck serve` in this process; SIGUSR1 frees what is free, so that memory can be compared."""

from __future__ import annotations

import gc
import signal
import sys
from typing import Any


def free(number: int, frame: Any) -> None:
    from engine.hardware.malloc import give_back

    gc.collect()
    give_back()


if __name__ == "__main__":
    from app.cli.main import main

    signal.signal(signal.SIGUSR1, free)
    sys.exit(main(["serve", *sys.argv[1:]]))
