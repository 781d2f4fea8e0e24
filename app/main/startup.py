"""The model to open at startup: the command line's, the last one, or one restored after a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject

from app.clients.attached import attach
from app.clients.target import Target
from app.features.models.session import LINK, config_from_arguments
from app.features.recording.crash_watch import session_of
from app.paths import starter_model
from app.storage.model_sources import STARTER_TITLE
from app.window.crash_report import Remains
from app.window.notices import error_notice
from app.window.program_settings import NO_MODEL, STARTER
from engine.config import SETTINGS
from engine.errors import ConfigError, InferdeckError

if TYPE_CHECKING:
    from app.main.application import Application

log = logging.getLogger(__name__)

ATTACH, API_KEY = "attach", "api_key"
"""Of the command line: the address of a remote engine, and its key."""
WELCOMED = "welcomed"


class Startup(QObject):
    """Opens the first model, or attaches to a remote engine. `given`: the command line's settings.
    """

    def __init__(self, app: Application) -> None:
        super().__init__(app.window)
        self._app = app

    def open(self, given: Mapping[str, Any], remains: Remains | None) -> None:
        """Called once the window shows. `remains`: of a crashed run."""
        self._app.last_chat.reopen()
        if ATTACH in given:
            if remains is not None:
                self._app.crash.offer(remains)
            self.attach(given)
        elif remains is not None:
            self._offer_to_restore(remains, given)
        else:
            if "model" not in given:
                self.welcome()
            self.open_at_start(given)

    def attach(self, given: Mapping[str, Any]) -> None:
        try:
            attach(self._app.bridge, Target(given[ATTACH], given.get(API_KEY)))
        except InferdeckError as error:
            self._app.notices.show_notice(error_notice(LINK, "", error.info()))

    def open_at_start(self, given: Mapping[str, Any]) -> None:
        """Load the command line's model, else the one that the settings choose."""
        wanted = self._app.settings.preferences.get("open_at_start")
        if "model" not in given and wanted == NO_MODEL:
            return
        if "model" not in given and wanted == STARTER:
            given = {**given, "model": str(starter_model())}
        self.open_first_model(given)

    def open_first_model(self, given: Mapping[str, Any]) -> None:
        """Load the command line's model, else the last one, else the starter model."""
        try:
            config = config_from_arguments(self._app.settings, str(starter_model()), given)
        except ConfigError as error:
            self._app.notices.show_notice(error_notice("load", "", error.info()))
            return
        self._app.session.load(config)

    def welcome(self) -> None:
        """Show the welcome page once, on a machine where no model was opened yet."""
        if not self._app.settings.recent and not self._app.settings.flag(WELCOMED, False):
            self._app.settings.set_flag(WELCOMED, True)
            self._app.pages.models_place.show_welcome()

    def on_second_start(self, given: Mapping[str, Any]) -> None:
        """The user started the program again: show this window and apply the given settings."""
        log.info("second instance started: %s", {k: v for k, v in given.items() if k != API_KEY})
        if self._app.window.isMinimized():
            self._app.window.showNormal()
        self._app.window.raise_()
        self._app.window.activateWindow()
        if ATTACH in given:
            self.attach(given)
            return
        known = {name: value for name, value in given.items() if name in SETTINGS}
        if known:
            self.open_first_model(known)

    def _offer_to_restore(self, remains: Remains, given: Mapping[str, Any]) -> None:
        """After a crash the user chooses: the model may have caused it."""
        before = session_of(remains)
        if before is None or "model" in given:
            self._app.crash.offer(remains)
            self.open_first_model(given)
            return

        def restore() -> None:
            self._app.session.open(before.path, before.load_format, before.settings)
            self._app.pages.chat.open(before.chat)

        starter = {**given, "model": str(starter_model())}
        self._app.crash.offer(
            remains,
            ("Restore", restore),
            (STARTER_TITLE, lambda: self.open_first_model(starter)),
        )
