"""Files that the user keeps: chats, profiles, reports, model folders, trash. No Qt.

errors, database, records, search, writer,      chats in SQLite, written by their own thread
chat_store
chat_file, copies, recovery, salvage            what is shown of a file that cannot be used
json_file, profiles                             versioned JSON files; named engine settings
record_folder, report_store, run_store          saved reports and other runs, a folder each
report_metrics, report_export, run_records      their figures; exports
model_sources, trash                            models to open; deletion with undo
"""

from app.storage.chat_store import TIMES, TOKENS, ChatStore, open_store
from app.storage.errors import (
    StorageCorruptError,
    StorageError,
    StorageForeignError,
    StorageFullError,
    StorageLockedError,
    StorageNewerError,
    StorageReadOnlyError,
)
from app.storage.records import NEW, StoredConversation, StoredMessage
from app.storage.search import SearchHit

__all__ = [
    "NEW", "TIMES", "TOKENS", "ChatStore", "SearchHit", "StorageCorruptError", "StorageError",
    "StorageForeignError", "StorageFullError", "StorageLockedError", "StorageNewerError",
    "StorageReadOnlyError", "StoredConversation", "StoredMessage", "open_store",
]  # fmt: skip
