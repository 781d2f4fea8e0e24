"""Two replicas of our server behind a real vllm-router that the window runs.

    python -m tests.benchmarks.routing --python /opt/router/bin/python [--model DIR]
        [--output-json FILE]

1. load     64 requests by least load: how many each replica gets
2. affinity prompts of 8 prefixes, 6 each: prefix cache hits by cache_aware and by round_robin
3. death    64 streams, one replica killed with -9: which fail, how soon it is said and taken out,
            whether new ones are served
4. back     the replica is started again: how soon it gets requests

Prints one line a step, then one JSON object; ends with 1 where a step failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from app.clients.errors import TargetError
from app.clients.http import Fetcher
from app.clients.probe import probe
from app.clients.router import Hits, Replica, ReplicaSum, RouterLook, routed_url
from app.clients.target import ServerType, Target, parse_address
from app.managed.command import LOOPBACK, free_port
from app.paths import starter_model
from tests import ROOT
from tests.benchmarks.streams import Reply, ask, prompts_of

ANSWER_S = 5.0
STEP_MS = 20
TRIES = 6000
"""Of a wait, one each `STEP_MS`: not a span of time, in which this program may have been paused."""
START_CPU_S = 60.0
"""Within which a replica must be ready."""
STREAMS, STREAM_TOKENS = 64, 400
PREFIXES, REQUESTS_EACH, PREFIX_WORDS = 8, 6, 120


class OwnServer:
    """A replica: `inferdeck serve`, with one thread."""

    def __init__(self, model: str) -> None:
        self._model, self.port = model, free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        self.start()

    def start(self) -> None:
        words = [sys.executable, "-m", "app", "serve", "--model", self._model]
        words += ["--port", str(self.port), "--num-threads", "1", "--max-num-seqs", "32"]
        self.process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL)

    def until_ready(self) -> float:
        """Its CPU seconds until then. Neither a span of time nor a number of tries would do: a
        start of 5.5 CPU seconds has taken 168 s on a machine with a load of 15."""
        used_s = 0.0
        while used_s < START_CPU_S:
            try:
                probe(Target(self.url))
                return used_s
            except TargetError:
                assert self.process.poll() is None, f"exit code {self.process.returncode}"
                time.sleep(STEP_MS / 1000)
                times = psutil.Process(self.process.pid).cpu_times()
                used_s = times.user + times.system
        raise TimeoutError(f"no answer from {self.url} after {used_s:.0f} CPU seconds")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Life:
    """A window, its router, and the replicas that others run."""

    def __init__(self, args: argparse.Namespace) -> None:
        from app.clients.connection import new_connection
        from app.main.application import Application
        from app.main.start import make_application

        self.servers = [OwnServer(args.model) for _ in range(2)]
        self._python = args.python
        self._app = make_application()
        self._window = Application(self._app)
        self._window.show()
        self._page = self._window.pages.server
        self.figures: dict[str, Any] = {}
        for number, one in enumerate(self.servers, 1):
            self._page.store.keep(new_connection(f"Replica {number}", one.url))
        self._known = ""

    def close(self) -> None:
        self._window.shutdown()
        for one in self.servers:
            one.kill()

    def run(self) -> None:
        for one in self.servers:
            one.until_ready()
        self._step("start", lambda: self._route("power_of_two"))
        self._step("load", self._load)
        for policy in ("round_robin", "cache_aware"):
            self._step(f"hits by {policy}", partial(self._affinity, policy))
        self._step("least load again", lambda: self._route("power_of_two"))
        self._step("death", self._death)
        self._step("back", self._back)

    def _step(self, name: str, do: Callable[[], None]) -> None:
        began = time.perf_counter()
        do()
        print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)

    # The steps -----------------------------------------------------------------------------------

    def _route(self, policy: str) -> None:
        """Start the router, or change its policy, in its form."""
        from app.managed.launch import Launch

        panel = self._page.connections.launches
        launch = Launch(
            kind=ServerType.ROUTER, interpreter=self._python, settings={"--policy": policy},
            replicas=tuple(one.url for one in self.servers),
        )  # fmt: skip
        if not self._known:
            self._page.run_with()
        panel.form.flags.show_values(launch.settings)
        panel.show_engine(self._known, launch)
        panel.start.click()
        self._known = self._page.store.connections[-1].id
        self._wait(lambda: self._is_used() and self._policy() == policy)

    def _policy(self) -> str:
        """Of the router that runs."""
        return self._page.engines._processes[self._known].launch.settings["--policy"]

    def _is_used(self) -> bool:
        text, kind = self._page.engines.text(self._known)
        assert kind != "error", text
        is_ready = self._page.engines.is_ready(self._known) and self._window.bridge.is_ready
        return is_ready and self._page.switch.used_id == self._known

    def _load(self) -> None:
        replies = self._in_background(prompts_of(STREAMS, 1, 6), 32)
        assert not any(reply.cause for reply in replies), replies
        routed = [one.routed for one in self._replicas()]
        self.figures["routed_by_least_load"] = routed
        assert min(one or 0 for one in routed) >= STREAMS // 4, routed

    def _affinity(self, policy: str) -> None:
        self._route(policy)
        before = self._hits()
        prompts = prompts_of(PREFIXES, REQUESTS_EACH, PREFIX_WORDS)
        replies = self._in_background(prompts, 4, at_once=4)
        assert not any(reply.cause for reply in replies), replies
        now = self._hits()
        hits, queries = now.hits - before.hits, now.queries - before.queries
        self.figures[f"hit_rate_{policy}"] = round(hits / queries, 4)
        self.figures[f"routed_{policy}"] = [one.routed for one in self._replicas()]

    def _death(self) -> None:
        notices, key = self._window.notices, f"replicas-{self._known}"
        killed_at: list[float] = []
        victim = self.servers[0]
        running: list[int] = []

        def kill() -> None:
            running.extend(one.running for one in self._replicas())
            victim.kill()
            killed_at.append(time.perf_counter())

        after = STREAMS * 20, kill
        during = self._start(prompts_of(STREAMS, 1, 6), STREAM_TOKENS, after=after)
        self._wait(lambda: bool(killed_at))
        fresh = self._start(prompts_of(8, 1, 6), 4)
        self._wait(lambda: notices.notice(key) is not None)
        said_s = time.perf_counter() - killed_at[0]
        replies, new = self._result(during), self._result(fresh)
        failed = [reply for reply in replies if reply.cause]
        causes = Counter(re.sub(r"\d+ token", "N token", one.cause) for one in failed)
        self.figures["death"] = {
            "streams": STREAMS, "running_by_replica": running, "failed": len(failed),
            "served": len(replies) - len(failed), "causes": dict(causes),
            "new_served": sum(not reply.cause for reply in new), "new": len(new),
            "said_after_s": round(said_s, 2),
        }  # fmt: skip
        assert 0 < len(failed) <= running[self._place(victim)], self.figures["death"]
        assert all(0 < reply.num_tokens < STREAM_TOKENS for reply in failed)
        assert not any(reply.cause for reply in new), new

    def _back(self) -> None:
        victim = self.servers[0]
        before = self._replicas()[self._place(victim)].routed or 0
        victim.start()
        self.figures["restart_cpu_s"] = round(victim.until_ready(), 1)
        began = time.perf_counter()
        notices, key = self._window.notices, f"replicas-{self._known}"
        self._wait(lambda: notices.notice(key) is None)
        self.figures["said_back_after_s"] = round(time.perf_counter() - began, 2)
        while (self._replicas()[self._place(victim)].routed or 0) <= before:
            self._in_background(prompts_of(8, 1, 6), 4)
        self.figures["routed_again_after_s"] = round(time.perf_counter() - began, 2)

    # Asking --------------------------------------------------------------------------------------

    @property
    def _url(self) -> str:
        connection = self._page.store.find(self._known)
        assert connection is not None
        return connection.base_url

    def _replicas(self) -> tuple[Replica, ...]:
        """As the window has them: the same code on a look of its own."""
        address = parse_address(self._url)
        look = RouterLook(address, 0.0, routed_url(self._url))
        with Fetcher(Target(self._url), address) as fetcher:
            look.look(fetcher, time.perf_counter() + ANSWER_S)
        return look.replicas

    def _place(self, server: OwnServer) -> int:
        return [one.url for one in self._replicas()].index(server.url)

    def _hits(self) -> Hits:
        """Of both replicas, since they started."""
        address, summed = parse_address(self._url), ReplicaSum()
        with Fetcher(Target(self._url), address) as fetcher:
            end = time.perf_counter() + ANSWER_S
            pages = {one.url: fetcher.get(f"{one.url}/metrics", end) for one in self.servers}
        summed.add(time.perf_counter(), pages)
        return Hits(*(sum(column) for column in zip(*summed.hits.values(), strict=True)))

    # The window goes on --------------------------------------------------------------------------

    def _start(self, prompts: Sequence[str], *how: Any, **more: Any) -> Future[list[Reply]]:
        pool = ThreadPoolExecutor(1)
        future = pool.submit(asyncio.run, ask(self._url, prompts, *how, **more))
        pool.shutdown(wait=False)
        return future

    def _result(self, future: Future[list[Reply]]) -> list[Reply]:
        self._wait(future.done)
        return future.result()

    def _in_background(self, prompts: Sequence[str], *how: Any, **more: Any) -> list[Reply]:
        return self._result(self._start(prompts, *how, **more))

    def _told(self) -> str:
        """What the window says of the router."""
        engine, bridge = self._page.engines.text(self._known)[0], self._window.bridge.state
        return f"Router: {engine}; engine in use: {bridge}."

    def _wait(self, condition: Callable[[], bool]) -> None:
        for _ in range(TRIES):
            if condition():
                return
            self._app.processEvents()
            time.sleep(STEP_MS / 1000)
        raise TimeoutError(self._told())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", required=True, help="an interpreter that has vllm-router")
    parser.add_argument("--model", default=str(starter_model()))
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"INFERDECK_DATA_DIR": folder, "INFERDECK_CONFIG_DIR": folder}
        life = Life(args)
        try:
            life.run()
        finally:
            life.close()
            text = json.dumps(life.figures)
            print(text, flush=True)
            if args.output_json:
                args.output_json.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
