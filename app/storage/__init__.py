"""Files that the user keeps: chats (SQLite), profiles, reports, model folders, trash. No Qt."""

from app.storage.chat_store import ChatStore, open_store
from app.storage.errors import (
    StorageCorruptError,
    StorageError,
    StorageFullError,
    StorageLockedError,
    StorageNewerError,
    StorageReadOnlyError,
)
from app.storage.records import NEW, SearchHit, StoredConversation, StoredMessage

__all__ = [
    "NEW", "ChatStore", "SearchHit", "StorageCorruptError", "StorageError", "StorageFullError",
    "StorageLockedError", "StorageNewerError", "StorageReadOnlyError", "StoredConversation",
    "StoredMessage", "open_store",
]  # fmt: skip
