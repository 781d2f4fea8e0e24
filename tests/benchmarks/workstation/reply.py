"""Part "reply": a long reply while it is written, at its beginning and at its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from app.main.application import Application
from engine.sampling_params import SamplingParams
from tests.benchmarks.gui_cases import PROMPT, SCRIPT
from tests.benchmarks.report import Goal, at_most
from tests.benchmarks.workstation.chats import REPLY
from tests.benchmarks.workstation.child import run_child
from tests.benchmarks.workstation.meter import (
    STALL_MS,
    Frames,
    LoopMeter,
    frame_ms,
    pause,
    wait_for,
)
from tests.benchmarks.workstation.place import Pace, folders, long_model, workstation

NUM_TOKENS = 20_000
STEP_S = 0.0048  # 200 tokens a second with what the engine itself takes
FAST_S = 0.0005
SPAN_TOKENS = 2000  # of the beginning, and of the end
SMOOTH_MS = 33.0
MOST_GROWTH = 1.25
NOTCH = 120


def measure(options: dict[str, Any]) -> dict[str, Any]:
    span = SPAN_TOKENS // 2 if options["quick"] else SPAN_TOKENS
    pace = Pace(STEP_S)
    text = SCRIPT + REPLY.replace("{number}", "7")
    with (
        folders() as folder,
        workstation(pace, text, long_model(folder, 2 * NUM_TOKENS)) as application,
    ):
        spans = _write(application, pace, span, hurry=options["quick"])
        scrolled = _scroll(application)
    names = [f"the first {span:,} tokens", f"the last {span:,} of {NUM_TOKENS:,}"]
    rows, figures = [], {}
    for name, found in zip(names, spans, strict=True):
        rows.append((name, *Frames(**found["frame_ms"]).cells))
        figures[name] = found
    rows.append(("scrolled, a notch of the wheel", *scrolled.cells))
    first, last = spans
    growth = last["gui_ms_per_s"] / first["gui_ms_per_s"]
    return {
        "title": f"A reply of {NUM_TOKENS:,} tokens: ms of a frame with new text",
        "origin": "the real engine with scripted steps: lists, tables and code in turns",
        "header": ("", "median", "p99", "longest", "frames"),
        "rows": rows,
        "notes": [
            f"{name}: {found['tokens_per_s']:.0f} tokens/s, GUI thread "
            f"{found['gui_ms_per_s']:.0f} ms a second, "
            f"longest wait {found['longest_wait_ms']:.0f} ms, {found['over_50_ms']} over 50 ms"
            for name, found in figures.items()
        ],
        "figures": figures | {"scrolled": scrolled._asdict()},
        "goals": [
            at_most(f"the end of {NUM_TOKENS:,} tokens: {SMOOTH_MS:.0f} ms a frame",
                    last["frame_ms"]["p99"], SMOOTH_MS, " ms (p99)").as_dict(),
            Goal("the GUI thread's share does not grow with the reply", f"{growth:.2f}x",
                 growth <= MOST_GROWTH).as_dict(),
            at_most("no wait for the GUI thread over 100 ms",
                    max(s["longest_wait_ms"] for s in spans), STALL_MS, " ms at most").as_dict(),
            at_most(f"scrolling through it: {SMOOTH_MS:.0f} ms a frame", scrolled.p99, SMOOTH_MS,
                    " ms (p99)").as_dict(),
        ],
    }  # fmt: skip


def _write(
    application: Application, pace: Pace, span: int, *, hurry: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures of the first and the last `span` tokens; what is between is hurried through."""
    chat = application.pages.chat
    meter = LoopMeter()
    count, ended = 0, False

    def outputs(events: Sequence[Any]) -> None:
        nonlocal count, ended
        count += sum(len(event.token_ids) for event in events)
        ended = ended or any(event.finish_reason is not None for event in events)
        meter.note()

    application.bridge.outputs.connect(outputs)

    def figures(until: int) -> dict[str, Any]:
        before, began = count, time.perf_counter()
        meter.restart()
        wait_for(lambda: count >= until or ended, 300.0, 200)
        seconds = time.perf_counter() - began
        return meter.figures(seconds) | {"tokens_per_s": (count - before) / seconds}

    chat.new_conversation()
    chat.current.sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    chat.send(PROMPT)
    wait_for(lambda: count > 20, 60.0)
    first = figures(count + span)
    pace.step_s = FAST_S if hurry else STEP_S
    wait_for(lambda: count >= NUM_TOKENS - span - 200, 300.0, 200)
    pace.step_s = STEP_S
    wait_for(lambda: count >= NUM_TOKENS - span - 20, 60.0)
    last = figures(NUM_TOKENS - 20)
    wait_for(lambda: ended, 60.0)
    pause(500)
    return first, last


def _scroll(application: Application) -> Frames:
    bar = application.pages.chat_page.transcript.verticalScrollBar()
    return Frames.of([frame_ms(lambda: bar.setValue(bar.value() - NOTCH)) for _ in range(200)])


if __name__ == "__main__":
    run_child(measure)
