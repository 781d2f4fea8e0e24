"""Drives one window from state to state, and takes screenshots in light and dark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from PySide6.QtCore import QEventLoop, QSize, QTimer
from PySide6.QtWidgets import QApplication, QWidget

from app.features.chat.labels import long_prompts, suggestions_for
from app.features.models.session import LOAD
from app.link.bridge import EngineState
from app.link.dispatcher import SnapshotThrottle
from app.main.application import Application
from app.window.settings_store import ThemeMode
from engine.errors import InferdeckError
from engine.units import rough_duration

SMALL = QSize(1000, 640)
MODES: tuple[ThemeMode, ...] = ("light", "dark")
TIMEOUT_S, START_S = 300.0, 30.0
NUM_CHATS = 5
MAX_TOKENS = 160
CALM_MS = 2000
"""Then a timeline shows no step from before."""


class ScreenshotError(InferdeckError):
    """The window did not reach the state to photograph."""


class Camera:
    """Drives one window and saves screenshots to the folder `output`."""

    def __init__(self, application: Application, output: Path, size: QSize) -> None:
        self.application = application
        self.window = application.window
        self.chat = application.pages.chat
        self.output = output
        self.size = size

    # Driving -----------------------------------------------------------------------------------

    def wait_for_model(self) -> None:
        bridge = self.application.bridge
        self.wait(lambda: bridge.state is not EngineState.LOADING, "the model did not load")
        if not bridge.is_ready:
            notice = self.application.notices.notice(LOAD)
            cause = notice.cause if notice is not None else "The model failed to load."
            raise ScreenshotError(cause, notice.remedy if notice is not None else "")

    def start_chats(self, model: str) -> None:
        """Ask in several conversations at once: their replies share steps."""
        suggested = [prompt for _, prompt in suggestions_for(model)]
        prompts = [*suggested[: NUM_CHATS - 1], long_prompts()[0][1]]
        for prompt in prompts:
            self.ask(prompt, MAX_TOKENS)

    def ask(self, prompt: str, max_tokens: int) -> Callable[[], str]:
        """Ask in a new conversation; returns a function for the reply so far."""
        self.chat.new_conversation()
        for name, value in (("temperature", 0.0), ("max_tokens", max_tokens)):
            self.chat.set_sampling(name, value)
        return self.go_on(prompt)

    def go_on(self, prompt: str) -> Callable[[], str]:
        """Ask in the conversation that is shown."""
        self.chat.send(prompt)
        conversation = self.chat.current
        return lambda: conversation.path()[-1].text

    def talk(self, prompts: Sequence[str]) -> Callable[[], str]:
        """Ask in a new conversation, each prompt after the reply to the one before."""
        reply = self.ask(prompts[0], MAX_TOKENS)
        self.wait_for_replies()
        for prompt in prompts[1:]:
            self.go_on(prompt)
            self.wait_for_replies()
        return reply

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
        """Process events until `condition`. Raises ScreenshotError with `what` after the
        timeout."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise ScreenshotError(
                    f"Timed out after {rough_duration(timeout_s)}: {what}.",
                    "Close other programs, or use a smaller model.",
                )
            pause(20)

    def wait_for_replies(self) -> None:
        is_open = lambda: any(c.open_replies for c in self.chat.conversations)
        self.wait(lambda: not is_open(), "generation did not finish")

    def show_view(self, name: str) -> None:
        """A view of the engine, on the Inspect page."""
        self.window.show_widget(self.application.pages.inspect)
        self.application.pages.inspect.show_view(name)
        pause(SnapshotThrottle.LONGEST_MS)  # hidden views follow from the next snapshot on

    # Saving ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Switch to the first theme already: a switch delays the engine's steps, which a picture
        of their times shows."""
        self.window.commands.run(f"theme.{MODES[0]}")
        pause(CALM_MS)

    def take(self, name: str, widget: QWidget | None = None) -> Iterator[Path]:
        """Save `widget`, or the window, in light and dark; yields the files."""
        for mode in MODES:
            self.window.commands.run(f"theme.{mode}")
            pause(300)  # one redraw of the charts
            file = self.output / f"{name}-{mode}.png"
            if not (widget or self.window).grab().save(str(file)):
                raise ScreenshotError(f"Cannot write {file}.", "Check permissions and disk space.")
            yield file


def pause(milliseconds: int) -> None:
    """Process events for a while. Not QTest.qWait: it keeps Python's lock and starves the
    engine."""
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    loop.exec()
    QApplication.processEvents()
