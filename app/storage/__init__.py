"""Where conversations are kept: SQLite under the user's data folder. Imports no Qt."""

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
