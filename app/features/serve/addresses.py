"""Addresses of this machine, free ports, and client examples. No Qt."""

from __future__ import annotations

import ipaddress
import json
import shlex
import socket
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil

from app.server.options import EVERYWHERE

TRIED_PORTS = 100


def network_addresses() -> list[str]:
    """IPv4 addresses of this machine for other machines, likeliest first."""
    states = psutil.net_if_stats()
    found: list[str] = []
    for name, entries in psutil.net_if_addrs().items():
        if name in states and not states[name].isup:
            continue
        found += [
            entry.address
            for entry in entries
            if entry.family is socket.AF_INET and _is_reachable(entry.address)
        ]
    return sorted(found, key=_rank)


def _is_reachable(address: str) -> bool:
    known = ipaddress.ip_address(address)
    return not (known.is_loopback or known.is_link_local or known.is_unspecified)


def _rank(address: str) -> int:
    """Container bridges (172.16/12) last."""
    return int(ipaddress.ip_address(address) in ipaddress.ip_network("172.16.0.0/12"))


def url_of(host: str, port: int) -> str:
    """The URL for other programs."""
    if host == EVERYWHERE:
        found = network_addresses()
        host = found[0] if found else socket.gethostname()
    return f"http://{host}:{port}"


def is_this_server(base_url: str, own_url: str) -> bool:
    try:
        given = urlsplit(base_url if "://" in base_url else f"//{base_url}")
        port = given.port or (443 if given.scheme == "https" else 80)
    except ValueError:
        return False
    here = {"localhost", "127.0.0.1", "::1", EVERYWHERE, socket.gethostname()}
    return port == urlsplit(own_url).port and given.hostname in here | set(network_addresses())


def next_free_port(host: str, port: int) -> int | None:
    """The next free port above `port`, or None."""
    for candidate in range(port + 1, min(port + TRIED_PORTS, 65_536)):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
            try:
                tried.bind((host, candidate))
            except OSError:
                continue
            return candidate
    return None


KEY_VARIABLE = "INFERDECK_API_KEY"
ANY_KEY = "none"
"""OpenAI's client requires a key, even where the server needs none."""


class Example(NamedTuple):
    title: str
    text: str
    about: str


def examples(url: str, model: str, *, has_key: bool) -> list[Example]:
    """`url` without a path. A key is taken from the variable `KEY_VARIABLE`."""
    question = "What is TTFT?"
    auth = f'\\\n  -H "Authorization: Bearer ${KEY_VARIABLE}" ' if has_key else ""
    name = json.dumps(model, ensure_ascii=False)
    body = f'{{"model": {name}, "messages": [{{"role": "user", "content": "{question}"}}]}}'
    curl = (
        f"curl {url}/v1/chat/completions {auth}\\\n"
        f"  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(body)}"
    )
    key = f'os.environ["{KEY_VARIABLE}"]' if has_key else f'"{ANY_KEY}"'
    python = (
        ("import os\n" if has_key else "")
        + "from openai import OpenAI\n\n"
        + f'client = OpenAI(base_url="{url}/v1", api_key={key})\n'
        + "stream = client.chat.completions.create(\n"
        + f"    model={name},\n"
        + f'    messages=[{{"role": "user", "content": "{question}"}}],\n'
        + "    stream=True,\n)\n"
        + "for chunk in stream:\n"
        + '    print(chunk.choices[0].delta.content or "", end="", flush=True)'
    )
    set_key = f"export {KEY_VARIABLE}=...   # the server's API key\n" if has_key else ""
    window = f"{set_key}inferdeck --attach {url}"
    environment = (
        f"export OPENAI_BASE_URL={url}/v1\n"
        + (f'export OPENAI_API_KEY="${KEY_VARIABLE}"' if has_key else
           f"export OPENAI_API_KEY={ANY_KEY}")
        + f"\nexport OPENAI_MODEL={shlex.quote(model)}"
    )  # fmt: skip
    bench = f"inferdeck bench --base-url {url} --workload mixed-lengths --concurrency 8"
    return [
        Example("curl", curl, "curl request from a terminal"),
        Example("Python", python, "Official OpenAI Python client"),
        Example("Inferdeck", window, "Attach Inferdeck from another machine"),
        Example("Environment", environment, "Environment variables for OpenAI clients"),
        Example("Benchmark", f"{set_key}{bench}", "Load test from another machine"),
    ]
