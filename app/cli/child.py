"""The engine process of the window: `python -m app.cli.child`. No Qt.

Runs the engine's thread and the server on a free port of 127.0.0.1, with a random key from the
environment (others can read a command line). Prints its address in one line on stdout. Ends when
stdin closes, which it does however the window ends.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from app.cli.session import prepare_libraries
from app.link.child_engine import KEY_VARIABLE
from app.link.child_process import LogSender, Ready, catch_faults, ready_line
from app.log import LOGGERS
from app.server.engine_client import EngineClient
from app.server.options import Limits, ServerOptions
from app.server.server import ApiServer
from engine.engine_thread import EngineThread
from engine.hardware.malloc import keep_freed

log = logging.getLogger(__name__)

SNAPSHOT_INTERVAL_S = 0.25
"""The window's drawing interval: see `app.link.bridge`."""
PACE_S = 0.04
"""The window paints text 15 times a second at most."""
LIMITS = Limits(max_queued=1_000_000)
"""No limit: all requests are the user's own."""
STOP_S = 3.0
_LOOK_S = 0.5


class Ending:
    """When and how to end: on request, or by a signal."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._signal: int | None = None

    def watch(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the window handles Ctrl-C
        signal.signal(signal.SIGTERM, self._on_signal)
        threading.Thread(target=self._watch_stdin, name="stdin", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        return self._wanted.wait(seconds)

    def leave(self, code: int) -> None:
        """Exit immediately; the process has nothing to save."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self._signal is not None and os.name == "posix":
            signal.signal(self._signal, signal.SIG_DFL)
            os.kill(os.getpid(), self._signal)
        os._exit(code)

    def _on_signal(self, number: int, frame: Any) -> None:
        self._signal = number
        self._wanted.set()

    def _watch_stdin(self) -> None:
        try:
            while os.read(0, 4096):
                pass
        except OSError:
            pass  # closed already
        self._wanted.set()


def main() -> None:
    keep_freed()
    prepare_libraries()
    key = os.environ.pop(KEY_VARIABLE, "")
    if not key:
        raise SystemExit("This command is internal. To run a server, use `inferdeck serve`.")
    sender = LogSender()  # to the window
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(sender)
    faults = catch_faults()
    ending = Ending()
    ending.watch()
    code = serve(key, ending)
    if faults is not None:
        faulthandler.disable()
        faults.close()
        Path(faults.name).unlink(missing_ok=True)
    ending.leave(code)


def serve(key: str, ending: Ending) -> int:
    """Serve the window until `ending`."""
    thread = EngineThread(lambda event: engine_client.on_event(event),
                          snapshot_interval_s=SNAPSHOT_INTERVAL_S)  # fmt: skip
    engine_client = EngineClient(
        thread.submit, thread.cancel_load, PACE_S, lambda: thread.pulse
    )
    options = ServerOptions(port=0, api_key=key, limits=LIMITS, grace_s=0.0, trusts_paths=True)
    server = ApiServer(engine_client, options)
    server.start()
    thread.start()
    print(ready_line(Ready(int(server.url.rsplit(":", 1)[1]), os.getpid())), flush=True)
    while not ending.wait(_LOOK_S):
        if not server.is_running or not thread.is_alive():
            what = "engine thread" if server.is_running else "server"
            log.error("The %s ended unexpectedly.", what)
            return 1
    thread.stop(STOP_S)
    server.stop()
    return 0


if __name__ == "__main__":
    main()
