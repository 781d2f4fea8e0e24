"""Python processes that may end at any moment: started, watched, limited, ended.

For work that may crash, never end or use all memory: neither native code nor one long operation of
Python can be ended in a thread. `limited_process` runs a function in one, `text.process` encodes.

    the program                                 the process
    PythonProcess(module)          -- starts -> module.main()
    memory(), kill(), end()                     limits(seconds, max_bytes)
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil

LOOK_S = 0.05
"""How often a program looks at the time and memory of a process."""
_LOOKS_PER_TREE = 20
"""To find its children, psutil lists all processes of the machine."""
GRACE_S = 5.0
"""Then the process ends itself, should the program be gone."""
_MAIN = """
import sys, json, importlib
sys.path[:] = json.loads(sys.argv[1])
importlib.import_module(sys.argv[2]).main()
"""
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",  # a context of a GPU takes its memory, too
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}


class PythonProcess(subprocess.Popen[bytes]):
    """Calls `main` of a module, with the imports of this program. The constructor raises OSError.
    `kill` may be called by any thread."""

    def __init__(
        self,
        module: str,
        stdin: int | IO[bytes],
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
    ) -> None:
        paths = [*sys.path, str(Path(__file__).resolve().parent.parent)]
        super().__init__(
            # -P: the working directory may be a model's, and have a json.py
            # -S: without other packages' start-up files
            [sys.executable, "-P", "-S", "-c", _MAIN, json.dumps(paths), module],
            stdin=stdin, stdout=stdout, stderr=stderr, env={**os.environ, **_ENVIRONMENT},
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            start_new_session=True,  # whose process group has what it starts; no Ctrl-C
        )  # fmt: skip
        self._looks = itertools.count()
        self._tree: list[psutil.Process] = []

    def memory(self) -> int:
        """Bytes in RAM of it and of what it started."""
        if next(self._looks) % _LOOKS_PER_TREE == 0:
            self._tree = self._find_tree()
        total = 0
        for process in self._tree:
            with suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def end(self) -> int:
        """End it and what it started, also where it has ended by itself; its exit code."""
        if self.poll() is None:
            for process in self._find_tree():
                with suppress(psutil.Error):
                    process.kill()
            self.kill()
        code = self.wait()
        if sys.platform != "win32":
            with suppress(OSError):  # nobody is left, mostly
                os.killpg(self.pid, signal.SIGKILL)
        return code

    def _find_tree(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            process = psutil.Process(self.pid)
            return [*process.children(recursive=True), process]
        return []


def end_text(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"


@contextmanager
def limits(seconds: float, max_bytes: int) -> Iterator[None]:
    """In the process: the system ends it where it takes more time, and refuses it more memory.
    Memory grows faster than the program looks, and the program may be gone."""
    if sys.platform == "win32":
        import ctypes

        ctypes.windll.kernel32.SetErrorMode(0x0003)  # no dialogs about a crash
        yield
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # RLIMIT_AS would count address space that torch only reserves
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]  # cannot be raised
        most = max_bytes if hard < 0 else min(max_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + GRACE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
