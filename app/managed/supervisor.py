"""A small program beside an engine: it ends the engine's process group when its input closes.

    window ==stdin== supervisor --- engine --- workers            here: the window's end
    window -- ssh ==stdin== supervisor --- engine --- workers     there: the end of ssh, or silence

A link that died without a word leaves the input open there, for hours: so the window writes to it
every few seconds, and silence ends the engine. When the supervisor itself is killed, Linux signals
the engine's group: one end of a pipe is the supervisor's, the other the engine's (fcntl(2),
F_SETSIG). PR_SET_PDEATHSIG would reach the engine alone, and its workers would keep the memory of
the GPUs. macOS and Windows have neither: there an engine outlives a killed supervisor.

It runs in any Python 3.8, so it is sent as text. Its exit code is the engine's, 128 + n for a
signal n as in a shell. Of an engine that stays when the window closes it does not read its input,
ends it by a signal alone, and writes the exit code to the log.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

PROGRAM = r"""
import os, select, shlex, signal, subprocess, sys, threading, time
try:
    import fcntl
except ImportError:
    fcntl = None
grace, stays, silence = float(sys.argv[1]), sys.argv[2] == "stays", float(sys.argv[3])
after, words, engine = shlex.split(sys.argv[4]), sys.argv[5:], None
def send(to, number):
    try:
        to(engine.pid, number)
    except OSError:
        pass
def end_group():
    send(getattr(os, "killpg", os.kill), getattr(signal, "SIGKILL", signal.SIGTERM))
def finish():
    while engine is None:  # it is being started
        time.sleep(0.01)
    end = time.monotonic() + grace
    if engine.poll() is None:
        send(os.kill, signal.SIGINT)
    while engine.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    end_group()
def watch():
    while not silence or select.select([0], [], [], silence)[0]:
        if not os.read(0, 4096):
            break
    else:
        print(f"supervisor: no heartbeat for {silence:g} s, stopping the engine", flush=True)
    finish()
# Before the engine starts: a signal that a shell's background ignores would be ignored there too.
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    number = getattr(signal, name, signal.SIGTERM)
    signal.signal(number, lambda *_: threading.Thread(target=finish, daemon=True).start())
bound = {}
if hasattr(fcntl, "F_SETSIG"):
    given, kept = os.pipe()
    def bind():  # before the engine runs: no moment is left in which nobody would end it
        fcntl.fcntl(given, fcntl.F_SETOWN, -os.getpid())
        # docker's command passes SIGTERM on to its container, which SIGKILL would leave
        fcntl.fcntl(given, fcntl.F_SETSIG, signal.SIGTERM if after else signal.SIGKILL)
        fcntl.fcntl(given, fcntl.F_SETFL, os.O_ASYNC)
    bound = {"preexec_fn": bind, "pass_fds": [given]}
try:
    engine = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True, **bound)
except OSError as error:
    print(f"supervisor: cannot run {words[0]}: {error.strerror}", flush=True)
    sys.exit(127)
print(f"supervisor: pid {engine.pid}", flush=True)
if not stays:
    threading.Thread(target=watch, daemon=True).start()
while engine.poll() is None:
    time.sleep(0.05)
end_group()
if after:
    try:
        subprocess.run(after, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=15)
    except (OSError, subprocess.TimeoutExpired):
        pass
code = engine.returncode if engine.returncode >= 0 else 128 - engine.returncode
if stays:
    print(f"supervisor: exit code {code}", flush=True)
sys.exit(code)
"""
STARTED = "supervisor: pid "
CANNOT_RUN = "supervisor: cannot run "
EXIT = "supervisor: exit code "


def supervised(
    python: str, grace_s: float, words: list[str], *, after: Sequence[str] = (),
    stays: bool = False, silence_s: float = 0.0,
) -> list[str]:  # fmt: skip
    """`words` under a supervisor in `python`. grace_s: seconds between SIGINT and SIGKILL. after: a
    command once they have ended. silence_s: without input that end the engine; 0 for never."""
    mode = "stays" if stays else "ends"
    options = [str(grace_s), mode, str(silence_s), shlex.join(after)]
    return [python, "-I", "-S", "-c", PROGRAM, *options, *words]
