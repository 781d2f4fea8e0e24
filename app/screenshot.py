"""`inferdeck screenshot`: pictures of the real window, driven with a real model.

The window is started as a user would, but with chats and settings of its own in a temporary
folder; several conversations are asked at once, greedily, and every page is saved in light and
dark.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PySide6.QtCore import QEventLoop, QSize, QTimer
from PySide6.QtWidgets import QApplication, QWidget

from app.engine_bridge import SNAPSHOT_INTERVAL_MS, EngineBridge, EngineState
from app.models.session import LOAD
from app.models.sources import is_starter, shape_sources
from app.panels.server_dialog import ServerDialog
from app.paths import starter_draft, starter_model
from app.settings_store import ThemeMode
from app.suggestions import long_prompts, suggestions_for
from app.window import Application, make_application
from engine.errors import InferdeckError

SIZE = QSize(1600, 1000)
SMALL = QSize(1000, 640)
MODES: tuple[ThemeMode, ...] = ("light", "dark")
LOAD_TIMEOUT_S, REPLY_TIMEOUT_S, ESTIMATE_TIMEOUT_S = 300.0, 300.0, 120.0
NUM_CHATS = 5
MAX_TOKENS = 160
LOAD_WORKLOAD, LOAD_CONCURRENCY, LOAD_REQUESTS = "query-rewrite", 8, 30


class ScreenshotError(InferdeckError):
    """The window did not come to what was to be shown."""


def run(args: argparse.Namespace) -> int:
    """Save the pictures to `args.output`, and print their paths."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    output = Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    model = getattr(args, "model", None) or str(starter_model())
    with _own_folders():
        application = Application(make_application())
        try:
            for file in Photographer(application, output).take_all(model):
                print(file, flush=True)
        finally:
            application.shutdown()
    return 0


@contextmanager
def _own_folders() -> Iterator[None]:
    """The user's chats and settings are neither shown nor touched."""
    names = ("INFERDECK_DATA_DIR", "INFERDECK_CONFIG_DIR")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="inferdeck-screenshot-") as folder:
        for name in names:
            os.environ[name] = folder
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


class Photographer:
    """Drives one window from state to state, and saves what is to be seen."""

    def __init__(self, application: Application, output: Path) -> None:
        self._application = application
        self._window = application.window
        self._chat = application.pages.chat
        self._output = output

    def take_all(self, model: str) -> Iterator[Path]:
        """Yields each file when it is saved."""
        self._application.show()
        self._window.resize(SIZE)
        self._application.open_first_model({"model": model})
        yield from self._in_both_modes("loading", self._window)
        self._wait_for_model()
        yield from self._in_both_modes("empty", self._window)
        self._start_chats(model)
        self._wait(lambda: self._num_words() > 6 * NUM_CHATS, REPLY_TIMEOUT_S, "no reply began")
        self._chat.open(self._oldest_chat())
        yield from self._in_both_modes("generating", self._window)
        yield from self._docks()
        self._wait(lambda: not self._is_generating(), REPLY_TIMEOUT_S, "a reply did not end")
        yield from self._pages()
        yield from self._latency()
        yield from self._tune()
        yield from self._tokens()
        yield from self._recording()
        yield from self._speculation(model)
        yield from self._palette()
        yield from self._in_both_modes("engine-settings", self._window.settings_dock)
        yield from self._open_model()
        self._window.resize(SMALL)
        yield from self._in_both_modes("small", self._window)

    def _docks(self) -> Iterator[Path]:
        """What lies behind the live charts, while the replies are written."""
        for dock, _ in self._window.views.docks:
            dock.raise_()
            yield from self._in_both_modes(dock.objectName(), self._window)
        self._window.charts_dock.raise_()

    def _pages(self) -> Iterator[Path]:
        for index, page in enumerate(self._window.pages):
            self._window.show_page(index)
            yield from self._in_both_modes(page.name.lower(), self._window)

    def _latency(self) -> Iterator[Path]:
        """Where the time of a reply went, in the middle of which a long prompt came."""
        page = self._application.pages.chat_page
        story = self._ask(long_prompts()[0][1], MAX_TOKENS)
        self._wait(lambda: len(story().split()) > 20, REPLY_TIMEOUT_S, "no reply began")
        chosen = self._chat.current.id
        self._ask("Say in a word what this is about: " + story() * 12, 8)
        self._wait(lambda: not self._is_generating(), REPLY_TIMEOUT_S, "a reply did not end")
        self._chat.open(chosen)
        pause(2 * SNAPSHOT_INTERVAL_MS)  # its last steps
        page.latency.show_last()
        yield from self._in_both_modes("latency", self._window)
        page.latency.popover.hide()

    def _tune(self) -> Iterator[Path]:
        """A load, a setting that is changed under it, and what that did."""
        page = self._application.pages.tune
        self._window.show_page([p.name for p in self._window.pages].index("Tune"))
        page.load_bar.choose(LOAD_WORKLOAD)
        page.load_bar.concurrency.setValue(LOAD_CONCURRENCY)
        page.load_bar.toggle()
        done = lambda: page.load.counts.completed
        self._wait(lambda: done() >= LOAD_REQUESTS, REPLY_TIMEOUT_S, "the load was not served")
        panel = self._window.engine_settings
        panel.rows["max_num_seqs"].control.set_value(LOAD_CONCURRENCY // 2)
        panel.rows["max_num_seqs"].value_changed.emit("max_num_seqs", LOAD_CONCURRENCY // 2)
        until = done() + LOAD_REQUESTS
        self._wait(lambda: done() >= until, REPLY_TIMEOUT_S, "the load was not served")
        yield from self._in_both_modes("tune-load", self._window)
        self._window.resize(SMALL)
        yield from self._in_both_modes("tune-small", self._window)
        self._window.resize(SIZE)
        page.load.stop()
        panel.show_command()
        dialog = self._window.findChild(ServerDialog)
        assert dialog is not None
        dialog.choose("TensorRT-LLM")
        yield from self._in_both_modes("server-command", dialog)
        dialog.reject()
        self._window.show_page(0)

    def _tokens(self) -> Iterator[Path]:
        """The tokens of a reply, and one that branches from it."""
        page = self._application.pages.chat_page
        story = self._ask(suggestions_for(str(starter_model()))[0][1], MAX_TOKENS)
        self._wait(lambda: not self._is_generating(), REPLY_TIMEOUT_S, "a reply did not end")
        page.tokens.show_last()
        yield from self._in_both_modes("tokens", self._window)
        page.tokens.popover.branch.click()
        self._wait(lambda: bool(story()), REPLY_TIMEOUT_S, "the branch did not begin")
        self._wait(lambda: not self._is_generating(), REPLY_TIMEOUT_S, "a reply did not end")
        page.tokens.show_last()
        page.tokens.popover.paint_by.setCurrentIndex(2)
        yield from self._in_both_modes("tokens-branch", self._window)
        page.tokens.popover.hide()
        self._chat.edit(self._chat.current.path()[0].id, "What is the KV cache?")
        self._wait(lambda: not self._is_generating(), REPLY_TIMEOUT_S, "a reply did not end")
        page.open_branches()
        yield from self._in_both_modes("branches", self._window)
        page.branches.hide()
    def _recording(self) -> Iterator[Path]:
        """What the flight recorder kept of all this, opened again."""
        flight = self._window.flight
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "2026-11-21-1304.inferdeck-flight"
            flight.save(path)
            self._wait(lambda: "recording" in self._window.notices.keys, 30.0, "nothing was saved")
            flight.open(path)
            self._wait(lambda: bool(flight.windows), 30.0, "the recording did not open")
        self._window.notices.dismiss("recording")
        window = flight.windows[0]
        self._wait(lambda: window.player.position > 0, 30.0, "the recording did not begin")
        self._wait(lambda: not window.player.is_jumping, 30.0, "the recording was not read")
        for dock in (window.views.timeline_dock, window.views.bottleneck_dock):
            dock.raise_()
            yield from self._in_both_modes(f"recording-{dock.objectName()}", window)
        window.close()

    def _speculation(self, model: str) -> Iterator[Path]:
        """The starter pair: what was drafted, what stood, and what it gained."""
        if not is_starter(model):
            return
        bridge, page = self._application.bridge, self._application.pages.chat_page
        bridge.reconfigure(
            speculative_method="draft_model",
            speculative_model=str(starter_draft()),
            speculative_adaptive=False,
        )
        self._wait(lambda: _drafts(bridge), LOAD_TIMEOUT_S, "the draft model was not loaded")
        self._start_chats(model)
        self._wait(lambda: not self._is_generating(), REPLY_TIMEOUT_S, "a reply did not end")
        pause(2 * SNAPSHOT_INTERVAL_MS)
        self._window.views.speculation_dock.raise_()
        yield from self._in_both_modes("speculation", self._window)
        self._window.charts_dock.raise_()
        self._ask("Tell me a story about a fox and a lamp.", MAX_TOKENS)
        self._wait(lambda: not self._is_generating(), REPLY_TIMEOUT_S, "a reply did not end")
        page.tokens.show_last()
        page.tokens.popover.paint_by.setCurrentText("Drafts")
        yield from self._in_both_modes("tokens-drafts", self._window)
        page.tokens.popover.hide()

    def _palette(self) -> Iterator[Path]:
        """Everything that the window can do."""
        palette = self._window.command_palette
        self._window.show_palette()
        palette.field.setText("ch")
        yield from self._in_both_modes("commands", self._window)
        palette.close_and_return()

    def _open_model(self) -> Iterator[Path]:
        self._window.show_open_model()
        dialog = self._window.open_dialog
        assert dialog is not None
        dialog.choose(shape_sources()[0])
        self._wait(lambda: dialog.can_open, ESTIMATE_TIMEOUT_S, "the estimate did not come")
        yield from self._in_both_modes("open-model", dialog)
        dialog.reject()

    # Driving -----------------------------------------------------------------------------------

    def _wait_for_model(self) -> None:
        bridge = self._application.bridge
        self._wait(
            lambda: bridge.state is not EngineState.LOADING, LOAD_TIMEOUT_S, "loading did not end"
        )
        if not bridge.is_ready:
            notice = self._window.notices.notice(LOAD)
            cause = notice.cause if notice is not None else "The model was not loaded."
            raise ScreenshotError(cause, notice.remedy if notice is not None else "")

    def _start_chats(self, model: str) -> None:
        """Ask several conversations at once: they are answered in the same steps."""
        suggested = [prompt for _, prompt in suggestions_for(model)]
        prompts = [*suggested[: NUM_CHATS - 1], long_prompts()[0][1]]
        for prompt in prompts:
            self._ask(prompt, MAX_TOKENS)

    def _ask(self, prompt: str, max_tokens: int) -> Callable[[], str]:
        """Ask in a new conversation; the answer so far."""
        self._chat.new_conversation()
        for name, value in (("temperature", 0.0), ("max_tokens", max_tokens)):
            self._chat.set_sampling(name, value)
        self._chat.send(prompt)
        conversation = self._chat.current
        return lambda: conversation.path()[-1].text

    def _oldest_chat(self) -> str:
        return self._chat.conversations[-1].id

    def _num_words(self) -> int:
        """Words of all replies so far."""
        return sum(len(c.path()[-1].text.split()) for c in self._chat.conversations)

    def _is_generating(self) -> bool:
        return any(c.open_replies for c in self._chat.conversations)

    def _wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise ScreenshotError(
                    f"{what[0].upper()}{what[1:]} within {timeout_s:.0f} s.",
                    "Close other programs, or give a smaller model.",
                )
            pause(20)

    # Saving ------------------------------------------------------------------------------------

    def _in_both_modes(self, name: str, widget: QWidget) -> Iterator[Path]:
        for mode in MODES:
            self._window.set_theme(mode)
            pause(300)  # one redraw of the charts
            file = self._output / f"{name}-{mode}.png"
            if not widget.grab().save(str(file)):
                raise ScreenshotError(f"{file} cannot be written.", "Check folder and disk.")
            yield file


def _drafts(bridge: EngineBridge) -> bool:
    return bridge.config is not None and bridge.config.speculative_method != "off"


def pause(milliseconds: int) -> None:
    """Let the window live. Not QTest.qWait: it keeps Python's lock and starves the engine."""
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    loop.exec()
    QApplication.processEvents()
