"""TargetError: network and HTTP errors with cause and remedy."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import httpx

from engine.errors import InferdeckError

MOST_WORDS = 300
"""Characters of a server's own message that are shown."""


class TargetError(InferdeckError):
    """A server that is unreachable or does not respond as a model server.

    is_final: trying again as it is would not help (a wrong key, an address that is something else).
    """

    def __init__(self, cause: str, remedy: str = "", *, is_final: bool = False) -> None:
        super().__init__(cause, remedy)
        self.is_final = is_final


def of_transport(error: Exception, host: str) -> TargetError:
    """From what httpx raises: refused, unknown, TLS, too slow, not HTTP, cut."""
    causes = list(_chain(error))
    if any(isinstance(one, socket.gaierror) for one in causes):
        return TargetError(
            f"Unknown host {_name(host)!r}.",
            "Check the spelling and the network.",
        )
    for one in causes:
        if isinstance(one, ssl.SSLError):
            return _of_tls(one, host)
    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError):
        return _not_connected(error, causes, host)
    if isinstance(error, httpx.TimeoutException):
        return TargetError(
            f"{host} did not respond in time.",
            "It may be busy or loading its model. Try again shortly.",
        )
    if isinstance(error, httpx.RemoteProtocolError):
        if "disconnected without sending" in str(error):
            return TargetError(
                f"{host} closed the connection without an HTTP response.",
                "Check the port, or use https:// in the address.",
            )
        if "incomplete" in str(error) or "peer closed" in str(error):
            return TargetError(
                f"{host} closed the connection during its response.",
                "Check that the server is running, and see its log.",
            )
        return TargetError(
            f"{host} is not an HTTP server.",
            "Check the port, or use https://.",
            is_final=True,
        )
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
        return TargetError(
            f"{host} is not a server address: {error}.",
            "Use the form http://host:port.", is_final=True,
        )  # fmt: skip
    if isinstance(error, httpx.NetworkError):
        return TargetError(
            f"Connection to {host} lost.", "Check that the server is running, and see its log."
        )
    words = str(error).strip() or type(error).__name__
    return TargetError(f"Cannot query {host}: {words}.", "Check the address and the network.")


def _not_connected(error: Exception, causes: list[BaseException], host: str) -> TargetError:
    if any(isinstance(one, ConnectionRefusedError) for one in causes):
        return TargetError(
            f"Connection refused: nothing listens on {host}.",
            "Start the server, or check the port.",
        )
    if isinstance(error, httpx.ConnectTimeout):
        return TargetError(
            f"{host} does not respond.",
            "Check the address and firewalls.",
        )
    words = next((one.strerror for one in causes if isinstance(one, OSError) and one.strerror), "")
    return TargetError(
        f"{host} cannot be reached{f': {words}' if words else ''}.",
        "Check the address and the network.",
    )


def _of_tls(error: ssl.SSLError, host: str) -> TargetError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return TargetError(
            f"The certificate of {host} is not trusted: {error.verify_message}.",
            "Use the certificate's host name. Add its authority to this machine's store, or set "
            "SSL_CERT_FILE to its file.",
            is_final=True,
        )
    return TargetError(
        f"{host} does not support HTTPS ({error.reason or 'the TLS handshake failed'}).",
        "Use http:// in the address, or check the port.", is_final=True,
    )  # fmt: skip


def of_status(status: int, body: bytes, headers: httpx.Headers, host: str, has_key: bool,
              ) -> TargetError:  # fmt: skip
    """From an answer that is no success."""
    said = server_words(body)
    if status in (401, 403):
        if not has_key:
            return TargetError(
                f"{host} needs an API key ({status}).", "Enter the key.", is_final=True
            )
        return TargetError(
            f"{host} rejected the API key ({status}{_quoted(said)}).",
            "Use the key of the server.", is_final=True,
        )  # fmt: skip
    if 300 <= status < 400:
        where = headers.get("location", "")[:MOST_WORDS]
        return TargetError(
            f"{host} redirects to {where or 'another address'}.",
            "Use that address.", is_final=True,
        )  # fmt: skip
    if status == 404:
        return TargetError(
            f"{host} has no such path (404{_quoted(said)}).",
            "Check the address: it must end in the port or /v1.",
            is_final=True,
        )
    if status == 429:
        return TargetError(f"{host} is overloaded (429{_quoted(said)}).", "Try again shortly.")
    if status in (502, 503, 504):
        return TargetError(
            f"{host} is not ready ({status}{_quoted(said)}).",
            "It may be loading its model. Try again shortly.",
        )
    if 400 <= status < 500:
        return TargetError(
            f"{host} rejected the request ({status}{_quoted(said)}).",
            "See the message.", is_final=True,
        )  # fmt: skip
    return TargetError(f"{host} failed ({status}{_quoted(said)}).", "See the server's log.")


def server_words(body: bytes) -> str:
    """The message in an error's body, in the shapes that servers have: OpenAI's object, vLLM's and
    TensorRT-LLM's flat one, FastAPI's detail, TGI's error text. "" where there is none."""
    try:
        value = json.loads(body)
    except ValueError:
        return ""
    return message_in(value)[:MOST_WORDS]


def message_in(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return "; ".join(filter(None, map(message_in, value)))
    if isinstance(value, dict):
        for key in ("error", "message", "detail", "msg"):
            if value.get(key):
                return message_in(value[key])
    return ""


def _quoted(words: str) -> str:
    return f": {words}" if words else ""


def _name(host: str) -> str:
    return host.rsplit(":", 1)[0] if host.count(":") == 1 else host


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and all that it was raised from."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
