"""Saved connections: settings of each, API keys in the keyring. No Qt."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from app.clients.target import ServerType, Target, TargetError, parse_address
from app.server.options import Problem

MAX_NAME = 60


@dataclass(frozen=True, slots=True)
class Connection:
    """server_type: as detected; None until then. model: requested by name; "" takes the server's
    first. is_watched: its metrics are polled always, not only while visible."""

    id: str
    name: str
    base_url: str
    server_type: ServerType | None = None
    version: str = ""
    model: str = ""
    is_watched: bool = False

    @property
    def key_name(self) -> str:
        """Name of its key in the keyring."""
        return f"connection:{self.id}"

    @property
    def kind(self) -> str:
        """Server type and version as text."""
        if self.server_type is None:
            return "not yet detected"
        return f"{self.server_type.value} {self.version}".rstrip()

    def target(self, key: str) -> Target:
        return Target(self.base_url, key or None, self.name)


def new_connection(name: str, base_url: str, model: str = "") -> Connection:
    return Connection(uuid.uuid4().hex[:12], name, base_url, model=model)


def to_text(connections: Sequence[Connection]) -> str:
    entries = [dataclasses.asdict(one) for one in connections]
    for entry in entries:
        entry["dialect"] = entry.pop("server_type")  # the key since version 0.1
    return json.dumps(entries)


def from_text(text: str) -> list[Connection]:
    """From stored text; unreadable entries are left out."""
    try:
        stored = json.loads(text)
    except ValueError:
        return []
    found: dict[str, Connection] = {}
    for entry in stored if isinstance(stored, list) else []:
        one = _read(entry)
        if one is not None and one.id not in found:
            found[one.id] = one
    return list(found.values())


def _read(entry: Any) -> Connection | None:
    if not isinstance(entry, dict):
        return None
    names = ("id", "name", "base_url", "version", "model")
    texts = {name: entry[name] for name in names if isinstance(entry.get(name), str)}
    if len(texts) < len(names) or not texts["id"]:
        return None
    server_type = next((one for one in ServerType if one.value == entry.get("dialect")), None)
    return Connection(**texts, server_type=server_type, is_watched=entry.get("is_watched") is True)


def check(name: str, base_url: str, others: Sequence[Connection]) -> list[Problem]:
    """Problems that prevent saving a connection. `others`: the other saved connections."""
    found: list[Problem] = []
    if not name.strip():
        found.append(Problem("name", "Enter a name."))
    elif len(name) > MAX_NAME or not name.isprintable():
        found.append(Problem("name", f"Use at most {MAX_NAME} printable characters."))
    elif any(one.name.casefold() == name.strip().casefold() for one in others):
        found.append(Problem("name", f"A connection named “{name.strip()}” already exists."))
    try:
        parse_address(base_url)
    except TargetError as error:
        found.append(Problem("base_url", str(error)))
    return found


def without_credentials(base_url: str) -> tuple[str, str]:
    """An address without its credentials, and the API key in them: the password, or the user name
    if there is no password."""
    text = base_url.strip()
    has_scheme = "://" in text
    try:
        parts = urlsplit(text if has_scheme else f"//{text}")
        key = parts.password or parts.username or ""
    except ValueError:
        return base_url, ""
    if "@" not in parts.netloc:
        return base_url, ""
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    assert isinstance(bare, SplitResult)
    clean = bare.geturl()
    return (clean if has_scheme else clean.removeprefix("//")), unquote(key)


def suggested_name(base_url: str, others: Sequence[Connection]) -> str:
    """The host of an address, with a number if the name is taken."""
    text = base_url if "://" in base_url else f"//{base_url}"
    try:
        host = urlsplit(text.strip()).netloc.rpartition("@")[2] or "Server"
    except ValueError:
        host = "Server"
    taken = {one.name.casefold() for one in others}
    name, number = host[:MAX_NAME], 1
    while name.casefold() in taken:
        number += 1
        name = f"{host} ({number})"
    return name


log = logging.getLogger(__name__)

SERVICE = "inferdeck"
NO_KEYRING = "No system keyring found. The key is kept in memory until the program exits."
_NOT_SAFE = ("keyring.backends.fail", "keyring.backends.null", "keyrings.alt")
"""Backends that store nothing, or store keys unencrypted."""


class KeyStore:
    """API keys by name. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_this_run: dict[str, str] = {}
        self.problem = ""
        """Why keys are kept for this run only; "" if they are stored."""

    def read(self, name: str) -> str:
        """The key, or ""."""
        with self._lock:
            if name not in self._of_this_run:
                found = self._ask(lambda keyring: keyring.get_password(SERVICE, name))
                self._of_this_run[name] = found or ""
            return self._of_this_run[name]

    def write(self, name: str, key: str) -> None:
        """Keep it; "" forgets it."""
        with self._lock:
            if self._of_this_run.get(name) == key:
                return
            self._of_this_run[name] = key
            self.problem = ""
            if key:
                self._ask(lambda keyring: keyring.set_password(SERVICE, name, key))
            else:
                self._ask(lambda keyring: keyring.delete_password(SERVICE, name))

    def _ask(self, work: Callable[[Any], str | None]) -> str | None:
        """The result of `work` on the keyring; None, with `problem` set, if there is none."""
        import keyring
        from keyring.errors import KeyringError, PasswordDeleteError

        backend = keyring.get_keyring()
        parts = getattr(backend, "backends", [backend])  # in order of priority
        if not parts or type(parts[0]).__module__.startswith(_NOT_SAFE):
            self.problem = NO_KEYRING
            return None
        try:
            return work(keyring)
        except PasswordDeleteError:  # there was none
            return None
        except (KeyringError, OSError, RuntimeError) as error:
            what = str(error).strip() or type(error).__name__
            log.warning("keyring error: %s", what)
            self.problem = f"Keyring error ({what}). The key stays in memory until exit."
            return None
