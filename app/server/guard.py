"""Who may call: the API key, and web pages only where they were named.

A page in a browser on this machine reaches 127.0.0.1 too. Its calls carry its origin, and after a
rebinding of DNS its own name as the host: without a key both are looked at.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.server.errors import ApiError
from app.server.options import ServerOptions, is_loopback
from app.server.reply import error_response

OPEN_PATHS = ("/health",)


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._options = options
        self._key = options.api_key.encode() if options.api_key is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_socket = scope["type"] == "websocket"
        if is_socket or (scope["type"] == "http" and scope["path"] not in OPEN_PATHS):
            headers = Headers(scope=scope)
            try:
                self._check(headers)
                if is_socket:
                    self._check_no_page(headers)
            except ApiError as error:
                # of a socket too: before it is accepted it is a request that can be answered
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers) -> None:
        if self._key is not None:
            self._check_key(headers.get("authorization", ""))
            return
        host = headers.get("host", "")
        if self._options.is_loopback and not _is_local(host, self._options.host):
            raise ApiError(
                403, f"This server is called 127.0.0.1 or localhost, not {host[:100]!r}.",
                code="host_not_allowed",
            )  # fmt: skip
        origin = headers.get("origin")
        if origin is not None and not self._may_call(origin, host):
            raise ApiError(
                403, f"Pages of {origin[:100]!r} may not call this server. "
                "Start it with --cors-origin and that origin.", code="origin_not_allowed",
            )  # fmt: skip

    def _check_key(self, given: str) -> None:
        assert self._key is not None
        scheme, _, key = given.partition(" ")
        # Header values are Latin-1; compared as bytes, in a time that says nothing.
        is_right = hmac.compare_digest(key.strip().encode("latin-1", "replace"), self._key)
        if scheme.lower() != "bearer" or not is_right:
            raise ApiError(
                401,
                "The API key is wrong."
                if given
                else "This server wants an API key: send the header Authorization: Bearer KEY.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _check_no_page(self, headers: Headers) -> None:
        """A browser names the page's origin with every socket; no page has business here."""
        origin = headers.get("origin")
        if origin is not None:
            raise ApiError(
                403, f"Web pages ({origin[:100]!r}) may not attach to the engine.",
                code="origin_not_allowed",
            )  # fmt: skip

    def _may_call(self, origin: str, host: str) -> bool:
        named = self._options.cors_origins
        return "*" in named or origin in named or origin in (f"http://{host}", f"https://{host}")


def _is_local(host: str, own: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return not name or name == own or is_loopback(name)
