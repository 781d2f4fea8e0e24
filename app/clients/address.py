"""Base URLs in their spellings, and small requests bounded in time and size."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

import httpx

from app.clients.errors import TargetError

_OURS = ("/chat/completions", "/completions", "/models", "/v1")
"""Ends of addresses that people copy: what stands before them is the server's."""


@dataclass(frozen=True, slots=True)
class Address:
    """root: the server's URL without /v1 and without a slash at its end. `host` with the port, as
    the user knows it."""

    root: str
    host: str

    def api(self, path: str) -> str:
        """A path of the OpenAI API."""
        return f"{self.root}/v1/{path}"

    def beside(self, path: str) -> str:
        """A path beside the API: /metrics, /version."""
        return f"{self.root}/{path}"

    @property
    def is_here(self) -> bool:
        """Whether it is an address of this machine's own loopback."""
        name = httpx.URL(self.root).host
        if name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            return ip_address(name).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """Raises TargetError for what is not a server address."""
    given = text.strip()
    if not given:
        raise TargetError("The address is empty.", "Use the form http://host:port.", is_final=True)
    if "://" not in given:
        given = f"http://{given}"
    try:
        url = httpx.URL(given)
    except (httpx.InvalidURL, ValueError) as error:
        raise _bad(text, str(error)) from None
    if url.scheme not in ("http", "https"):
        raise _bad(text, f"the scheme is {url.scheme}://")
    if not url.host or any(c.isspace() for c in url.host):
        raise _bad(text, "it has no host")
    if url.port is not None and not 0 < url.port < 65536:
        raise _bad(text, f"the port is {url.port}")
    if url.userinfo:
        raise TargetError(
            "The address contains a user name or password.",
            "Enter the key in its own field: addresses are stored as plain text.", is_final=True,
        )  # fmt: skip
    if url.query or url.fragment:
        raise _bad(text, "it has a query or fragment")
    host = url.netloc.decode("ascii")
    return Address(f"{url.scheme}://{host}{_prefix(url.path)}", host)


def _prefix(path: str) -> str:
    path = path.rstrip("/")
    for end in _OURS:  # in this order: /v1 stands before the others
        path = path.removesuffix(end).rstrip("/")
    return path


def _bad(text: str, why: str) -> TargetError:
    return TargetError(
        f"{text.strip()[:200]!r} is not a server address: {why}.",
        "Use the form http://host:port.", is_final=True,
    )  # fmt: skip
