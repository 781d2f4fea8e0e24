"""`PlayBar`: play, pause, speed and place of a recording."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QComboBox, QFrame, QHBoxLayout, QLabel, QSlider, QWidget

from app.flight.player import LONGEST_PAUSE_S, Player
from widgets.chat.buttons import IconButton
from widgets.icons import set_icon
from widgets.theme import SPACE_2, SPACE_3, figure_font

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_TICKS_PER_S = 20
_KEYS = ("Ctrl+Left", "Ctrl+P", "Ctrl+Right")


class PlayBar(QFrame):
    """Works by keyboard from anywhere in the window; the slider has the arrow keys."""

    def __init__(self, player: Player, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._player = player
        self.setProperty("panel", True)
        self.setAccessibleName("Playing the recording")
        self.play = IconButton("play", "Play (Ctrl+P)", self.toggle)
        back, on = "One snapshot back (Ctrl+Left)", "One snapshot on (Ctrl+Right)"
        self.back = IconButton("chevron-left", back, lambda: player.step(-1))
        self.on = IconButton("chevron-right", on, lambda: player.step(1))
        for button, keys in zip((self.back, self.play, self.on), _KEYS, strict=True):
            button.setShortcut(keys)
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setRange(0, max(1, round(player.duration * _TICKS_PER_S)))
        self.slider.setPageStep(10 * _TICKS_PER_S)
        self.slider.setAccessibleName("Place in the recording")
        self.slider.setToolTip(
            f"Place in the recording. Pauses of the engine are shortened to {LONGEST_PAUSE_S:g} s."
        )
        self.slider.valueChanged.connect(self._on_slider)
        self.time = QLabel()
        self.time.setFont(figure_font())
        self.speed = QComboBox()
        self.speed.addItems([f"{speed:g}×" for speed in SPEEDS])
        self.speed.setCurrentIndex(SPEEDS.index(1.0))
        self.speed.setAccessibleName("Speed")
        self.speed.setToolTip("Speed of playing")
        self.speed.currentIndexChanged.connect(self._on_speed)
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE_3, SPACE_2, SPACE_3, SPACE_2)
        row.setSpacing(SPACE_2)
        for widget in (self.back, self.play, self.on):
            row.addWidget(widget)
        row.addWidget(self.slider, 1)
        row.addWidget(self.time)
        row.addWidget(self.speed)
        player.moved.connect(self._show_position)
        player.playing_changed.connect(self._show_playing)
        self._show_position(player.position)

    def toggle(self) -> None:
        """Play, or pause."""
        if self._player.is_playing:
            self._player.pause()
        else:
            self._player.play()

    def _on_slider(self, value: int) -> None:
        self._player.seek(value / _TICKS_PER_S)

    def _on_speed(self, index: int) -> None:
        self._player.speed = SPEEDS[index]

    def _show_playing(self, plays: bool) -> None:
        text = "Pause (Ctrl+P)" if plays else "Play (Ctrl+P)"
        set_icon(self.play, "pause" if plays else "play")
        self.play.setToolTip(text)
        self.play.setAccessibleName(text)

    def _show_position(self, position: float) -> None:
        if not self.slider.isSliderDown():
            self.slider.blockSignals(True)
            self.slider.setValue(round(position * _TICKS_PER_S))
            self.slider.blockSignals(False)
        self.time.setText(f"{_clock(position)} of {_clock(self._player.duration)}")


def _clock(seconds: float) -> str:
    """ "1:05.2"."""
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}:{rest:04.1f}"
