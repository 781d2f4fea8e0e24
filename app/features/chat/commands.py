"""Commands of the chat page, for the menus and shortcuts of the window."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.window.commands import Command

if TYPE_CHECKING:
    from app.features.chat.page import ChatPage

FROM_ANYWHERE = ("stop", "regenerate", "copy")
"""Commands that stay on the current page, e.g. to stop a reply while watching charts."""


def chat_commands(page: ChatPage) -> list[Command]:
    """Commands of the chat; most bring its page to the front."""
    controller = page.controller

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
        command("new", "New chat", page.new_chat, "Ctrl+N", "plus"),
        command("search", "Search chats", page.search, "Ctrl+K", "search"),
        command("list", "Chat list", page.panes.toggle, "Ctrl+B", "sidebar",
                is_checked=lambda: page.panes.is_list_shown),
        command("stop", "Stop reply", controller.stop, "Esc", "stop", "reply",
                lambda: controller.is_busy),
        command("regenerate", "Send or regenerate", page.composer.send_or_regenerate,
                "Ctrl+Return", "regenerate", "reply"),
        command("edit", "Edit last message", page.edit_last, "Ctrl+E", "edit", "reply"),
        command("copy", "Copy last reply", page.copy_last, "Ctrl+Shift+C", "copy", "reply"),
        command("latency", "Show request latency", page.latency.show_last, "Ctrl+Shift+L",
                "benchmark", "reply"),
        command("attach", "Attach text files…", page.draft.choose_files, "Ctrl+Shift+A",
                "attach", "reply"),
        command("tokens", "Show reply tokens", page.tokens.show_last, "Ctrl+T", "tokens",
                "reply"),
        command("branches", "Branches", page.open_branches, "Ctrl+Shift+G", "branch", "branch",
                is_stored),
        command("version_before", "Previous version", lambda: page.step_version(-1), "Alt+Left",
                section="branch", is_enabled=is_stored),
        command("version_after", "Next version", lambda: page.step_version(1), "Alt+Right",
                section="branch", is_enabled=is_stored),
        command("sampling", "Sampling settings…", page.open_sampling, "", "tune", "settings"),
        command("system_prompt", "System prompt…", page.open_system_prompt, section="settings"),
        command("rename", "Rename chat", page.rename_current, "F2", "edit", "this", is_stored),
        command("pin", "Pin chat", page.toggle_pinned, "Ctrl+D", "pin", "this", is_stored,
                lambda: controller.current.is_pinned),
        command("archive", "Archive chat", page.toggle_archived, "", "archive", "this", is_stored,
                lambda: controller.current.is_archived),
        command("export", "Export chat…", lambda: page.transfer.export_one(controller.current.id),
                "Ctrl+S", "download", "file", is_stored),
        command("export_all", "Export all chats…", page.transfer.export_all, section="file",
                is_enabled=lambda: controller.has_any),
        command("import", "Import chats…", page.transfer.import_some, section="file"),
        command("delete", "Delete chat", page.delete_current, "", "delete", "this", is_stored),
        command("previous", "Previous chat", lambda: page.step(-1), "Ctrl+PgUp", section="go"),
        command("next", "Next chat", lambda: page.step(1), "Ctrl+PgDown", section="go"),
    ]  # fmt: skip
