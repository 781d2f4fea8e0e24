"""`inferdeck` and `python -m app`: open the window or run a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (sys.argv's without it); the process's exit code."""
    from app.cli.main import main as run

    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
