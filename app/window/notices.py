"""Notices at the top of the page: what happened, why, and what to do. Never modal.

A notice replaces the earlier one of its key: ten failures of one kind are one line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Signal
from PySide6.QtGui import QGuiApplication, QShowEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QLabel,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QWidget,
)

from app.link.row_names import error_by_row
from engine.errors import ErrorInfo
from widgets.controls.buttons import IconButton
from widgets.controls.frames import FittedFrame
from widgets.controls.layouts import STRETCH, button, hbox, vbox, wrapped
from widgets.controls.notice import ICONS
from widgets.theme.fonts import scaled
from widgets.theme.icons import icon_pixmap
from widgets.theme.theme import SPACE_2, SPACE_3, theme_notifier

Kind = Literal["info", "warning", "error"]
COPIED_MS = 1500
STAYS = 0
MOST_OF_WINDOW, LEAST_HEIGHT = 0.22, 110
"""Maximum height as a share of the window, and its minimum in pixels at the default text size."""
MOST_FOR_BUTTONS = 0.35
"""Of a notice's width, beside its text."""


@dataclass(frozen=True, slots=True)
class Notice:
    """cause: one sentence; remedy: what to do; details: for "Copy details"; actions: buttons, each
    also closes the notice; is_sequel: it includes the previous notice of its key."""

    key: str
    cause: str
    remedy: str = ""
    kind: Kind = "info"
    details: str = ""
    actions: tuple[tuple[str, Callable[[], object]], ...] = ()
    is_sequel: bool = False


def error_notice(
    key: str,
    title: str,
    error: ErrorInfo,
    *actions: tuple[str, Callable[[], object]],
    traceback: str = "",
) -> Notice:
    """A notice for an error of the engine or a file."""
    error = error_by_row(error)
    details = "\n".join(part for part in (title, str(error), traceback) if part)
    return Notice(key, f"{title} {error.cause}".strip(), error.remedy, "error", details, actions)


class NoticeArea(QScrollArea):
    """The open notices, newest on top. Hidden while empty; scrolls beyond a share of the window's
    height. `shown(Notice)`: a new one."""

    shown = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._frames: dict[str, NoticeFrame] = {}
        self._info_ms = STAYS
        self._watched: QWidget | None = None  # the window, whose height decides how much there is
        self._inner = QWidget()  # a scroll area filters the events of its widget by itself
        self._inner.setProperty("bare", True)
        self._layout = vbox(of=self._inner)
        self.setWidget(self._inner)
        self.setProperty("bare", True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.hide()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._watched is not self.window():
            if self._watched is not None:
                self._watched.removeEventFilter(self)
            self._watched = self.window()
            self._watched.installEventFilter(self)
        self._fit()

    def event(self, event: QEvent) -> bool:
        """Not in `resizeEvent`: a scroll area that is resized there leaves its viewport as it was,
        and the notices under its edge."""
        done = super().event(event)
        if event.type() == QEvent.Type.Resize:
            self._fit()
        return done

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        laid_out = watched is self._inner and event.type() == QEvent.Type.LayoutRequest
        if laid_out or (watched is self._watched and event.type() == QEvent.Type.Resize):
            self._fit()
        return super().eventFilter(watched, event)

    def _fit(self) -> None:
        """Fit the height to the notices at this width."""
        wanted = self._layout.heightForWidth(self.width())
        if wanted < 0:
            wanted = self._layout.sizeHint().height()
        limit = max(scaled(LEAST_HEIGHT), round(self.window().height() * MOST_OF_WINDOW))
        self.setFixedHeight(min(wanted, limit))

    def show_notice(self, notice: Notice) -> None:
        if self.notice(notice.key) == notice:
            return
        self.dismiss(notice.key)
        frame = NoticeFrame(notice, lambda: self.dismiss(notice.key))
        self._frames[notice.key] = frame
        self._layout.insertWidget(0, frame)
        self.verticalScrollBar().setValue(0)
        self.show()
        if notice.kind == "info" and self._info_ms:
            goes = QTimer(frame, singleShot=True, interval=self._info_ms)  # ends with the frame
            goes.timeout.connect(partial(self.dismiss, notice.key))
            goes.start()
        self.shown.emit(notice)

    def set_info_seconds(self, seconds: int) -> None:
        """How long an info notice stays; 0: until it is closed."""
        self._info_ms = seconds * 1000

    def dismiss(self, key: str) -> None:
        frame = self._frames.pop(key, None)
        if frame is not None:
            frame.hide()
            frame.deleteLater()
            self.setVisible(bool(self._frames))

    def notice(self, key: str) -> Notice | None:
        return self._frames[key].notice if key in self._frames else None

    @property
    def keys(self) -> list[str]:
        return list(self._frames)

    def frame(self, key: str) -> NoticeFrame:
        return self._frames[key]


class NoticeFrame(FittedFrame):
    """The buttons are beside the text; below it where they would take much of its width."""

    def __init__(self, notice: Notice, dismiss: Callable[[], None]) -> None:
        super().__init__()
        self.notice, self._close = notice, dismiss
        self.setProperty("notice", notice.kind)
        self.setAccessibleName(f"{notice.kind}: {notice.cause} {notice.remedy}".strip())
        self._icon = QLabel()
        self._icon.setFixedSize(16, 18)
        self._paint_icon()
        theme_notifier().changed.connect(self._paint_icon)
        self.buttons = [button(text, partial(self._act, do)) for text, do in notice.actions]
        close = IconButton("close", "Close", dismiss)
        close.setAccessibleName("Close notification")
        copy = [self._make_copy()] if notice.details else []
        middle = Qt.AlignmentFlag.AlignVCenter
        self.words = _selectable(f"{notice.cause} {notice.remedy}".strip())
        self._actions = hbox(*((one, 0, middle) for one in (*self.buttons, *copy)), STRETCH)
        self._middle = hbox((self.words, 1), self._actions)
        hbox(
            (self._icon, 0, middle), (self._middle, 1), (close, 0, middle),
            of=self, margins=(SPACE_3, SPACE_2, SPACE_2, SPACE_2),
        )  # fmt: skip

    def fit(self) -> None:
        is_wide = MOST_FOR_BUTTONS * self.width() >= self._actions.sizeHint().width()
        directions = QBoxLayout.Direction
        self._middle.setDirection(directions.LeftToRight if is_wide else directions.TopToBottom)

    def _act(self, do: Callable[[], object]) -> None:
        self._close()
        do()

    def _make_copy(self) -> QPushButton:
        def copy() -> None:
            QGuiApplication.clipboard().setText(self.notice.details)
            made.setText("Copied")
            again.start()

        made = button("Copy details", copy, kind="flat")
        again = QTimer(made, singleShot=True, interval=COPIED_MS)
        again.timeout.connect(lambda: made.setText("Copy details"))
        return made

    def _paint_icon(self) -> None:
        name, color = ICONS[self.notice.kind]
        self._icon.setPixmap(icon_pixmap(name, color, 16, self.devicePixelRatioF()))


def _selectable(text: str) -> QLabel:
    label = wrapped("", text)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
    return label
