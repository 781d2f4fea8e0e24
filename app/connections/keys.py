"""API keys in the system's keyring, never in a file of ours.

Where there is no keyring (a server without a desktop, or one that keeps plain text) a key is kept
for this run alone, and `problem` says so. No Qt; a keyring may ask the user to unlock it, so the
methods may take long.
"""

from __future__ import annotations

import logging
import threading

log = logging.getLogger(__name__)

SERVICE = "inferdeck"
NO_KEYRING = (
    "This system offers no keyring, so the key is kept for this run alone; it is written to no "
    "file."
)
_NOT_SAFE = ("keyring.backends.fail", "keyring.backends.null", "keyrings.alt")
"""Backends that keep nothing, or that keep keys in a file as they are."""


class KeyStore:
    """Keys by name. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_this_run: dict[str, str] = {}
        self.problem = ""
        """Why keys do not outlive this run; "" as far as is known."""

    def read(self, name: str) -> str:
        """The key, or ""."""
        with self._lock:
            known = self._of_this_run.get(name)
            if known is None:
                known = self._of_this_run[name] = self._stored(name)
            return known

    def write(self, name: str, key: str) -> None:
        """Keep it; "" forgets it."""
        with self._lock:
            if self._of_this_run.get(name) == key:
                return
            self._of_this_run[name] = key
            self._store(name, key)

    def _stored(self, name: str) -> str:
        import keyring
        from keyring.errors import KeyringError

        if not self._has_keyring():
            return ""
        try:
            return keyring.get_password(SERVICE, name) or ""
        except (KeyringError, OSError, RuntimeError) as error:
            self._complain(error)
            return ""

    def _store(self, name: str, key: str) -> None:
        import keyring
        from keyring.errors import KeyringError, PasswordDeleteError

        if not self._has_keyring():
            return
        try:
            if key:
                keyring.set_password(SERVICE, name, key)
            else:
                keyring.delete_password(SERVICE, name)
            self.problem = ""
        except PasswordDeleteError:
            pass  # there was none
        except (KeyringError, OSError, RuntimeError) as error:
            self._complain(error)

    def _has_keyring(self) -> bool:
        import keyring

        backend = keyring.get_keyring()
        parts = getattr(backend, "backends", [backend])  # several of them, the best one first
        if not all(type(part).__module__.startswith(_NOT_SAFE) for part in parts[:1]):
            return True
        self.problem = NO_KEYRING
        return False

    def _complain(self, error: Exception) -> None:
        what = str(error).strip() or type(error).__name__
        log.warning("the keyring refused: %s", what)
        self.problem = f"The keyring refused ({what}); the key is kept for this run alone."
