"""The life of a real vLLM under the window: start, chat, bench, change, kill, restart, stop.

    python -m tests.benchmarks.managed --python /opt/vllm/bin/python [--model DIR]
        [--environment NAME=VALUE ...] [--setting=--flag=value ...] [--parallel 2] [--ssh]

For the CPU build: --environment VLLM_TARGET_DEVICE=cpu VLLM_CPU_KVCACHE_SPACE=1, and for two shards
on two cores "VLLM_CPU_OMP_THREADS_BIND=0|1", without which vLLM refuses them on one NUMA node.

Prints one line a step with its seconds, then one JSON object; ends with 1 where a step failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from app.paths import starter_model
from tests.app.managed.conftest import Sshd

WAIT_S = 400.0
SAID_S = 5.0
"""Within which a killed engine must be said."""
STEP_MS = 20
QUESTION = "What is a KV cache?"
BENCH = ("--input-len", "64", "--output-len", "32", "--num-requests", "16", "--concurrency", "4")


class Life:
    """One window and the engine that it runs."""

    def __init__(self, args: argparse.Namespace, sshd: Sshd | None) -> None:
        from app.main.application import Application
        from app.main.start import make_application
        from app.managed.launch import Launch, Place

        self._sshd = sshd
        self._app = make_application()
        self._window = Application(self._app)
        self._window.show()
        self._page = self._window.pages.server
        self._engines = self._page.engines
        pairs = (text.partition("=") for text in args.environment)
        given = (text.partition("=") for text in args.setting)
        self._launch = Launch(
            model=args.model, interpreter=args.python,
            environment={name: value for name, _, value in pairs},
            settings={flag: value for flag, _, value in given},
            place=Place.SSH if sshd else Place.HERE, host="127.0.0.1" if sshd else "",
        )  # fmt: skip
        self._known = ""
        self.seconds: dict[str, float] = {}
        self.figures: dict[str, Any] = {}

    def close(self) -> None:
        self._window.shutdown()

    def run(self, parallel: int) -> None:
        self._step("settings", self._read_settings)
        self._step("start", self._start)
        self._step("chat", self._chat)
        self._step("bench", self._bench)
        self._step("change", lambda: self._change({"--max-num-seqs": "4"}))
        self._step("kill", self._kill)
        self._step("restart", self._restart)
        self._step("kill supervisor", self._kill_supervisor)
        self._step("restart again", self._restart)
        if parallel > 1:
            sizes = {"--tensor-parallel-size": str(parallel)}
            self._step("tensor parallel", lambda: self._change(sizes))
            self._step("chat again", self._chat)
        self._step("stop", self._stop)

    def _step(self, name: str, do: Callable[[], None]) -> None:
        began = time.perf_counter()
        do()
        self.seconds[name] = round(time.perf_counter() - began, 2)
        print(f"{name}: {self.seconds[name]} s", flush=True)

    # The steps -----------------------------------------------------------------------------------

    def _read_settings(self) -> None:
        from app.features.serve.launch_panel import READING

        self._page.run_with(self._launch.model)
        panel = self._page.connections.launches
        panel.form.show_launch("", self._launch)
        panel.form.place_edited.emit()
        shown = panel.form.flags
        self._wait(lambda: shown.note.text() not in ("", READING.format(self._launch.kind.value)))
        flags = shown.flags
        assert flags is not None and not shown.problem, shown.note.text()
        self.figures |= {"version": flags.version, "num_flags": len(flags.flags)}

    def _start(self) -> None:
        panel = self._page.connections.launches
        panel.start.click()
        self._known = self._page.store.connections[-1].id
        self._until_used()

    def _until_used(self) -> None:
        stages: list[str] = []

        def is_used() -> bool:
            text, kind = self._engines.text(self._known)
            assert kind != "error", text
            if text not in stages:
                stages.append(text)
            is_there = self._engines.is_ready(self._known) and self._window.bridge.is_ready
            return is_there and self._page.switch.used_id == self._known

        self._wait(is_used)
        self.figures.setdefault("stages", stages)

    def _chat(self) -> None:
        from app.features.chat.conversation import State

        self._window.pages.chat_page.new_chat()
        self._window.pages.chat_page.send(QUESTION)
        chat = self._window.pages.chat.current
        self._wait(lambda: len(chat.path()) == 2 and not chat.path()[-1].state.is_open)
        reply = chat.path()[-1]
        assert reply.state is State.COMPLETE and reply.text, reply
        self.figures["reply_characters"] = len(reply.text)

    def _bench(self) -> None:
        """From outside, while the window shows the same engine."""
        connection = self._page.store.find(self._known)
        assert connection is not None
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "bench.json"
            words = [sys.executable, "-m", "app", "bench", "--base-url", connection.base_url]
            child = subprocess.Popen(
                [*words, *BENCH, "--output-json", str(file)], stdout=subprocess.DEVNULL
            )
            self._wait(lambda: child.poll() is not None)
            assert child.returncode == 0
            found = json.loads(file.read_text())
        run = next(iter(found["results"].values())) if "results" in found else found
        names = ("completed", "output_tokens_per_s", "ttft_ms", "itl_ms")
        self.figures["bench"] = {name: run.get(name) for name in names}

    def _change(self, settings: dict[str, str]) -> None:
        from msgspec.structs import replace

        before = self._engine()
        self._launch = replace(self._launch, settings={**self._launch.settings, **settings})
        self._engines.apply(self._known, self._launch)
        self._wait(lambda: not before.is_running())
        self._until_used()
        words = self._engine().cmdline()
        assert all(f"{flag}={text}" in words for flag, text in settings.items())

    def _kill(self) -> None:
        killed = self._engine()
        workers = killed.children(recursive=True)
        killed.kill()
        self._until_said()
        self._wait(lambda: not any(_is_alive(worker) for worker in workers), SAID_S)

    def _kill_supervisor(self) -> None:
        """Its engine ends by itself, there as well as here."""
        engine = self._engine()
        everyone, supervisor = [engine, *engine.children(recursive=True)], engine.parent()
        assert supervisor is not None
        supervisor.kill()
        self._until_said()
        self._wait(lambda: not any(_is_alive(one) for one in everyone), SAID_S)

    def _until_said(self) -> None:
        key = f"managed-{self._known}"
        self._wait(lambda: self._window.notices.notice(key) is not None, SAID_S)

    def _restart(self) -> None:
        self._engines.start(self._known)
        self._until_used()

    def _stop(self) -> None:
        engine = self._engine()
        everyone = [engine, *engine.children(recursive=True)]
        self._engines.stop(self._known)
        self._wait(lambda: not any(_is_alive(one) for one in everyone))
        self._wait(lambda: not self._engines.is_running(self._known))
        assert not self._page.switch.is_elsewhere

    # ---------------------------------------------------------------------------------------------

    def _engine(self) -> psutil.Process:
        """The server's process, below its supervisor, which sshd runs at its place."""
        names = ("vllm.entrypoints.cli.main", "sglang.launch_server")
        pid = self._sshd.process.pid if self._sshd else self._engines.pid(self._known)
        return next(
            one for one in psutil.Process(pid).children(recursive=True)
            if "-c" not in one.cmdline() and any(name in one.cmdline() for name in names)
        )  # fmt: skip

    def _wait(self, condition: Callable[[], bool], limit_s: float = WAIT_S) -> None:
        end = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end:
                text, _ = self._engines.text(self._known)
                raise TimeoutError(f"{limit_s:.0f} s are over; the engine: {text}")
            self._app.processEvents()
            time.sleep(STEP_MS / 1000)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def begin_sshd(folder: Path) -> Sshd:
    """On the loopback, with a key of its own, which every ssh of the window uses."""
    from app.managed import arguments, command

    sshd = Sshd(folder)
    command.SSH = arguments.SSH = (*command.SSH, *sshd.options)
    return sshd


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", required=True, help="an interpreter that has vLLM")
    parser.add_argument("--model", default=str(starter_model()))
    parser.add_argument("--environment", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--setting", action="append", default=[], metavar="--FLAG=VALUE")
    parser.add_argument("--parallel", type=int, default=2, help="tensor parallel size; 1 for none")
    parser.add_argument("--ssh", action="store_true", help="through an sshd of its own")
    args = parser.parse_args()
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"INFERDECK_DATA_DIR": folder, "INFERDECK_CONFIG_DIR": folder}
        sshd = begin_sshd(Path(folder)) if args.ssh else None
        life = Life(args, sshd)
        try:
            life.run(args.parallel)
        finally:
            life.close()
            if sshd is not None:
                sshd.close()
            print(json.dumps({"seconds": life.seconds, **life.figures}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
