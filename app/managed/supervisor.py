"""A small program beside an engine: it ends the engine's process group when its input closes.

    window ==stdin== supervisor ==pipe== guard             here: the window's end, even by SIGKILL
    window -- ssh ==stdin== supervisor ==pipe== guard      there: the end of ssh, or silence
                                |
                                engine --- workers

A link that died without a word leaves the input open there, for hours: so the window writes to it
every few seconds, and silence ends the engine. The guard is a fork of the supervisor, where the
system has that: when the supervisor is killed, the guard ends the engine in its place.

It runs in any Python 3.8, so it is sent as text. Its exit code is the engine's, 128 + n for a
signal n as in a shell. Of an engine that stays when the window closes it does not read its input,
ends it by a signal alone, and writes the exit code to the log.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

PROGRAM = r"""
import os, select, shlex, signal, subprocess, sys, threading, time
grace, stays, silence = float(sys.argv[1]), sys.argv[2] == "stays", float(sys.argv[3])
after, words, engine = shlex.split(sys.argv[4]), sys.argv[5:], None
signals = [getattr(signal, name, signal.SIGTERM) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
def send(to, pid, number):
    try:
        to(pid, number)
    except OSError:
        return False
    return True
group = getattr(os, "killpg", os.kill)
def interrupt(pid, is_over):
    end = time.monotonic() + grace
    send(os.kill, pid, signal.SIGINT)
    while not is_over() and time.monotonic() < end:
        time.sleep(0.05)
def clear(pid):
    send(group, pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    if after:
        try:
            subprocess.run(after, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, timeout=15)
        except (OSError, subprocess.TimeoutExpired):
            pass
def guard(told):
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for one in range(3):
        os.dup2(nothing, one)
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    said = b""
    while part := os.read(told, 64):
        said += part
    if said and not said.endswith(b"."):  # the supervisor did not come to its end
        interrupt(int(said), lambda: not send(group, int(said), 0))
        clear(int(said))
tell = lambda text: None
if hasattr(os, "fork"):
    told, teller = os.pipe()
    if not os.fork():
        os.close(teller)
        try:
            guard(told)
        finally:
            os._exit(0)
    os.close(told)
    tell = lambda text: os.write(teller, text)
def finish():
    while engine is None:  # it is being started
        time.sleep(0.01)
    if engine.poll() is None:
        interrupt(engine.pid, lambda: engine.poll() is not None)
    send(group, engine.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
def watch():
    while not silence or select.select([0], [], [], silence)[0]:
        if not os.read(0, 4096):
            break
    else:
        print(f"supervisor: no heartbeat for {silence:g} s, stopping the engine", flush=True)
    finish()
# Before the engine starts: a signal that a shell's background ignores would be ignored there too.
for number in signals:
    signal.signal(number, lambda *_: threading.Thread(target=finish, daemon=True).start())
try:
    # told before it runs: no moment is left in which nobody would end it
    first = (lambda: tell(b"%d" % os.getpid())) if hasattr(os, "fork") else None
    engine = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=first
    )
except OSError as error:
    print(f"supervisor: cannot run {words[0]}: {error.strerror}", flush=True)
    tell(b".")
    sys.exit(127)
print(f"supervisor: pid {engine.pid}", flush=True)
if not stays:
    threading.Thread(target=watch, daemon=True).start()
while engine.poll() is None:
    time.sleep(0.05)
clear(engine.pid)
tell(b".")
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
