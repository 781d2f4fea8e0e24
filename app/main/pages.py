"""The pages of the window: widget, commands, first docks."""

from __future__ import annotations

from dataclasses import dataclass

from app.features.chat.controller import ChatController
from app.features.chat.page import ChatPage
from app.features.models.page import ModelsPage, ModelsPages
from app.features.quantize.page import QuantizePage
from app.features.serve.page import ServerPage
from app.features.tune.page import TunePage
from app.storage.chat_store import ChatStore
from app.window.docks import CLOSED_DOCKS, TUNE_DOCKS, DockPlan, Page


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages, and what the chats are kept in."""

    store: ChatStore
    chat: ChatController
    chat_page: ChatPage
    tune: TunePage
    models_place: ModelsPages
    quantize: QuantizePage
    server: ServerPage

    @property
    def models(self) -> ModelsPage:
        return self.models_place.page


def page_list(pages: Pages) -> list[Page]:
    """In the order of the rail."""
    chat, tune, quantize, server = pages.chat_page, pages.tune, pages.quantize, pages.server
    place = pages.models_place
    return [
        Page(
            "Chat", "chat", chat, tuple(chat.actions()), (chat.actions_changed,),
            may_close=chat.recovery.may_close,
        ),
        Page(
            "Tune", "tune", tune, tuple(tune.commands()), (tune.commands_changed,), TUNE_DOCKS
        ),
        Page("Models", "models", place, tuple(place.commands()), (), DockPlan(below=())),
        Page(
            "Quantize", "quantize", quantize, tuple(quantize.commands()),
            (quantize.commands_changed,), CLOSED_DOCKS, quantize.may_close,
        ),
        Page(
            "Server", "server", server, tuple(server.commands()), (server.commands_changed,),
            CLOSED_DOCKS,
        ),
    ]  # fmt: skip
