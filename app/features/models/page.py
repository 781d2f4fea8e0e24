"""The Models page: models on this machine or on the hub on the left, one model on the right.

+------------------------+---------------------------------+
| On this machine | Hub  | Qwen/Qwen3-0.6B                 |
| [ filter or search   ] | facts, precision, context       |
| list                   | memory: weights, KV, activations|
|                        | memory by precision             |
| [Add folder…]          | [Delete]              [Open]    |
+------------------------+---------------------------------+
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Protocol

from PySide6.QtCore import Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QStackedWidget, QWidget

from app.features.models.deletion import Deletion, folder_of
from app.features.models.detail import Action, Detail
from app.features.models.downloads import (
    Download,
    DownloadQueue,
    State,
    actions,
    how_far,
    state_text,
)
from app.features.models.estimate import NOTHING, Estimate, Estimator, Held, estimate
from app.features.models.fit import fits
from app.features.models.hub import Hub
from app.features.models.inspector import HubModel, Inspector, download_text
from app.features.models.library import HubSearch, Library
from app.features.models.welcome import WelcomePage
from app.link.tasks import LatestTask
from app.storage.model_sources import ModelSource, SourceKind, shape_sources
from app.storage.trash import Trash
from app.window.commands import Command
from app.window.settings_store import SettingsStore
from engine.errors import ErrorInfo
from engine.units import bytes_text
from widgets.controls.frames import PageFrame
from widgets.controls.keys import LocalKeys
from widgets.controls.layouts import vbox
from widgets.controls.notice import Toast

NARROW = 620
"""Below this width the list is above the card."""
LIST_WIDTH = 360
HERE, ON_THE_HUB = 0, 1
OPEN, CHAT = "Open", "Chat"
RUN = "Run with vLLM, SGLang…"


class OpenModel(Protocol):
    """What the page asks about the open model."""

    def is_open(self, path: str) -> bool: ...

    def is_open_with(self, path: str, load_format: str, settings: Mapping[str, Any]) -> bool: ...


class ModelsPage(QWidget):
    """`model_chosen`: path, load_format and settings of a model to open; `run_wanted`: path of one
    to run with another engine; `wants_front` when one of its commands should bring it to the
    front."""

    model_chosen = Signal(str, str, object)
    run_wanted = Signal(str)
    wants_front = Signal()

    def __init__(
        self,
        store: SettingsStore,
        queue: DownloadQueue,
        trash: Trash,
        hub: Hub,
        in_use: Callable[[], Held] = lambda: NOTHING,
        session: OpenModel | None = None,
        estimator: Estimator = estimate,
    ) -> None:
        super().__init__()
        self._hub, self._in_use, self._session = hub, in_use, session
        self._estimator = estimator
        self._fit_task = LatestTask(self)
        self.queue = queue
        self.source: ModelSource | None = None
        self.detail = Detail()
        self.library = Library(hub, store, queue)
        self.search = HubSearch(hub, lambda repo: self.library.snapshot_of(repo) is not None)
        self.inspector = Inspector(self.detail.card, store, in_use, estimator, self)
        self.hub_model = HubModel(hub, self.inspector, self._offer, self)
        forms = (("On this machine", self.library), ("Hugging Face Hub", self.search))
        frame = PageFrame(
            "Model location", forms, self.detail,
            left_width=LIST_WIDTH, narrow=NARROW,
        )  # fmt: skip
        self.tabs = frame.tabs
        vbox(frame, of=self, spacing=-1)
        self.toast = Toast(self)
        self.deletion = Deletion(trash, self.toast, self)
        self._connect()

    def _connect(self) -> None:
        for pane in (self.library, self.search):
            pane.source_chosen.connect(self._on_chosen)
            pane.source_opened.connect(lambda _: self._act_on_activation())
        LocalKeys(self.library.list, {"Del": self._delete_chosen})
        self.library.loaded.connect(self.search.refresh)
        self.library.loaded.connect(self._on_loaded)
        self.inspector.looked.connect(self._on_looked)
        self.queue.changed.connect(self._on_download)
        self.queue.gone.connect(self._on_download)
        self.deletion.changed.connect(self._on_deleted)
        self.deletion.failed.connect(self._on_problem)

    # For the window ----------------------------------------------------------------------------

    def commands(self) -> list[Command]:
        return [
            Command(
                "models.hub", "Find model on the hub…", self.show_hub, "File", "Ctrl+Shift+O",
                "search", "model",
            ),
            Command(
                "models.folder", "Add model folder…", self.add_folder, "File",
                icon="folder", section="model",
            ),
            Command(
                "models.refresh", "Refresh models", self.library.reload, "File", "F5",
                "refresh", "model",
            ),
        ]  # fmt: skip

    def start(self) -> None:
        """Start work that waits until the window is shown."""
        self.deletion.purge_leftovers()

    def close_down(self) -> None:
        """Stop downloads (they resume later) and remove deleted models."""
        self.queue.close()
        self.deletion.close()
        self.hub_model.close()

    def show_open(self, path: str) -> None:
        """Mark the open model in the list; "" for none."""
        self.library.list.show_open(path)
        if self.isVisible():
            self.library.list.choose_open()
        self._offer()

    def open_downloaded(self, path: str) -> None:
        """Open a downloaded model with its stored settings."""
        self.model_chosen.emit(path, "auto", None)

    def show_hub(self) -> None:
        self.wants_front.emit()
        self.tabs.setCurrentIndex(ON_THE_HUB)
        self.search.field.setFocus()
        self.search.field.selectAll()

    def add_folder(self) -> None:
        self.wants_front.emit()
        self.tabs.setCurrentIndex(HERE)
        self.library.choose_folder()

    def open_model(self, path: str = "") -> None:
        """Select the model at `path`; without one, the user filters or enters a path."""
        self.wants_front.emit()
        self.tabs.setCurrentIndex(HERE)
        if path:
            self.library.choose_path(path)
        else:
            self.library.filter.setFocus()
            self.library.filter.selectAll()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.library.list.choose_open()
        self.library.reload()  # other programs download as well

    # One model ---------------------------------------------------------------------------------

    def _on_chosen(self, source: ModelSource) -> None:
        self.source = source
        self.hub_model.forget()
        self.detail.show_card()
        if self._repo_id is None:
            self.inspector.show(source)
        else:
            self.inspector.show_only(source)
            self.detail.card.show_place(f"{self._hub.endpoint}/{self._repo_id}")
            self.hub_model.look(self._repo_id)
        self._offer()

    @property
    def _repo_id(self) -> str | None:
        """The hub id of the selected model; None for one on this machine."""
        source = self.source
        is_remote = source is not None and source.kind in (SourceKind.HUB, SourceKind.DOWNLOAD)
        return source.path if source is not None and is_remote else None

    def _on_looked(self, found: Estimate | None) -> None:
        self._offer()
        self._fit_task.cancel()
        if found is None or found.need is None:
            self.detail.show_fits(())
            return
        config, in_use, estimator = self.inspector.config(), self._in_use(), self._estimator
        self._fit_task.run(
            lambda: fits(config, in_use, estimator), self.detail.show_fits, lambda error: None
        )

    # Actions -----------------------------------------------------------------------------------

    def _offer(self) -> None:
        """Show the buttons and the message for the selected model."""
        source = self.source
        if source is None:
            self.detail.offer(None, ())
        elif self._repo_id is None:
            self._offer_local(source)
        else:
            self._offer_remote(self._repo_id)

    def _offer_local(self, source: ModelSource) -> None:
        others: list[Action] = []
        if folder_of(source) is not None:
            others.append(("Delete", lambda: self._delete(source)))
        if source.kind is SourceKind.LOCAL:
            others.append(("Remove from list", lambda: self.library.drop_folder(source)))
        if source.load_format != "dummy":
            others.append((RUN, lambda: self.run_wanted.emit(source.path)))
        self.detail.offer((self._open_text, self._open), others, self.inspector.can_open)

    @property
    def _open_text(self) -> str:
        """A model that is open like this stays open."""
        chosen = self._chosen
        if chosen is None or self._session is None:
            return OPEN
        return CHAT if self._session.is_open_with(*chosen) else OPEN

    @property
    def _chosen(self) -> tuple[str, str, Mapping[str, Any]] | None:
        """Path, load format and settings of the selected model; None if it is not here."""
        source = self.source
        if source is None or self.inspector.source is None:
            return None
        if self._repo_id is None:
            return source.path, source.load_format, self.inspector.settings()
        here = self.library.snapshot_of(self._repo_id)
        return None if here is None else (here.path, "auto", self.inspector.settings())

    def _offer_remote(self, repo_id: str) -> None:
        download, details = self.queue.get(repo_id), self.hub_model.details
        here = self.library.snapshot_of(repo_id)
        if download is not None and download.state is not State.DONE:
            self._offer_download(download)
        elif here is not None and (details is None or here.path.endswith(details.commit)):
            self.detail.say(f"Downloaded to {here.path}")
            self.detail.offer((self._open_text, self._open), (), self.inspector.can_open)
        elif details is not None:
            self.detail.say(download_text(details, self._hub.cache_dir))
            found = self.inspector.estimate
            anyway = " anyway" if found is not None and not found.report.supported else ""
            update = "Update" if here is not None else "Download"
            text = f"{update}{anyway} ({bytes_text(details.files.size)})"
            self.detail.offer((text, lambda: self.queue.start(repo_id)), ())
        else:
            self.detail.offer(None, ())
        if self.hub_model.error is not None:
            self.detail.card.show_error(self.hub_model.error.cause)
            if download is None:
                self.detail.say(self.hub_model.error.remedy)

    def _offer_download(self, download: Download) -> None:
        parts = (state_text(download), how_far(download))
        role = "error" if download.state is State.FAILED else "muted"
        self.detail.say(" · ".join(part for part in parts if part), role)
        possible = actions(self.queue, download)
        self.detail.offer(possible[0] if possible else None, possible[1:])

    def _act_on_activation(self) -> None:
        """Enter and double click open; they never start a download."""
        if self.detail.primary.isEnabled() and self.detail.primary.text() in (OPEN, CHAT):
            self._open()

    def _open(self) -> None:
        if self.inspector.can_open and (chosen := self._chosen) is not None:
            self.model_chosen.emit(*chosen)

    def _delete(self, source: ModelSource) -> None:
        if self._session is not None and self._session.is_open(source.path):
            self.detail.say(
                f"{source.title} is loaded. Unload it (File > Unload model) before deleting it.",
                "error",
            )
            return
        self.deletion.delete_model(source)

    def _delete_chosen(self) -> None:
        if self.source is not None and folder_of(self.source) is not None:
            self._delete(self.source)

    def _on_deleted(self) -> None:
        self._choose_nothing()
        self.library.reload()

    def _on_loaded(self) -> None:
        """Deselect a model that is gone."""
        source = self.source
        kinds = (SourceKind.LOCAL, SourceKind.CACHE)
        known = {there.key for there in self.library.known}
        if source is not None and source.kind in kinds and source.key not in known:
            self._choose_nothing()
        else:
            self._offer()

    def _on_problem(self, error: ErrorInfo) -> None:
        self.detail.say(str(error), "error")

    def _on_download(self, repo_id: str) -> None:
        if self._repo_id != repo_id or self.source is None:
            return
        if self.queue.get(repo_id) is None and self.source.kind is SourceKind.DOWNLOAD:
            self._choose_nothing()
        self._offer()

    def _choose_nothing(self) -> None:
        self.source = None
        self.inspector.forget()
        self.hub_model.forget()
        self.detail.show_nothing()


class ModelsPages(QStackedWidget):
    """The Models page, or the welcome page in its place. `wants_front` as of the page;
    `chat_wanted` for a chat with the demo model; `lessons_wanted` for the first lesson."""

    wants_front = Signal()
    chat_wanted = Signal()
    lessons_wanted = Signal()

    def __init__(self, page: ModelsPage, make_welcome: Callable[[], WelcomePage]) -> None:
        super().__init__()
        self.page, self._make_welcome = page, make_welcome
        self.addWidget(page)
        page.wants_front.connect(self._show_page)

    @cached_property
    def welcome(self) -> WelcomePage:
        """Made when it is first shown: most starts do without."""
        welcome, page = self._make_welcome(), self.page
        self.addWidget(welcome)
        welcome.left.connect(self._show_page)
        welcome.hub.connect(page.show_hub)
        welcome.folder.connect(page.add_folder)
        welcome.shapes.connect(lambda: page.open_model(shape_sources()[0].path))
        welcome.chat.connect(self.chat_wanted)
        welcome.lessons.connect(self.lessons_wanted)
        return welcome

    def commands(self) -> list[Command]:
        welcome = Command("help.welcome", "Welcome", self.show_welcome, "Help", section="help")
        return [*self.page.commands(), welcome]

    def show_welcome(self) -> None:
        self.setCurrentWidget(self.welcome)
        self.wants_front.emit()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        if not event.spontaneous():  # not of a minimized window
            self.setCurrentWidget(self.page)

    def _show_page(self) -> None:
        self.setCurrentWidget(self.page)
        self.wants_front.emit()
