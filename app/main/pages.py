"""The pages of the window, and what they stand on."""

from __future__ import annotations

from app.features.chat.controller import ChatController
from app.features.chat.page import ChatPage
from app.features.chat.suggestions import suggestions_for
from app.features.models.downloads import DownloadQueue
from app.features.models.estimate import Held, estimate
from app.features.models.hub import Hub
from app.features.models.page import ModelsPage, ModelsPlace
from app.features.models.session import ModelSession
from app.features.models.welcome import WelcomePage
from app.features.quantize.place import make_quantize_page
from app.features.serve.page import ServerPage
from app.features.tune.page import TunePage
from app.link.bridge import EngineBridge
from app.paths import downloads_file, trash_file
from app.server.call import origin_of
from app.storage import open_store
from app.storage.trash import Trash
from app.window.docks import CLOSED_DOCKS, TUNE_DOCKS, DockPlan, Page
from app.window.notices import Notice
from app.window.settings_store import SettingsStore
from engine.config import EngineConfig
from engine.errors import ErrorInfo
from widgets.plot.clock import RedrawClock
from widgets.plot.marks import MarkLog

CHAT_LIST, WELCOMED = "chat-list", "welcomed"


class Pages:
    """Makes the pages, and takes them apart in the right order."""

    def __init__(
        self,
        bridge: EngineBridge,
        settings: SettingsStore,
        session: ModelSession,
        clock: RedrawClock,
        marks: MarkLog,
    ) -> None:
        self._settings = settings
        self.store = open_store()
        self.chat = ChatController(bridge, self.store)
        self.chat_page = ChatPage(self.chat)
        commands = tuple(self.chat_page.actions())
        changed = (self.chat_page.actions_changed,)
        self.tune = TunePage(bridge, settings, clock, marks)
        trash = Trash(trash_file())  # one for both: its journal is one file
        self.models_place = make_models_place(bridge, settings, session, trash)
        self.models = self.models_place.page
        self.quantize = make_quantize_page(
            bridge, settings, session, self.models, trash
        )
        self.server = ServerPage(bridge, settings, session)
        self.pages = [
            Page(
                "Chat", "chat", self.chat_page, commands, changed,
                may_close=self.chat_page.anew.may_close,
            ),
            Page(
                "Tune", "tune", self.tune, tuple(self.tune.commands()),
                (self.tune.commands_changed,), TUNE_DOCKS,
            ),
            Page(
                "Models", "models", self.models_place, tuple(self.models_place.commands()), (),
                DockPlan(below=()),
            ),
            Page(
                "Quantize", "quantize", self.quantize, tuple(self.quantize.commands()),
                (self.quantize.commands_changed,), CLOSED_DOCKS, self.quantize.may_close,
            ),
            Page(
                "Server", "server", self.server, tuple(self.server.commands()),
                (self.server.commands_changed,), CLOSED_DOCKS,
            ),
        ]  # fmt: skip
        if not settings.flag(CHAT_LIST, True):
            self.chat_page.toggle_list()
        self.chat_page.list_toggled.connect(lambda on: settings.set_flag(CHAT_LIST, on))
        session.opened.connect(self._on_opened)
        session.remark.connect(self._on_remark)

    def name_of(self, request_id: str) -> str:
        """How the user knows a request: "load 12", "API chat 3f2a", or the title of its chat."""
        name = self.tune.load.name_of(request_id) or origin_of(request_id)
        return name or self.chat.title_of(request_id)

    @property
    def problem(self) -> ErrorInfo | None:
        """Why what is written now does not reach the user's file, or None."""
        return self.store.problem

    def stop_work(self, timeout_s: float) -> None:
        """The program ends: what takes minutes is cancelled."""
        self.quantize.close_down(timeout_s)
        self.server.close_down()

    def close(self) -> None:
        """Write what is left to write. Call it when the engine has said its last."""
        self.tune.close_load()
        self.models.close_down()
        self.chat_page.draft.keep()
        self.chat.close()
        self.store.close()

    def start(self) -> None:
        """What waits until the window is on the screen."""
        self.models.start()
        self.server.start()

    def welcome(self) -> None:
        """Show the first-run page, once: at the first start on a machine where nothing was opened
        yet."""
        if not self._settings.recent and not self._settings.flag(WELCOMED, False):
            self._settings.set_flag(WELCOMED, True)
            self.models_place.show_welcome()

    def _on_opened(self, config: EngineConfig, chosen: object) -> None:
        self.chat_page.set_suggestions(suggestions_for(config.model))

    def _on_remark(self, remark: Notice | None) -> None:
        if remark is None:
            self.chat_page.set_model_notice("")
            return
        text = f"{remark.cause} {remark.remedy}".strip()
        action, do = remark.actions[0] if remark.actions else ("", None)
        self.chat_page.set_model_notice(text, action, do)


def make_models_place(
    bridge: EngineBridge, settings: SettingsStore, session: ModelSession, trash: Trash
) -> ModelsPlace:
    """The Models page over the hub and the cache that huggingface_hub is set to."""

    def in_use() -> Held:
        return bridge.gives_back

    def is_open(path: str) -> bool:
        return session.current is not None and session.current.path == path

    hub = Hub()
    queue = DownloadQueue(hub, downloads_file())
    page = ModelsPage(settings, queue, trash, hub, in_use, is_open, estimate)
    page.model_chosen.connect(session.open)

    def show_open() -> None:
        page.library.list.show_open(session.current.path if session.current is not None else "")

    session.opened.connect(show_open)
    session.remark.connect(show_open)  # also where none is open any more
    return ModelsPlace(page, WelcomePage(in_use, estimate))
