"""What goes wrong on the way to a server, in words: one class, with cause and remedy."""

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
    """A server that cannot be reached, or does not answer as one that serves models.

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
            f"There is no host {_name(host)!r}: its address is not known.",
            "Check the spelling, and that this machine is in the same network.",
        )
    for one in causes:
        if isinstance(one, ssl.SSLError):
            return _of_tls(one, host)
    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError):
        return _not_connected(error, causes, host)
    if isinstance(error, httpx.TimeoutException):
        return TargetError(
            f"{host} was reached and did not answer in time.",
            "It may be busy or still loading its model: try again shortly.",
        )
    if isinstance(error, httpx.RemoteProtocolError):
        if "disconnected without sending" in str(error):
            return TargetError(
                f"{host} closed the connection without an answer in HTTP.",
                "Check the port: another service may have it. Where it speaks HTTPS, write "
                "https:// at the beginning of the address.",
            )
        if "incomplete" in str(error) or "peer closed" in str(error):
            return TargetError(
                f"{host} stopped in the middle of its answer.",
                "See whether the server still runs, and its log.",
            )
        return TargetError(
            f"What answers on {host} does not speak HTTP.",
            "The port belongs to another service, or wants https://. Check the port.",
            is_final=True,
        )
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
        return TargetError(
            f"{host} is no address of a server: {error}.",
            "Write it as http://host:port.", is_final=True,
        )  # fmt: skip
    if isinstance(error, httpx.NetworkError):
        return TargetError(
            f"The connection to {host} was cut.", "See whether the server still runs, and its log."
        )
    words = str(error).strip() or type(error).__name__
    return TargetError(f"{host} cannot be asked: {words}.", "Check the address and the network.")


def _not_connected(error: Exception, causes: list[BaseException], host: str) -> TargetError:
    if any(isinstance(one, ConnectionRefusedError) for one in causes):
        return TargetError(
            f"Nothing listens on {host}: the connection was refused.",
            "Start the server, or check the port.",
        )
    if isinstance(error, httpx.ConnectTimeout):
        return TargetError(
            f"{host} does not answer.",
            "Check the address, and that no firewall stands between.",
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
            "Use the name that the certificate is for, and add its authority to this machine's "
            "(or name its file in SSL_CERT_FILE).",
            is_final=True,
        )
    return TargetError(
        f"{host} does not speak HTTPS ({error.reason or 'the TLS handshake failed'}).",
        "Write http:// in the address, or check the port.", is_final=True,
    )  # fmt: skip


def of_status(status: int, body: bytes, headers: httpx.Headers, host: str, has_key: bool,
              ) -> TargetError:  # fmt: skip
    """From an answer that is no success."""
    said = server_words(body)
    if status in (401, 403):
        if not has_key:
            return TargetError(
                f"{host} wants an API key ({status}).", "Enter its key.", is_final=True
            )
        return TargetError(
            f"{host} does not accept the API key ({status}{_quoted(said)}).",
            "Check the key: it is the one that the server was started with.", is_final=True,
        )  # fmt: skip
    if 300 <= status < 400:
        where = headers.get("location", "")[:MOST_WORDS]
        return TargetError(
            f"{host} redirects to {where or 'another address'}.",
            "Give that address instead.", is_final=True,
        )  # fmt: skip
    if status == 404:
        return TargetError(
            f"{host} has nothing at this path (404{_quoted(said)}).",
            "Check the address: it is that of the server, without anything behind /v1.",
            is_final=True,
        )
    if status == 429:
        return TargetError(f"{host} has too much to do (429{_quoted(said)}).", "Try again shortly.")
    if status in (502, 503, 504):
        return TargetError(
            f"{host} is not ready ({status}{_quoted(said)}).",
            "It may still be loading its model: try again shortly.",
        )
    if 400 <= status < 500:
        return TargetError(
            f"{host} refused the request ({status}{_quoted(said)}).",
            "Change what the message names.", is_final=True,
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
