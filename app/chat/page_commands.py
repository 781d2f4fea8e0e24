"""What one can do on the chat page, for the menus and shortcuts of the window."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from app.commands import Command

if TYPE_CHECKING:
    from app.chat.page import ChatPage


FROM_ANYWHERE = ("chat.stop", "chat.regenerate", "chat.copy")
"""Without leaving another page: a reply is stopped or written again while charts are watched."""


def chat_commands(page: ChatPage) -> list[Command]:
    """Most show the page: what is typed next, or deleted, is not to be out of sight."""
    return [
        command if command.id in FROM_ANYWHERE else replace(command, shows_page=True)
        for command in _commands(page)
    ]


def _commands(page: ChatPage) -> list[Command]:
    controller = page.controller
    return [
        Command("chat.new", "New chat", page.new_chat, "Chat", "Ctrl+N", "plus"),
        Command("chat.search", "Search chats", page.search, "Chat", "Ctrl+K", "search"),
        Command(
            "chat.list", "List of chats", page.toggle_list, "Chat", "Ctrl+B", "sidebar",
            is_checked=lambda: page.panes.is_list_shown,
        ),
        Command(
            "chat.stop", "Stop the reply", controller.stop, "Chat", "Esc", "stop",
            section="reply", is_enabled=lambda: controller.is_busy,
        ),
        Command(
            "chat.regenerate", "Send, or write the reply again", page.send_or_regenerate,
            "Chat", "Ctrl+Return", "regenerate", section="reply",
        ),
        Command(
            "chat.edit", "Edit the last message", page.edit_last, "Chat", "Ctrl+E", "edit",
            section="reply",
        ),
        Command(
            "chat.copy", "Copy the last reply", page.copy_last, "Chat", "Ctrl+Shift+C", "copy",
            section="reply",
        ),
        Command(
            "chat.latency", "Where the time of the last reply went", page.latency.show_last,
            "Chat", "Ctrl+Shift+L", "benchmark", section="reply",
        ),
        Command(
            "chat.attach", "Attach text files…", page.draft.choose_files, "Chat", "Ctrl+Shift+A",
            "attach", section="reply",
        ),
        Command(
            "chat.tokens", "Tokens of the last reply", page.tokens.show_last, "Chat",
            "Ctrl+T", "tokens", section="reply",
        ),
        Command(
            "chat.branches", "Branches of this chat", page.open_branches, "Chat",
            "Ctrl+Shift+G", "branch", section="branch",
            is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.version_before", "Version before", lambda: page.step_version(-1), "Chat",
            "Alt+Left", section="branch", is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.version_after", "Version after", lambda: page.step_version(1), "Chat",
            "Alt+Right", section="branch", is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.sampling", "Sampling settings…", page.open_sampling, "Chat", "", "tune",
            section="settings",
        ),
        Command(
            "chat.system_prompt", "System prompt…", page.open_system_prompt, "Chat",
            section="settings",
        ),
        Command(
            "chat.rename", "Rename chat", page.rename_current, "Chat", "F2", "edit",
            section="this", is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.pin", "Pin chat on top", page.toggle_pinned, "Chat", "Ctrl+D", "pin",
            section="this", is_checked=lambda: controller.current.is_pinned,
            is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.archive", "Archive chat", page.toggle_archived, "Chat", "", "archive",
            section="this", is_checked=lambda: controller.current.is_archived,
            is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.export", "Export chat…", lambda: page.transfer.export_one(controller.current.id),
            "Chat", "Ctrl+S", "download", section="file",
            is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.export_all", "Export all chats…", page.transfer.export_all, "Chat",
            section="file",
            is_enabled=lambda: controller.has_any,
        ),
        Command("chat.import", "Import chats…", page.transfer.import_some, "Chat", section="file"),
        Command(
            "chat.delete", "Delete chat", page.delete_current, "Chat", "", "delete",
            section="this", is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.previous", "Previous chat", lambda: page.step(-1), "Chat", "Ctrl+PgUp",
            section="go",
        ),
        Command(
            "chat.next", "Next chat", lambda: page.step(1), "Chat", "Ctrl+PgDown",
            section="go",
        ),
    ]  # fmt: skip
