"""`LaunchForm`: an engine to run: which, where, with which model and settings."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import QCheckBox, QComboBox, QLineEdit, QListWidget, QListWidgetItem, QWidget

from app.clients.connection import Connection
from app.clients.target import ServerType
from app.features.quantize.fields import Field
from app.features.serve.flag_rows import FlagRows
from app.features.serve.parts import show_problems
from app.managed.interpreters import Interpreter
from app.managed.launch import KINDS, MODEL, PORT, Launch, Place, parse_environment
from app.server.options import Problem
from widgets.controls.combo import ElidedCombo
from widgets.controls.layouts import dressed, vbox
from widgets.theme.theme import SPACE_2, SPACE_3

SERVER_ROWS = 4
NO_SERVERS = "No servers. Connect to one or run one first."
STAYS = "Keep running when the window closes"
STAYS_TIP = "Inferdeck reconnects at the next start"
TRACES = "Queue and prefill time of each reply"
TRACES_TIP = "vLLM sends OpenTelemetry traces to this window"
COMMAND_TITLE = "Custom command"
PLACES = {
    Place.HERE: "This machine", Place.SSH: "SSH host", Place.CONTAINER: "Container image",
}  # fmt: skip


class LaunchForm(QWidget):
    """`edited`: a field or a setting. `place_edited`: what decides which flags there are."""

    edited = Signal()
    place_edited = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.name = _line("Name", "e.g. vLLM, 4-bit")
        self.kind = dressed(ElidedCombo(), "Engine")
        for kind in KINDS:
            self.kind.addItem(COMMAND_TITLE if kind is KINDS[-1] else kind.value, kind)
        self.model = _line("Model", "folder or model id (owner/name)")
        self.servers = dressed(QListWidget(), "Servers")
        self.servers.setFixedHeight(SERVER_ROWS * (self.fontMetrics().height() + SPACE_2) + SPACE_2)
        self.place = dressed(ElidedCombo(), "Run on")
        for place, title in PLACES.items():
            self.place.addItem(title, place)
        self.host = _line("Host", "user@host, with your keys and known_hosts")
        self.image = _line("Image", "e.g. vllm/vllm-openai:latest")
        self.python = dressed(QComboBox(), "Python")
        self.python.setEditable(True)
        policy = QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon
        self.python.setSizeAdjustPolicy(policy)
        line = self.python.lineEdit()
        assert line is not None
        self._python_line = dressed(line, "Python")
        self._python_line.setPlaceholderText("interpreter or virtual environment")
        self.command = _line("Command", f"server --model {MODEL} --port {PORT}")
        self.environment = _line("Environment", "NAME=value, separated by spaces")
        self.stays = dressed(QCheckBox(STAYS), tip=STAYS_TIP)
        self.traces = dressed(QCheckBox(TRACES), tip=TRACES_TIP)
        self.flags = FlagRows()
        self.fields: dict[str, tuple[Field, QLineEdit]] = {
            name: (Field(title, shown), line) for name, title, shown, line in (
                ("name", "Name", self.name, self.name),
                ("model", "Model", self.model, self.model),
                ("host", "Host", self.host, self.host),
                ("image", "Image", self.image, self.image),
                ("interpreter", "Python", self.python, self._python_line),
                ("command", "Command", self.command, self.command),
                ("environment", "Environment", self.environment, self.environment),
            )
        }  # fmt: skip
        self._settings = Field("Settings", self.flags)
        self._servers = Field("Servers behind the router", self.servers)
        self._place = Field("Run on", self.place)
        fields = {name: field for name, (field, _) in self.fields.items()}
        vbox(
            Field("Engine", self.kind), fields["model"], self._servers, self._place,
            fields["host"], fields["image"], fields["interpreter"], fields["command"],
            fields["name"], fields["environment"], self.stays, self.traces,
            self._settings,
            of=self, spacing=SPACE_3,
        )  # fmt: skip
        self._connect()
        self._fit()

    def _connect(self) -> None:
        for _, line in self.fields.values():
            line.textEdited.connect(lambda _: self.edited.emit())
        for line in (self._python_line, self.host, self.image):
            line.editingFinished.connect(self.place_edited)
        self.python.activated.connect(lambda _: self._on_place())
        for choice in (self.kind, self.place):
            choice.activated.connect(lambda _: self._on_place())
        self.flags.changed.connect(self.edited)
        for box in (self.stays, self.traces):
            box.toggled.connect(lambda _: self.edited.emit())
        self.servers.itemChanged.connect(lambda _: self.edited.emit())

    # What is written -----------------------------------------------------------------------------

    @property
    def launch(self) -> Launch:
        place = Place(self.place.currentData())
        return Launch(
            kind=ServerType(self.kind.currentData()), model=self.model.text().strip(),
            place=place, interpreter=self.python.currentText().strip(),
            stays=self.stays.isChecked() and place is not Place.SSH,
            host=self.host.text().strip(), image=self.image.text().strip(),
            command=self.command.text().strip(), settings=dict(self.flags.values),
            environment=parse_environment(self.environment.text()) or {},
            traces=self.traces.isChecked(),
            replicas=tuple(one.base_url for one in self.chosen_servers),
        )  # fmt: skip

    @property
    def chosen_servers(self) -> list[Connection]:
        """Those that are checked."""
        items = map(self.servers.item, range(self.servers.count()))
        chosen = (one for one in items if one.checkState() is Qt.CheckState.Checked)
        return [one.data(Qt.ItemDataRole.UserRole) for one in chosen]

    @property
    def problems(self) -> list[Problem]:
        """Of what is written, without the name."""
        found = self.launch.problems()
        if parse_environment(self.environment.text()) is None:
            found.append(Problem("environment", "Use the form NAME=value, separated by spaces."))
        return found

    def show_launch(self, name: str, launch: Launch) -> None:
        """Show without a signal."""
        with QSignalBlocker(self):
            self.name.setText(name)
            self.kind.setCurrentIndex(self.kind.findData(launch.kind))
            self.place.setCurrentIndex(self.place.findData(launch.place))
            self.model.setText(launch.model)
            self.host.setText(launch.host)
            self.image.setText(launch.image)
            self.python.setEditText(launch.interpreter)
            self.command.setText(launch.command)
            self.environment.setText(_variables_text(launch.environment))
            self.flags.show_values(launch.settings)
            self.stays.setChecked(launch.stays)
            self.traces.setChecked(launch.traces)
            for _, line in self.fields.values():
                line.setCursorPosition(0)  # a long text shows its begin
        self.show_problems(())
        self._fit()

    def show_servers(self, servers: Sequence[Connection], chosen: Collection[str]) -> None:
        """Offer them to a router, with those of the ids `chosen` checked."""
        states = Qt.CheckState
        with QSignalBlocker(self.servers):
            self.servers.clear()
            for one in servers:
                item = QListWidgetItem(one.name, self.servers)
                item.setToolTip(f"{one.base_url}\n{one.kind}")
                item.setData(Qt.ItemDataRole.UserRole, one)
                item.setCheckState(states.Checked if one.id in chosen else states.Unchecked)
            if not servers:
                QListWidgetItem(NO_SERVERS, self.servers).setFlags(Qt.ItemFlag.NoItemFlags)

    def show_interpreters(self, found: Sequence[Interpreter]) -> None:
        """Offer them; keep what is written, else take the first."""
        written = self.python.currentText()
        with QSignalBlocker(self.python):
            self.python.clear()
            for one in found:
                self.python.addItem(one.path)
            self.python.setEditText(written or (found[0].path if found else ""))

    def show_problems(self, problems: Sequence[Problem], key_note: str = "") -> None:
        show_problems(self.fields, problems, key_note)
        said = {problem.field: problem.text for problem in problems}
        self._servers.say_problem(said.get("replicas", ""))

    def say_settings(self, problem: str) -> None:
        """A problem of the settings; "" for none."""
        self._settings.say_problem(problem)

    # ---------------------------------------------------------------------------------------------

    def _on_place(self) -> None:
        self._fit()
        self.edited.emit()
        self.place_edited.emit()

    def _fit(self) -> None:
        """Show the fields of this engine and place."""
        launch = self.launch
        if launch.is_router:  # beside the window: it reaches every server that this reaches
            self.place.setCurrentIndex(self.place.findData(Place.HERE))
            launch = self.launch
        is_image = launch.place is Place.CONTAINER
        shown = {
            "host": launch.place is Place.SSH, "image": is_image,
            "model": not launch.is_router, "command": launch.is_command,
            "interpreter": not launch.is_command and not is_image,
        }  # fmt: skip
        for name, is_shown in shown.items():
            self.fields[name][0].setVisible(is_shown)
        self.stays.setVisible(launch.place is not Place.SSH)
        self.traces.setVisible(launch.kind is ServerType.VLLM and not is_image)
        self._settings.setVisible(not launch.is_command)
        self._servers.setVisible(launch.is_router)
        self._place.setVisible(not launch.is_router)


def _line(name: str, placeholder: str) -> QLineEdit:
    made = dressed(QLineEdit(), name)
    made.setPlaceholderText(placeholder)
    return made


def _variables_text(variables: Mapping[str, str]) -> str:
    return shlex.join(f"{name}={value}" for name, value in variables.items())
