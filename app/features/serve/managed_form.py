"""`ManagedForm`: which engine to run, where, with which model and settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QSignalBlocker, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QComboBox, QLineEdit, QWidget

from app.clients.target import ServerType
from app.features.quantize.fields import Field
from app.features.serve.flag_table import FlagTable
from app.features.serve.parts import StateLine, show_problems
from app.link.tasks import Task, run_task
from app.managed.arguments import Flags, read_flags
from app.managed.interpreters import Interpreter, find
from app.managed.launch import KINDS, PYTHON, Launch, Place, parse_environment
from engine.errors import ErrorInfo
from widgets.controls.layouts import button, dressed, hbox, vbox
from widgets.live.figures import StateKind
from widgets.theme.theme import SPACE_3, restyle

LABELS = {ServerType.OPENAI: "Command"}
PLACES = {Place.HERE: "This machine", Place.SSH: "SSH host", Place.CONTAINER: "Container"}
FIELDS = ("host", "image", "interpreter", "command", "model", "environment")
START, APPLY = "Start", "Apply and restart"


class ManagedForm(QWidget):
    """`start_wanted(Launch, connection id)`: "" for a new engine."""

    start_wanted = Signal(object, str)

    def __init__(self) -> None:
        super().__init__()
        self._connection_id = ""
        self._found: dict[str, list[Interpreter]] = {}
        self._task: Task | None = None
        self.kind = dressed(QComboBox(), "Engine")
        for kind in KINDS:
            self.kind.addItem(LABELS.get(kind, kind.value), kind)
        self.place = dressed(QComboBox(), "Run on")
        for place, text in PLACES.items():
            self.place.addItem(text, place)
        self.lines: dict[str, QLineEdit] = {}
        self.fields: dict[str, tuple[Field, QLineEdit]] = {}
        for name, title, hint in (
            ("host", "SSH host", "user@host; your keys and known_hosts are used"),
            ("image", "Image", "vllm/vllm-openai:latest"),
            ("command", "Command", "server --model {model} --port {port}"),
            ("model", "Model", "folder or Hugging Face name"),
            ("environment", "Environment variables", "CUDA_VISIBLE_DEVICES=0,1"),
        ):
            line = dressed(QLineEdit(), title)
            line.setPlaceholderText(hint)
            line.textEdited.connect(lambda _: self._renew())
            self.lines[name] = line
            self.fields[name] = (Field(title, line), line)
        self.interpreter = dressed(QComboBox(), "Python")
        self.interpreter.setEditable(True)
        self.interpreter.setSizeAdjustPolicy(
            QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon
        )
        path = self.interpreter.lineEdit()
        assert path is not None
        dressed(path, "Python").setPlaceholderText("a Python that has the engine")
        self.fields["interpreter"] = (Field("Python", self.interpreter), path)
        self.flags = FlagTable()
        self.flags.changed.connect(self._renew)
        self.read = button(
            "Read settings", self.read_settings, "List the settings of this engine's own parser"
        )
        self.state = StateLine()
        self.state.hide()
        self.start = button(START, self._on_start, kind="primary")
        vbox(
            Field("Engine", self.kind), Field("Run on", self.place),
            *(self.fields[name][0] for name in FIELDS),
            self.flags, self.state, hbox(self.read, (self.start, 1)), of=self, spacing=SPACE_3,
        )  # fmt: skip
        self.kind.currentIndexChanged.connect(self._on_kind)
        self.place.currentIndexChanged.connect(self._on_kind)
        self.interpreter.editTextChanged.connect(self._on_interpreter)
        self._renew()

    @property
    def _kind(self) -> ServerType:
        return ServerType(self.kind.currentData())  # Qt keeps it as text

    @property
    def _place(self) -> Place:
        return Place(self.place.currentData())

    @property
    def launch(self) -> Launch:
        text: dict[str, Any] = {name: line.text().strip() for name, line in self.lines.items()}
        text["environment"] = parse_environment(text["environment"])
        return Launch(
            kind=self._kind, place=self._place, **text,
            interpreter=self.interpreter.currentText().strip(), settings=self.flags.settings,
        )  # fmt: skip

    def show_launch(self, launch: Launch, connection_id: str = "") -> None:
        """Edit the engine of a connection, or begin a new one."""
        self._connection_id = connection_id
        blocked = [QSignalBlocker(one) for one in (self.kind, self.place, self.interpreter)]
        self.kind.setCurrentIndex(KINDS.index(launch.kind))
        self.place.setCurrentIndex(list(PLACES).index(launch.place))
        self._offer_interpreters()
        self.interpreter.setEditText(launch.interpreter or self.interpreter.currentText())
        del blocked
        for name, line in self.lines.items():
            if name != "environment":
                line.setText(getattr(launch, name))
        variables = (f"{name}={text}" for name, text in launch.environment.items())
        self.lines["environment"].setText(shlex.join(variables))
        self.flags.show_flags(None)
        self.flags.show_settings(launch.settings)
        self._renew()

    def show_model(self, model: str) -> None:
        """Begin a new engine for a model."""
        self.show_launch(Launch(model=model))

    def read_settings(self) -> None:
        """In a task: the engine's import takes seconds to minutes."""
        if self._task is not None:
            self._task.cancel()
        launch = self.launch
        known = self._found.get(launch.kind.value, [])
        version = next((one.version for one in known if one.path == launch.interpreter), "")
        self._say(f"Reading settings from {launch.kind.value}…", "loading")
        self.read.setEnabled(False)
        self._task = run_task(
            self, lambda: read_flags(launch, version), self._on_flags, self._on_no_flags
        )

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._find()

    # -------------------------------------------------------------------------------------------

    def _find(self) -> None:
        kind = self._kind
        if kind in PYTHON and kind.value not in self._found:
            self._found[kind.value] = []
            run_task(self, lambda: find(kind), lambda all_: self._on_found(kind, all_), self._fail)

    def _on_found(self, kind: ServerType, found: list[Interpreter]) -> None:
        self._found[kind.value] = found
        if kind is self._kind:
            written = self.interpreter.currentText()
            self._offer_interpreters()
            if written:
                self.interpreter.setEditText(written)
            self._renew()

    def _offer_interpreters(self) -> None:
        self.interpreter.clear()
        if self._place is Place.HERE:
            found: Sequence[Interpreter] = self._found.get(self._kind.value, ())
            self.interpreter.addItems([one.path for one in found])
        elif self._place is Place.SSH:
            self.interpreter.setEditText("python3")

    def _on_kind(self) -> None:
        self._find()
        with QSignalBlocker(self.interpreter):
            self._offer_interpreters()
        self._on_interpreter()

    def _on_interpreter(self) -> None:
        self.flags.show_flags(None)  # of another version
        self._renew()

    def _on_flags(self, flags: Flags) -> None:
        self._task = None
        self._say("", "idle")
        self.flags.show_flags(flags)
        self._renew()

    def _on_no_flags(self, error: ErrorInfo) -> None:
        self._task = None
        self._fail(error)
        self._renew()

    def _fail(self, error: ErrorInfo) -> None:
        self._say(f"{error.cause} {error.remedy}".strip(), "error")

    def _say(self, text: str, kind: StateKind) -> None:
        self.state.say(text, kind)
        self.state.setVisible(bool(text))

    def _renew(self) -> None:
        launch = self.launch
        has_python = not launch.is_command and launch.place is not Place.CONTAINER
        visible = {
            "host": launch.place is Place.SSH, "image": launch.place is Place.CONTAINER,
            "interpreter": has_python, "command": launch.is_command, "model": True,
            "environment": True,
        }  # fmt: skip
        for name, is_visible in visible.items():
            self.fields[name][0].setVisible(is_visible)
        self.flags.setVisible(has_python)
        problems = launch.problems()
        show_problems(self.fields, [one for one in problems if self._is_written(one.field)], "")
        self.read.setVisible(has_python)
        is_named = bool(launch.interpreter) and not any(one.field == "host" for one in problems)
        self.read.setEnabled(is_named and self._task is None)
        self.start.setText(APPLY if self._connection_id else START)
        self.start.setEnabled(not problems and not self.flags.problem)
        restyle(self.start, kind="primary" if self.start.isEnabled() else "")

    def _is_written(self, name: str) -> bool:
        """An empty field is not yet wrong."""
        return bool(self.fields[name][1].text().strip())

    def _on_start(self) -> None:
        self.start_wanted.emit(self.launch, self._connection_id)
