"""Messages, snapshots and recordings as bytes, and back. No Qt."""
