"""Messages, snapshots and recordings as bytes, and back. No Qt.

protocol    the attach protocol: version, limits, greeting, frames
sequencer   frame numbers and acknowledgements of one side of a session
blocks, snapshots   snapshots as changes since the last one
codec       commands and events as a kind and bytes
recording   the same records as lines of JSON, in recordings
"""
