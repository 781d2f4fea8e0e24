"""Network and HTTP errors as TargetError: cause and remedy."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import httpx

from app.clients.target import TargetError
from engine.units import rough_duration

MOST_WORDS = 300
"""Characters of a server's own message that are shown."""
_NO_REPLICA = (b"No available workers", b"No workers are currently available")
"""Of vllm-router (src/routers/http/router.rs)."""


def of_transport(error: Exception, host: str) -> TargetError:
    """From what httpx raises: refused, unknown, TLS, too slow, not HTTP, cut."""
    causes = list(_chain(error))
    has = lambda kind: any(isinstance(one, kind) for one in causes)
    words = str(error).strip()
    is_final = False
    if has(socket.gaierror):
        name = host.rsplit(":", 1)[0] if host.count(":") == 1 else host
        cause, remedy = f"Unknown host {name!r}.", "Check the host name and DNS."
    elif has(ssl.SSLError):
        return _of_tls(next(one for one in causes if isinstance(one, ssl.SSLError)), host)
    elif isinstance(error, httpx.ConnectTimeout | httpx.ConnectError):
        if has(ConnectionRefusedError):
            cause = f"Connection refused: nothing is listening on {host}."
            remedy = "Start the server, or check the port."
        elif isinstance(error, httpx.ConnectTimeout):
            cause, remedy = f"{host} does not respond.", "Check the address and firewall."
        else:
            of_system = (one.strerror for one in causes if isinstance(one, OSError))
            cause = f"Cannot reach {host}{_quoted(next(filter(None, of_system), ''))}."
            remedy = "Check the address and the network."
    elif isinstance(error, httpx.TimeoutException):
        cause = f"{host} did not respond in time."
        remedy = "The server may be busy or still loading the model. Try again shortly."
    elif isinstance(error, httpx.RemoteProtocolError):
        if "disconnected without sending" in words:
            cause = f"{host} closed the connection without sending an HTTP response."
            remedy = "Check the port, or use https:// in the address."
        elif "incomplete" in words or "peer closed" in words:
            cause = f"{host} closed the connection mid-response."
            remedy = "Check that the server is running, and see the server log."
        else:
            cause, is_final = f"{host} is not an HTTP server.", True
            remedy = "Check the port, or use https://."
    elif isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
        cause, is_final = f"{host} is not a server address: {error}.", True
        remedy = "Use the form http://host:port."
    elif isinstance(error, httpx.NetworkError):
        cause = f"Connection to {host} lost."
        remedy = "Check that the server is running, and see the server log."
    else:
        cause = f"Cannot query {host}: {words or type(error).__name__}."
        remedy = "Check the address and the network."
    return TargetError(cause, remedy, is_final=is_final)


def is_timeout(error: TargetError) -> bool:
    """Whether the server did not answer in time."""
    return isinstance(error.__cause__, httpx.TimeoutException)


def of_silent_metrics(host: str, seconds: float) -> TargetError:
    """A server that answers, except for its metrics."""
    return TargetError(
        f"{host} responds, but its /metrics does not: no answer in {rough_duration(seconds)}.",
        "See the server log.",
    )


def _of_tls(error: ssl.SSLError, host: str) -> TargetError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return TargetError(
            f"The TLS certificate of {host} is not trusted: {error.verify_message}.",
            "Use the host name in the certificate. Add its CA to the system trust store, or set "
            "SSL_CERT_FILE.",
            is_final=True,
        )
    return TargetError(
        f"{host} does not support HTTPS ({error.reason or 'the TLS handshake failed'}).",
        "Use http:// in the address, or check the port.", is_final=True,
    )  # fmt: skip


def of_status(
    status: int, body: bytes, headers: httpx.Headers, host: str, has_key: bool
) -> TargetError:
    said = f"({status}{_quoted(server_text(body))})"
    is_final = True
    if status in (401, 403) and not has_key:
        cause, remedy = f"{host} needs an API key ({status}).", "Enter the API key."
    elif status in (401, 403):
        cause, remedy = f"{host} rejected the API key {said}.", "Use the server's API key."
    elif 300 <= status < 400:
        where = headers.get("location", "")[:MOST_WORDS] or "another address"
        cause, remedy = f"{host} redirects to {where}.", "Use that address."
    elif status == 404:
        cause = f"Path not found on server {host} {said}."
        remedy = "Check the address: it must end with the port or /v1."
    elif status == 429:
        cause, remedy, is_final = f"{host} is overloaded {said}.", "Try again shortly.", False
    elif status == 503 and any(words in body for words in _NO_REPLICA):
        cause, is_final = f"No replica of the router {host} responds ({status}).", False
        remedy = "Start a replica. The router uses it again within seconds."
    elif status in (502, 503, 504):
        cause, is_final = f"{host} is not ready {said}.", False
        remedy = "The server may still be loading the model. Try again shortly."
    elif 400 <= status < 500:
        cause, remedy = f"{host} rejected the request {said}.", "Check the request parameters."
    else:
        cause, remedy, is_final = f"{host} returned an error {said}.", "See the server log.", False
    return TargetError(cause, remedy, is_final=is_final)


def server_text(body: bytes) -> str:
    """The message in an error's body, in the shapes that servers have: OpenAI's object, vLLM's and
    TensorRT-LLM's flat one, FastAPI's detail, TGI's error text. "" if there is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
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


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes."""
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
