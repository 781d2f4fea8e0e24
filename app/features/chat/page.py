"""`ChatPage`: the chats, the current one and the inspector of its replies; their commands."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import (
    QDragEnterEvent,
    QDropEvent,
    QGuiApplication,
    QKeyEvent,
    QResizeEvent,
    QShowEvent,
)
from PySide6.QtWidgets import QApplication, QStackedLayout, QWidget

from app.features.chat.attachments import droppable
from app.features.chat.controller import ChatController
from app.features.chat.conversation import Role
from app.features.chat.draft import Draft
from app.features.chat.edits import Edits
from app.features.chat.file_actions import ChatTransfer, FileRecovery
from app.features.chat.inspector import ReplyInspector, Steps
from app.features.chat.inspector_view import InspectorView
from app.features.chat.labels import branch_records
from app.features.chat.panes import CONVERSATION_WIDTH, ChatPanes
from app.features.chat.popovers import ReplyTokensPopover, open_link
from app.features.chat.presenter import Presenter
from app.storage.search import terms_of
from app.window.commands import Command
from widgets.chat.attachments import FilePopover
from widgets.chat.branch_popover import BranchPopover, PromptPopover
from widgets.chat.composer import LINES, LINES_IF_LOW, Composer, local_files
from widgets.chat.conversation_list import ConversationList
from widgets.chat.empty_state import EmptyState
from widgets.chat.reasoning import without_reasoning
from widgets.chat.records import AttachmentRecord
from widgets.chat.sampling_popover import SamplingPopover
from widgets.chat.transcript import COLUMN_WIDTH, SIDE_MARGIN, Transcript
from widgets.controls.layouts import STRETCH, hbox, vbox
from widgets.controls.notice import Notice, Toast
from widgets.plot.clock import RedrawClock
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_3, theme_notifier

LOW = 470
"""Height of the page, at the default text size, below which the input has fewer lines."""
FROM_ANYWHERE = ("stop", "regenerate", "continue", "copy")
"""These leave the shown page as it is: a reply is stopped or regenerated while watching charts."""


class ChatPage(QWidget):
    """`panes_changed`: a pane was hidden or shown; `actions_changed`: one of `actions` may have
    been enabled, disabled or checked."""

    panes_changed = Signal()
    actions_changed = Signal()

    def __init__(
        self,
        controller: ChatController,
        parent: QWidget | None = None,
        *,
        name_of: Callable[[str], str] | None = None,
        clock: RedrawClock | None = None,
        steps_of: Steps = lambda times: (),
        asks_about_links: Callable[[], bool] = lambda: True,
    ) -> None:
        """`name_of`: how the user knows a request; `clock`: of all charts; `steps_of`: those of
        a request; `asks_about_links`: whether to ask before the browser opens a web address."""
        super().__init__(parent)
        self.controller = controller
        self._asks_about_links = asks_about_links
        self.list = ConversationList()
        self.transcript = Transcript()
        self.empty = EmptyState()
        self.composer = Composer()
        self.model_notice = Notice("info")
        self.problem_notice = Notice("error")
        self.transfer_notice = Notice("error")
        self.sampling = SamplingPopover(self)
        self.system_prompt = PromptPopover(self)
        names = name_of or controller.title_of
        view = InspectorView(clock or RedrawClock(parent=self), self.close_inspector)
        self.inspector = ReplyInspector(controller, view, self._say, names, steps_of)
        self.tokens = ReplyTokensPopover(controller, self.transcript, self, self._say)
        self.branches = BranchPopover(self)
        self.transfer = ChatTransfer(controller, self)
        self.context_notice, self.file_notice = Notice("warning"), Notice("error")
        self.edits = Edits(controller, self.transcript)
        self.draft = Draft(controller, self.composer, self.context_notice, self)
        self.file = FilePopover(self)
        self.setAcceptDrops(True)
        self.panes = ChatPanes(self.list, self._conversation_widget(), view)
        hbox(self.panes, of=self)
        self.toast = Toast(self.stage)
        self.recovery = FileRecovery(self.transfer, self.toast.show_message)
        theme_notifier().changed.connect(self._fit)
        self._connect_widgets()
        self._presenter = Presenter(self)

    def actions(self) -> list[Command]:  # type: ignore[override]
        """Of the page; most of them show it first."""
        controller = self.controller

        def is_stored() -> bool:
            return controller.current.is_stored

        def command(
            name: str, text: str, do: Callable[[], object], keys: str = "", icon: str = "",
            section: str = "", is_enabled: Callable[[], bool] | None = None,
            is_checked: Callable[[], bool] | None = None,
        ) -> Command:  # fmt: skip
            return Command(
                f"chat.{name}", text, do, "Chat", keys, icon, section, is_enabled=is_enabled,
                is_checked=is_checked, shows_page=name not in FROM_ANYWHERE,
            )  # fmt: skip

        return [
            command("new", "New chat", self.new_chat, "Ctrl+N", "plus"),
            command("search", "Search chats", self.search, "Ctrl+K", "search"),
            command("list", "Chat list", self.panes.toggle_list, "Ctrl+B", "sidebar",
                    is_checked=lambda: self.panes.shown.list),
            command("stop", "Stop generating", controller.stop, "Esc", "stop", "reply",
                    lambda: controller.is_busy),
            command("regenerate", "Send or regenerate", self.composer.send_or_regenerate,
                    "Ctrl+Return", "regenerate", "reply"),
            command("continue", "Continue reply", controller.continuation.start,
                    "Ctrl+.", "play", "reply", controller.continuation.is_possible),
            command("edit", "Edit last message", self.edit_last, "Ctrl+E", "edit", "reply"),
            command("copy", "Copy last reply", self.copy_last, "Ctrl+Shift+C", "copy", "reply"),
            command("latency", "Reply inspector", self.open_inspector, "Ctrl+Shift+L",
                    "benchmark", is_checked=lambda: self.panes.shown.inspector),
            command("attach", "Attach text files…", self.draft.choose_files, "Ctrl+Shift+A",
                    "attach", "reply"),
            command("tokens", "Show reply tokens", self.tokens.show_last, "Ctrl+T", "tokens",
                    "reply"),
            command("branches", "Branches", self.open_branches, "Ctrl+Shift+G", "branch", "branch",
                    is_stored),
            command("version_before", "Previous version", lambda: self.step_version(-1), "Alt+Left",
                    section="branch", is_enabled=is_stored),
            command("version_after", "Next version", lambda: self.step_version(1), "Alt+Right",
                    section="branch", is_enabled=is_stored),
            command("sampling", "Sampling settings…", self.open_sampling, "", "tune", "settings"),
            command("system_prompt", "System prompt…", self.open_system_prompt, section="settings"),
            command("rename", "Rename chat", self.rename_current, "F2", "edit", "this", is_stored),
            command("pin", "Pin chat", self.toggle_pinned, "Ctrl+D", "pin", "this", is_stored,
                    lambda: controller.current.is_pinned),
            command("archive", "Archive chat", self.toggle_archived, "", "archive", "this",
                    is_stored, lambda: controller.current.is_archived),
            command("export", "Export chat…",
                    lambda: self.transfer.export_one(controller.current.id), "Ctrl+S", "download",
                    "file", is_stored),
            command("export_all", "Export all chats…", self.transfer.export_all, section="file",
                    is_enabled=lambda: controller.has_any),
            command("import", "Import chats…", self.transfer.import_some, section="file"),
            command("delete", "Delete chat", self.delete_current, "", "delete", "this", is_stored),
            command("previous", "Previous chat", lambda: self.step(-1), "Ctrl+PgUp", section="go"),
            command("next", "Next chat", lambda: self.step(1), "Ctrl+PgDown", section="go"),
        ]  # fmt: skip

    # Actions ---------------------------------------------------------------------------------

    def new_chat(self) -> None:
        self.controller.new_conversation()
        self.panes.show_conversation()
        self.composer.setFocus()

    def search(self) -> None:
        self.panes.show_list()
        self.list.focus_search()

    def send(self, text: str, left: str = "") -> None:
        """Send the files of the draft with `text`; `left` stays as the draft."""
        if self.controller.send(text, self.draft.attachments, left):
            self.draft.clear(left)
            self.composer.setFocus()  # a suggestion is gone, and the next widget would take it

    def _send_draft(self, text: str) -> None:
        """A message that the engine would refuse stays in the composer, with the reason above."""
        if self.draft.may_send():
            self.send(text)

    def edit_last(self) -> None:
        own = [m for m in self.controller.current.path() if m.role is Role.USER]
        if own and not self.controller.is_busy:
            self.transcript.edit_message(own[-1].id)

    def copy_last(self) -> None:
        replies = [m for m in self.controller.current.path() if m.role is Role.ASSISTANT]
        if replies:
            view = self.transcript.view(replies[-1].id)
            text = view.copied() if view is not None else without_reasoning(replies[-1].text)
            QGuiApplication.clipboard().setText(text)

    def open_inspector(self) -> None:
        """Show the inspector with the last reply and move to it; from there, close it."""
        focused = QApplication.focusWidget()
        if self.panes.shown.inspector and focused and self.inspector.view.isAncestorOf(focused):
            self.close_inspector()
            return
        self.inspector.choose("")
        self.panes.show_inspector()
        self.inspector.view.take_focus()

    def inspect(self, message_id: str) -> None:
        """Show this reply in the inspector, or close it if it shows this one."""
        if self.panes.shown.inspector and self.inspector.chosen == message_id:
            self.close_inspector()
            return
        self.inspector.choose(message_id)
        self.panes.show_inspector()

    def close_inspector(self) -> None:
        if self.panes.shown.inspector:
            self.panes.toggle_inspector()
        self.composer.setFocus()

    def rename_current(self) -> None:
        self.panes.show_list()
        self.list.rename(self.controller.current.id)

    def delete_current(self) -> None:
        self.controller.delete(self.controller.current.id)

    def toggle_pinned(self) -> None:
        current = self.controller.current
        self.controller.set_pinned(current.id, not current.is_pinned)

    def toggle_archived(self) -> None:
        current = self.controller.current
        self.controller.set_archived(current.id, not current.is_archived)

    def open_sampling(self) -> None:
        self.sampling.toggle_at(self.composer.sampling)

    def open_system_prompt(self) -> None:
        self.system_prompt.toggle_at(self.composer.system_prompt)

    def open_branches(self, message_id: str = "") -> None:
        """Open the overview of all branches, at a message, else at the composer."""
        self.branches.show_branches(branch_records(self.controller.current))
        view = self.transcript.view(message_id or self._last_version())
        self.branches.toggle_at(view.versions if view is not None else self.composer.sampling)

    def step_version(self, step: int) -> None:
        """Show the previous (-1) or next (+1) version of the last message that has several."""
        self.controller.step_version(self._last_version(), step)

    def _last_version(self) -> str:
        current = self.controller.current
        several = [m.id for m in current.path() if len(current.versions(m.parent_id)) > 1]
        return several[-1] if several else ""

    def _show_branch(self, message_id: str, end_id: str) -> None:
        self.controller.open_message(self.controller.current.id, end_id)
        self.transcript.reveal(message_id)

    def step(self, step: int) -> None:
        """Open the conversation `step` rows below this one in the list."""
        ids = list(dict.fromkeys(record.id for record in self.list.records))
        if ids:
            here = self.controller.current.id
            position = ids.index(here) + step if here in ids else 0
            self.controller.open(ids[max(0, min(len(ids) - 1, position))])

    def open_link(self, address: str) -> None:
        open_link(address, self, self._say, self._asks_about_links())

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.inspector.refresh()  # it shows nothing while hidden
        self.composer.setFocus()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        """A low window is for the messages."""
        self.composer.input.set_lines(LINES_IF_LOW if self.height() < scaled(LOW) else LINES)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        is_escape = event.key() == Qt.Key.Key_Escape
        if is_escape and self.controller.is_busy:
            self.controller.stop()
        elif is_escape and not self.panes.shown.conversation:
            self.panes.show_conversation()
            self.composer.setFocus()
        else:
            super().keyPressEvent(event)

    # Layout ----------------------------------------------------------------------------------

    def _conversation_widget(self) -> QWidget:
        self.stage = QWidget()
        self.stack = QStackedLayout(self.stage)
        self.first = QWidget()
        vbox(hbox(self.model_notice, margins=(SPACE_3, 0, SPACE_3, 0)), (self.empty, 1),
             of=self.first)  # fmt: skip
        self.stack.addWidget(self.first)
        self.stack.addWidget(self.transcript)
        column = QWidget()
        column.setMaximumWidth(COLUMN_WIDTH + 2 * SIDE_MARGIN)
        asking = (self.file_notice, self.context_notice, self.composer)
        vbox(*asking, of=column, spacing=-1, margins=(SIDE_MARGIN, 0, SIDE_MARGIN, SPACE_3))
        notices = (self.problem_notice, self.transfer_notice)
        above = vbox(*notices, margins=(SPACE_3, SPACE_3, SPACE_3, 0))
        below = hbox(STRETCH, (column, 1000), STRETCH, spacing=-1)
        made = QWidget()
        vbox(above, (self.stage, 1), below, of=made)
        made.setMinimumWidth(CONVERSATION_WIDTH)
        return made

    def _connect_widgets(self) -> None:
        self.list.new_requested.connect(self.new_chat)
        self.panes.new_wanted.connect(self.new_chat)
        self.panes.changed.connect(self._on_panes)
        self.list.opened.connect(self._open)
        self.list.hit_opened.connect(self._open_hit)
        self.composer.send_requested.connect(self._send_draft)
        self.composer.input.edit_last.connect(self.edit_last)
        self.composer.sampling.clicked.connect(self.open_sampling)
        self.composer.system_prompt.clicked.connect(self.open_system_prompt)
        self.empty.chosen.connect(lambda text: self.send(text, self.composer.text))
        self.transcript.requests.link.connect(self.open_link)
        self.transcript.requests.branches.connect(self.open_branches)
        self.transcript.requests.file.connect(self._open_file)
        self.transcript.requests.latency.connect(self.inspect)
        self.transcript.requests.typed.connect(self.composer.type)
        self.transcript.requests.edit_ended.connect(lambda message_id: self.composer.setFocus())
        self.transcript.requests.pressed.connect(self.inspector.choose)
        self.inspector.chosen_changed.connect(self._mark_inspected)
        self.branches.chosen.connect(self._show_branch)
        self.draft.refused.connect(
            lambda text: self.file_notice.say(text, "Close", lambda: self.file_notice.say(""))
        )

    # What the widgets ask for ----------------------------------------------------------------

    def _on_panes(self) -> None:
        self.inspector.refresh()
        self._mark_inspected()
        self.panes_changed.emit()
        self.actions_changed.emit()

    def _mark_inspected(self) -> None:
        is_shown = self.panes.shown.inspector
        self.transcript.set_inspected(self.inspector.chosen if is_shown else "")

    def _open(self, conversation_id: str) -> None:
        self.controller.open(conversation_id)
        self.panes.show_conversation()

    def _open_hit(self, conversation_id: str, message_id: str) -> None:
        self.panes.show_conversation()
        self.controller.open_message(conversation_id, message_id)
        self.transcript.reveal(message_id, terms_of(self.list.search.text()))

    def _say(self, text: str) -> None:
        self.toast.show_message(text)

    def _open_file(self, record: AttachmentRecord, button: QWidget) -> None:
        self.file.show_file(record)
        self.file.toggle_at(button)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        # other files are for the window, which opens models
        event.setAccepted(droppable(local_files(event.mimeData())))

    def dropEvent(self, event: QDropEvent) -> None:
        files = local_files(event.mimeData())
        event.setAccepted(droppable(files))
        if event.isAccepted():
            self.draft.add_files(files)
