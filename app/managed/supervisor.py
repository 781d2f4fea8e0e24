"""A small program beside an engine: it ends the engine's process group when its input closes.

    window ==stdin== supervisor --- engine --- workers     here: the window's end, even by SIGKILL
    window -- ssh ==stdin== supervisor --- engine ...      there: the end of ssh, or silence

A link that died without a word leaves the input open there, for hours: so the window writes to it
every few seconds, and silence ends the engine.

It runs in any Python 3.8, so it is sent as text. Its exit code is the engine's, 128 + n for a
signal n as in a shell. Of an engine that stays when the window closes it does not read its input,
ends it by a signal alone, and writes the exit code to the log.
"""

from __future__ import annotations

PROGRAM = r"""
import os, select, signal, subprocess, sys, threading, time
grace, stays, silence = float(sys.argv[1]), sys.argv[2] == "stays", float(sys.argv[3])
words, engine = sys.argv[4:], None
def send(number):
    try:
        os.killpg(engine.pid, number) if hasattr(os, "killpg") else engine.kill()
    except OSError:
        pass
def finish():
    while engine is None:  # it is being started
        time.sleep(0.01)
    if engine.poll() is None:
        try:
            engine.send_signal(signal.SIGINT)
            engine.wait(grace)
        except (OSError, subprocess.TimeoutExpired):
            pass
    send(signal.SIGKILL)
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
try:
    engine = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
except OSError as error:
    print(f"supervisor: cannot run {words[0]}: {error.strerror}", flush=True)
    sys.exit(127)
print(f"supervisor: pid {engine.pid}", flush=True)
if not stays:
    threading.Thread(target=watch, daemon=True).start()
while engine.poll() is None:
    time.sleep(0.05)
send(signal.SIGKILL)
code = engine.returncode if engine.returncode >= 0 else 128 - engine.returncode
if stays:
    print(f"supervisor: exit code {code}", flush=True)
sys.exit(code)
"""
STARTED = "supervisor: pid "
CANNOT_RUN = "supervisor: cannot run "
EXIT = "supervisor: exit code "


def supervised(
    python: str, grace_s: float, words: list[str], *, stays: bool = False, silence_s: float = 0.0
) -> list[str]:
    """`words` under a supervisor in `python`. grace_s: seconds between SIGINT and SIGKILL.
    silence_s: without input that end the engine; 0 for never."""
    mode = "stays" if stays else "ends"
    return [python, "-I", "-S", "-c", PROGRAM, str(grace_s), mode, str(silence_s), *words]
