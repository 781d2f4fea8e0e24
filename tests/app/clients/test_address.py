"""Base URLs as people write them."""

from __future__ import annotations

import pytest

from app.clients.errors import TargetError
from app.clients.target import parse_address


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("http://host:8000", "http://host:8000"),
        ("http://host:8000/", "http://host:8000"),
        ("http://host:8000/v1", "http://host:8000"),
        ("http://host:8000/v1/", "http://host:8000"),
        ("http://host:8000/v1/models", "http://host:8000"),
        ("http://host:8000/v1/chat/completions", "http://host:8000"),
        ("  host:8000  ", "http://host:8000"),
        ("host", "http://host"),
        ("https://host", "https://host"),
        ("https://host/openai/v1", "https://host/openai"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("[2001:db8::1]:8000", "http://[2001:db8::1]:8000"),
        ("HTTP://Host:8000", "http://host:8000"),
    ],
)
def test_all_of_them_are_the_server(text: str, root: str) -> None:
    address = parse_address(text)
    assert address.root == root
    assert address.api("models") == f"{root}/v1/models"
    assert address.beside("metrics") == f"{root}/metrics"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("ftp://host", "ftp://"),
        ("http://", "host"),
        ("http://host:port", "'port'"),
        ("http://host:99999999", "99999999"),
        ("http://user:secret@host:8000", "password"),
        ("http://host:8000/v1?key=1", "query"),
        ("http://host:8000/#x", "query"),
        ("file:///etc/passwd", "file://"),
    ],
)
def test_what_is_no_address_says_why(text: str, said: str) -> None:
    with pytest.raises(TargetError, match=said) as caught:
        parse_address(text)
    assert caught.value.is_final
    assert caught.value.remedy
    assert "secret" not in str(caught.value)


def test_this_machine_is_known() -> None:
    here = ("localhost:1", "127.0.0.1:1", "[::1]:1", "a.localhost", "127.8.8.8")
    assert all(parse_address(text).is_here for text in here)
    assert not any(parse_address(text).is_here for text in ("host:1", "10.0.0.1:1", "[fe80::1]:1"))
