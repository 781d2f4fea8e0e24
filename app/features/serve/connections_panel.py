"""`ConnectionsPanel`: the list of engines, and the form of the selected one: a connection to a
server that others run, or an engine that this window runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import QListWidget, QListWidgetItem, QWidget

from app.clients.connection import (
    Connection,
    Problem,
    check,
    new_connection,
    suggested_name,
    without_credentials,
)
from app.clients.target import LinkState, Probe, Target
from app.features.serve.connection_form import ConnectionForm
from app.features.serve.connections import ConnectionStore, probe
from app.features.serve.launch_panel import LaunchPanel
from app.features.serve.parts import ScrolledForm
from app.link.tasks import Task, run_task
from app.managed.launch import Launch
from engine.errors import ErrorInfo
from widgets.controls.keys import LocalKeys
from widgets.controls.layouts import STRETCH, button, dressed, hbox, label, stack, vbox
from widgets.controls.notice import Toast
from widgets.theme.theme import SPACE_1, SPACE_2, restyle

ROWS = 5
EMPTY = "No connections"
MOVED = "API key moved from the URL to this field."


class ConnectionsPanel(QWidget):
    """`toast`: offers to undo a deletion. make_launches: of the form of an engine to run, made when
    it is first shown."""

    saved = Signal(object)  # Connection

    def __init__(
        self, store: ConnectionStore, toast: Toast, make_launches: Callable[[], LaunchPanel]
    ) -> None:
        super().__init__()
        self._store, self._toast, self._make_launches = store, toast, make_launches
        self._chosen = ""  # id; "" for a new one
        self._task: Task | None = None
        self._found: tuple[Target, Probe] | None = None  # who answered last
        self._refused = ""  # id of the connection whose test failed, as it is saved
        self.list = dressed(QListWidget(), "Connections")
        self.list.setFixedHeight(ROWS * (self.fontMetrics().height() + SPACE_2) + SPACE_2)
        self.add = button("Connect…", self.begin, "Add a server that is running already")
        self.run = button("Run…", self.begin_launch, "Start vLLM, SGLang or another server here")
        self.delete_button = button(
            "Delete", self.delete, "Delete this connection (Delete key); can be undone"
        )
        self.form = ConnectionForm()
        self.title = label(role="title")
        self._forms = stack(ScrolledForm(self.form, "Engine"))
        vbox(
            self.list, hbox(self.add, self.run, STRETCH, self.delete_button), SPACE_1, self.title,
            (self._forms, 1), of=self, spacing=SPACE_1,
        )  # fmt: skip
        self.list.currentRowChanged.connect(self._on_row)
        LocalKeys(self.list, {"Del": self.delete})
        self.form.edited.connect(self._on_edited)
        self.form.test_wanted.connect(self.test)
        self.form.save_wanted.connect(self.save)
        store.changed.connect(self._fill)
        store.keys.arrived.connect(self._on_key)
        store.keys.problem_changed.connect(self._renew)
        self._fill()

    @cached_property
    def launches(self) -> LaunchPanel:
        made = self._make_launches()
        self._forms.addWidget(made)
        made.started.connect(self._on_started)
        return made

    # What the user does ------------------------------------------------------------------------

    @property
    def chosen(self) -> Connection | None:
        return self._store.find(self._chosen)

    def choose(self, connection_id: str) -> None:
        ids = [one.id for one in self._store.connections]
        if connection_id in ids:
            self.list.setCurrentRow(ids.index(connection_id))

    def begin(self) -> None:
        self.list.setCurrentRow(-1)
        self._show(None)
        self.form.name.setFocus()

    def begin_launch(self, model: str = "", settings: Mapping[str, str] | None = None) -> None:
        """Run an engine, with this model and these flags."""
        self.list.setCurrentRow(-1)
        self._show(None)
        self.launches.show_engine("", Launch(model=model, settings=dict(settings or {})))
        self._forms.setCurrentWidget(self.launches)
        self._renew()

    def test(self) -> None:
        """Probe the typed address."""
        if self._take_credentials():
            return
        _, url, key, _ = self.form.values
        address = [p for p in check("-", url, ()) if p.field == "base_url"]
        if address:
            self.form.show_problems(address)
            return
        if self._task is not None:
            self._task.cancel()
        target = Target(url, key or None)
        self.form.say(f"Connecting to {url}", "loading")
        self.form.test.setEnabled(False)
        self._task = run_task(
            self, partial(probe, target), partial(self._on_probe, target), self._on_no_probe
        )

    def save(self) -> None:
        """Save the form where valid, then probe."""
        if self._take_credentials():
            return
        name, url, key, model = self.form.values
        others = self._store.beside(self._chosen)
        if url and not name:
            name = suggested_name(url, others)
            self.form.name.setText(name)
        problems = check(name, url, others)
        if problems:
            self._renew(problems)
            return
        known = self.chosen
        made = _with(known or new_connection(name, url), name, url, model)
        found = self._found
        is_found = found is not None and found[0] == Target(url, key or None)
        if found is not None and is_found:
            made = _recognised(made, found[1])
        self._chosen = made.id
        self._store.keep(made, key)
        self._fill()
        self._renew()
        self.saved.emit(made)
        if not is_found:
            self.test()

    def delete(self) -> None:
        gone = self.chosen
        if gone is None:
            return
        place = self._store.delete(gone.id)
        self._toast.show_message(
            f"Deleted connection “{gone.name}”.", "Undo",
            partial(self._restore, gone, place), partial(self._store.forget, gone),
        )  # fmt: skip

    def _on_started(self, connection_id: str) -> None:
        self._chosen = connection_id
        self._fill()

    def _restore(self, connection: Connection, place: int) -> None:
        self._store.restore(connection, place)
        self.choose(connection.id)

    # Showing -----------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Update the list; keep the selection."""
        connections = self._store.connections
        ids = [one.id for one in connections]
        row = ids.index(self._chosen) if self._chosen in ids else -1
        with QSignalBlocker(self.list):
            self.list.clear()
            for one in connections:
                QListWidgetItem(one.name, self.list).setToolTip(f"{one.base_url}\n{one.kind}")
            if not connections:
                QListWidgetItem(EMPTY, self.list).setFlags(Qt.ItemFlag.NoItemFlags)
            self.list.setCurrentRow(row)
        if row < 0 and self._chosen:
            self._show(None)
        self._renew()

    def _on_row(self, row: int) -> None:
        connections = self._store.connections
        if 0 <= row < len(connections):
            self._show(connections[row])

    def _show(self, connection: Connection | None) -> None:
        self._forget_test()
        self._found = None
        self._chosen = connection.id if connection is not None else ""
        launch = self._store.launch(self._chosen)
        if launch is None:
            self._forms.setCurrentIndex(0)
        else:
            self.launches.show_engine(self._chosen, launch)
            self._forms.setCurrentWidget(self.launches)
        if connection is None:
            self.form.show_values("", "", "", "")
        else:
            key = self._store.key(connection)
            self.form.show_values(connection.name, connection.base_url, key, connection.model)
            self._store.keys.fetch(connection.key_name)
        self._renew()

    def _on_key(self, name: str) -> None:
        chosen = self.chosen
        if chosen is not None and chosen.key_name == name and not self.form.key.isModified():
            self.form.key.setText(self._store.key(chosen))

    def _on_edited(self) -> None:
        self._forget_test()
        self._renew()

    def polled(self, connection_id: str, state: LinkState) -> None:
        """A server that answers its card is no longer one whose test failed."""
        if connection_id == self._refused and state is LinkState.LIVE:
            self._forget_test()

    def _forget_test(self) -> None:
        self._refused = ""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.form.say("", "idle")
        self.form.test.setEnabled(True)

    def _take_credentials(self) -> bool:
        """Move a key from the address to its field."""
        _, url, key, _ = self.form.values
        clean, found = without_credentials(url)
        if clean == url:
            return False
        self.form.url.setText(clean)
        if found and not key:
            self.form.key.setText(found)
        self.form.show_problems((), MOVED)
        return True

    def _renew(self, problems: list[Problem] | None = None) -> None:
        name, url, key, model = self.form.values
        chosen = self.chosen
        is_launch = self._forms.currentIndex() > 0
        title = "Run an engine" if is_launch else "New connection"
        self.title.setText(chosen.name if chosen is not None else title)
        self.form.show_problems(problems or (), self._store.keys.problem if key else "")
        self.delete_button.setEnabled(chosen is not None)
        written = chosen is None or (name, url, key, model) != (
            chosen.name, chosen.base_url, self._store.key(chosen), chosen.model
        )  # fmt: skip
        self.form.save.setText("Save" if chosen is not None else "Add")
        self.form.save.setEnabled(bool(url) and written)
        restyle(self.form.save, kind="primary" if self.form.save.isEnabled() else "")

    # Asking ------------------------------------------------------------------------------------

    def _on_probe(self, target: Target, probe: Probe) -> None:
        self._task = None
        self.form.test.setEnabled(True)
        self._found = target, probe
        self.form.show_probe(probe)
        chosen = self.chosen
        if chosen is not None and chosen.base_url == target.base_url:
            self._store.keep(_recognised(chosen, probe))

    def _on_no_probe(self, error: ErrorInfo) -> None:
        self._task = None
        self.form.test.setEnabled(True)
        chosen, (_, url, key, _) = self.chosen, self.form.values
        if chosen is not None and (url, key) == (chosen.base_url, self._store.key(chosen)):
            self._refused = chosen.id
        self.form.say(error.cause, "error", error.remedy)


def _with(connection: Connection, name: str, url: str, model: str) -> Connection:
    is_same = connection.base_url == url
    return replace(
        connection, name=name, base_url=url, model=model,
        server_type=connection.server_type if is_same else None,
        version=connection.version if is_same else "",
    )  # fmt: skip


def _recognised(connection: Connection, probe: Probe) -> Connection:
    return replace(connection, server_type=probe.server_type, version=probe.version)
