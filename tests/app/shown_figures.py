"""Every figure on the screen, read as printed, and a client that measures by itself."""

from __future__ import annotations

import itertools
import re
import time
from statistics import median
from typing import NamedTuple

from app.link.bridge import EngineBridge
from app.main.application import Application
from engine import messages as m
from engine.sampling_params import SamplingParams
from widgets.live.charts import LiveCharts
from widgets.live.metric_store import SPAN_S
from widgets.live.strip import StatStrip

PROMPT = tuple(range(200, 248))
UNITS = {"µs": 1e-3, "ms": 1.0, "s": 1e3, "": 1.0}


class Gap(NamedTuple):
    """A latency in ms that began and ended at these times. way_ms: of it, the request's way to its
    engine."""

    began: float
    ended: float
    value: float
    way_ms: float = 0.0


class Client:
    """Sends every request of the window, and measures by its own clock and the times of replies."""

    def __init__(self, bridge: EngineBridge) -> None:
        self._bridge = bridge
        self._numbers = itertools.count()
        self._last: dict[str, float] = {}  # by open request
        self._has_first: set[str] = set()
        self.samples: dict[str, list[Gap]] = {"ttft": [], "itl": []}
        self.concurrency = self.max_tokens = 0
        bridge.outputs.connect(self._take)

    def run(self, concurrency: int, max_tokens: int = 8) -> None:
        """Keep so many requests open; 0: send no more."""
        self.concurrency, self.max_tokens = concurrency, max_tokens
        self._send()

    @property
    def num_open(self) -> int:
        return len(self._last)

    def _send(self) -> None:
        while len(self._last) < self.concurrency:
            request_id = f"client-{next(self._numbers)}"
            prompt = (200 + next(self._numbers) % 200, *PROMPT)
            params = SamplingParams(temperature=0.0, max_tokens=self.max_tokens, ignore_eos=True)
            self._last[request_id] = time.perf_counter()
            self._bridge.add_request(request_id, prompt, params)

    def _take(self, events: list[m.OutputEvent]) -> None:
        for event in events:
            began = self._last.get(event.request_id)
            if began is None:
                continue
            if count := len(event.token_ids):
                key = "itl" if event.request_id in self._has_first else "ttft"
                gap = (event.time - began) * 1e3 / (count if key == "itl" else 1)
                self._has_first.add(event.request_id)
                is_first = key == "ttft" and event.times is not None
                way = (event.times.arrival - began) * 1e3 if is_first else 0.0  # type: ignore
                found = Gap(began, event.time, gap, way)
                self.samples[key] += [found] * (count if key == "itl" else 1)
                self._last[event.request_id] = event.time
            if event.finish_reason is not None:
                del self._last[event.request_id]
        self._send()

    def figures(self, key: str, since: float) -> list[float]:
        """Of samples that began after `since`, in the minute before the newest."""
        return [s.value for s in self.gaps(key, since)]

    def gaps(self, key: str, since: float) -> list[Gap]:
        own = [s for s in self.samples[key] if s.began >= since]
        return [s for s in own if s.ended > own[-1].ended - SPAN_S]


class Read(NamedTuple):
    """A number as printed, and the half of its last digit; None for a dash."""

    where: str
    value: float | None
    half: float


def read(where: str, text: str, unit: str = "") -> Read:
    found = re.search(r"(\d[\d,]*\.?(\d*)) ?(ms|µs|s\b)?", text)
    if found is None:
        assert text.strip() in ("–", ""), f"{where}: {text}"
        return Read(where, None, 0.0)
    scale = UNITS[found[3] or unit]
    half = scale * 0.5 * 10 ** -len(found[2])
    return Read(where, float(found[1].replace(",", "")) * scale, half)


def labels(where: str, charts: LiveCharts, name: str, key: str) -> Read:
    chart = getattr(charts, name)
    chart.redraw()
    unit = chart._header.title.rpartition(", ")[2] if name in ("ttft", "itl") else ""
    texts = {label.label: label.value for label in chart.view.end_labels}
    return read(f"{where} {name}", texts.get(key, "–"), unit)


def header(strip: StatStrip) -> dict[str, str]:
    strip.redraw()
    return {key: value.text for key, value in strip._values.items()}


def screen(application: Application) -> dict[str, list[Read]]:
    """Every number of each quantity, at one time: rates change with the second."""
    store = application.metrics
    while True:
        second = store.last_second(store.time.now())
        found = _read_all(application)
        if store.last_second(store.time.now()) == second:
            return found


def _read_all(application: Application) -> dict[str, list[Read]]:
    shown, own = header(application.strip), application.strip._values
    card = application.pages.server.cards.local
    card.redraw()
    is_here = not application.bridge.is_remote
    charts = {"dock": application.charts, "Tune": application.pages.tune.charts}
    found: dict[str, list[Read]] = {
        "ttft": [read("header", shown["ttft"], own["ttft"].unit)],
        "itl": [read("header", shown["itl"].partition(" / ")[0], own["itl"].unit)],
        "output": [read("header", shown["output"])],
        "kv": [read("header", shown["kv"])],
        "hits": [read("header", shown["hits"])],
    }
    if is_here:
        for key, place in (("ttft", "ttft"), ("itl", "itl"), ("output", "tokens"), ("kv", "kv")):
            found[key].append(read("card", card.figures.value(place).partition(" (")[0]))
    for where, one in charts.items():
        found["ttft"].append(labels(where, one, "ttft", "p50"))
        found["itl"].append(labels(where, one, "itl", "p50"))
        found["kv"].append(labels(where, one, "cache", "used"))
        found["hits"].append(labels(where, one, "cache", "prefix hits"))
        found["output"].append(labels(where, one, "tokens", "out"))
    return found


def memory(application: Application) -> tuple[Read, list[float]]:
    """In GiB: of the header, and the sums of the stacked charts."""
    used = read("header", header(application.strip)["memory"].partition(" / ")[0])
    stacks = [c.memory for c in (application.charts, application.pages.tune.charts)]
    return used, [sum(s.data.history[key].last()[1] for key in s.stacked) for s in stacks]


def check_equal(application: Application) -> None:
    """All numbers agree within what their last digits hide; no figure is shown beside a dash."""
    for quantity, reads in screen(application).items():
        values = [one for one in reads if one.value is not None]
        assert len(values) in (0, len(reads)), (quantity, reads)
        for one, other in itertools.combinations(values, 2):
            assert one.value is not None and other.value is not None
            assert abs(one.value - other.value) <= one.half + other.half + 1e-9, (quantity, reads)


def check_true(application: Application, client: Client) -> None:
    """The latencies are those of the client: within 1 % or 1 ms, and the last digit."""
    store = application.metrics
    assert store.epoch is not None
    shown = screen(application)
    for key in ("ttft", "itl"):
        own = client.figures(key, store.epoch.start)
        assert own, key
        one = shown[key][0]
        assert one.value is not None
        truth = median(own)
        assert abs(one.value - truth) <= max(0.01 * truth, 1.0) + one.half, (key, one, truth)
        assert store.latency(key).num_samples == len(own)


def check_nothing(application: Application) -> None:
    shown = screen(application)
    for key in ("ttft", "itl", "output", "hits"):
        assert {one.value for one in shown[key]} == {None}, (key, shown[key])
