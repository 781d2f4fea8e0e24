"""Entry point of the self-contained build's executable.

The program starts itself for its engine process and its limited processes, as `python -m MODULE`
and `python -c CODE` (app.link.child_process, engine.python_process). In the build `sys.executable`
is this executable, which therefore understands those two forms.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

_LIBRARIES = "LD_LIBRARY_PATH"
_RESET = "PYINSTALLER_RESET_ENVIRONMENT"


def main() -> int:
    _restore_library_path()
    arguments = [one for one in sys.argv[1:3] if one not in ("-P", "-S")] + sys.argv[3:]
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        return _run_module(arguments[1], arguments[2:])
    if arguments[:1] == ["-c"] and len(arguments) > 1:
        sys.argv[:] = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
        return 0
    from app.cli.main import main as run

    return run()


def _run_module(name: str, arguments: Sequence[str]) -> int:
    sys.argv[:] = [name, *arguments]
    module = importlib.import_module(name)
    if hasattr(module, "__path__"):  # a package
        module = importlib.import_module(f"{name}.__main__")
    return int(module.main() or 0)


def _restore_library_path() -> None:
    """PyInstaller points the loader to the build's libraries; programs of the system that this one
    starts (a browser, a compiler) need their own. This program, started again, sets it anew."""
    os.environ[_RESET] = "1"
    before = os.environ.pop(f"{_LIBRARIES}_ORIG", None)
    if before is not None:
        os.environ[_LIBRARIES] = before
    else:
        os.environ.pop(_LIBRARIES, None)


if __name__ == "__main__":
    sys.exit(main())
