"""`LaunchPanel`: the form of an engine to run, with what this machine has for it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace
from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from app.clients.connection import check
from app.clients.target import ServerType
from app.features.serve.connections import ConnectionStore
from app.features.serve.launch_form import LaunchForm
from app.features.serve.managed import ManagedEngines
from app.features.serve.parts import ScrolledForm
from app.link.tasks import LatestTask
from app.managed.arguments import Flags, read_flags
from app.managed.interpreters import Interpreter, checked, find
from app.managed.launch import PYTHON, Launch, Place
from app.server.options import Problem
from engine.errors import ErrorInfo, InferdeckError
from widgets.controls.layouts import button, vbox
from widgets.theme.theme import SPACE_1, restyle

START, APPLY, RUNNING = "Start", "Apply", "Running"
READING = "Reading the settings of {}. The first time takes up to a minute."
ROUTER = "Router"
NOT_FOUND = "No Python environment with {} found. Enter its interpreter or folder."
NO_IMAGE = "Enter a pulled image to see its settings."


class LaunchPanel(QWidget):
    """`started(connection id)`: by the user."""

    started = Signal(str)

    def __init__(self, store: ConnectionStore, engines: ManagedEngines) -> None:
        super().__init__()
        self._store, self._engines = store, engines
        self._chosen = ""  # id; "" for a new one
        self._found: dict[ServerType, list[Interpreter]] = {}
        self._asked: Launch | None = None  # whose flags are shown or on their way
        self._find_task, self._flags_task = LatestTask(self), LatestTask(self)
        self.form = LaunchForm()
        self.start = button(START, self.apply, kind="primary")
        vbox((ScrolledForm(self.form, "Engine to run"), 1), self.start, of=self, spacing=SPACE_1)
        self.form.edited.connect(self._renew)
        self.form.place_edited.connect(self._look)
        engines.changed.connect(lambda _: self._renew())
        store.changed.connect(self._on_store)

    def show_engine(self, connection_id: str, launch: Launch) -> None:
        """Of this connection; "" for a new one."""
        self._chosen = connection_id
        known = self._store.find(connection_id)
        self.form.show_launch(known.name if known is not None else "", launch)
        self._offer_servers(one.id for one in map(self._store.at, launch.replicas) if one)
        self._renew()
        self._look()

    def _on_store(self) -> None:
        """A server came, went or moved."""
        self._offer_servers(one.id for one in self.form.chosen_servers)
        self._renew()

    def _offer_servers(self, ids: Iterable[str]) -> None:
        others = self._store.beside(self._chosen)
        servers = [one for one in others if one.server_type is not ServerType.ROUTER]
        self.form.show_servers(servers, set(ids))

    def apply(self) -> None:
        """Save and start, or restart."""
        launch, name = self.form.launch, self.form.name.text().strip()
        known = self._store.find(self._chosen)
        others = self._store.beside(self._chosen)
        if not name:
            name = _name_of(launch, {one.name for one in others})
            self.form.name.setText(name)
        problems = [*check(name, "http://127.0.0.1", others), *self.form.problems]
        if launch.place is Place.HERE and launch.interpreter and not launch.is_command:
            try:
                launch = replace(launch, interpreter=checked(launch.interpreter, launch.kind).path)
            except InferdeckError as error:
                problems.append(Problem("interpreter", str(error)))
        self.form.show_problems(problems)
        if problems or self.form.flags.problem:
            self._renew_settings()
            return
        if known is None:
            self._chosen = self._engines.add(name, launch).id
        else:
            self._store.update(known.id, name=name)
        self._engines.apply(self._chosen, launch)
        self.form.show_launch(name, launch)
        self._renew()
        self.started.emit(self._chosen)

    # What the machine has ------------------------------------------------------------------------

    def _look(self) -> None:
        """Find Pythons that have the engine, then its flags."""
        kind = self.form.launch.kind
        if kind not in PYTHON:
            return
        if kind in self._found:
            self._on_found(kind, self._found[kind])
            return
        more = [self.form.launch.interpreter]
        self._find_task.run(
            lambda: find(kind, more), lambda found: self._on_found(kind, found), lambda error: None
        )

    def _on_found(self, kind: ServerType, found: list[Interpreter]) -> None:
        self._found[kind] = found
        launch = self.form.launch
        if launch.kind is not kind:
            return
        self.form.show_interpreters(found if launch.place is Place.HERE else ())
        self._read_flags()
        self._renew()

    def _read_flags(self) -> None:
        launch, flags = self.form.launch, self.form.flags
        is_image = launch.place is Place.CONTAINER
        asked = Launch(
            launch.kind, place=launch.place, host=launch.host,
            interpreter="" if is_image else launch.interpreter,
            image=launch.image if is_image else "",
        )  # fmt: skip
        if asked == self._asked:
            return
        self._asked = asked
        self._flags_task.cancel()
        if is_image and not launch.image:
            flags.show_flags(None, NO_IMAGE)
        elif not is_image and not launch.interpreter:
            flags.show_flags(None, NOT_FOUND.format(launch.kind.value))
        elif launch.place is not Place.SSH or launch.host:
            flags.show_flags(None, READING.format(launch.kind.value))
            self._flags_task.run(lambda: _flags(launch), self._on_flags, self._on_no_flags)

    def _on_flags(self, flags: Flags) -> None:
        self.form.flags.show_flags(flags, f"{self.form.launch.kind.value} {flags.version}")
        self._renew()

    def _on_no_flags(self, error: ErrorInfo) -> None:
        self._asked = None  # asked again at the next edit
        self.form.flags.show_flags(None, f"{error.cause} {error.remedy}")

    # Showing -------------------------------------------------------------------------------------

    def _renew(self) -> None:
        launch, is_running = self.form.launch, self._engines.is_running(self._chosen)
        is_same = launch == self._store.launch(self._chosen)
        self.start.setText((RUNNING if is_same else APPLY) if is_running else START)
        self.start.setEnabled(not (is_running and is_same))
        restyle(self.start, kind="primary" if self.start.isEnabled() else "")
        self.form.show_problems(())
        self._renew_settings()

    def _renew_settings(self) -> None:
        self.form.say_settings(self.form.flags.problem)


def _flags(launch: Launch) -> Flags:
    """Runs in a task."""
    if launch.place is not Place.HERE:
        return read_flags(launch)
    found = checked(launch.interpreter, launch.kind)
    return read_flags(launch, found.version)


def _name_of(launch: Launch, taken: set[str]) -> str:
    """ "vLLM chat", with a number if the name is taken."""
    what = Path(launch.model).name or launch.command.partition(" ")[0].rpartition("/")[2]
    kind = "" if launch.is_command else launch.kind.value
    base = name = ROUTER if launch.is_router else f"{kind} {what}".strip()[:50] or "Server"
    number = 1
    while name in taken:
        number += 1
        name = f"{base} ({number})"
    return name
