"""How other programs call the server: ready to be copied. The key stands in them only where it was
asked for. No Qt."""

from __future__ import annotations

import json
import shlex
from typing import NamedTuple

KEY_VARIABLE = "INFERDECK_API_KEY"
ANY_KEY = "none"
"""OpenAI's client wants a key also where the server wants none."""


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
    set_key = f"export {KEY_VARIABLE}=...   # the key of the server\n" if has_key else ""
    window = f"{set_key}inferdeck --attach {url}"
    environment = (
        f"export OPENAI_BASE_URL={url}/v1\n"
        + (f'export OPENAI_API_KEY="${KEY_VARIABLE}"' if has_key else
           f"export OPENAI_API_KEY={ANY_KEY}")
        + f"\nexport OPENAI_MODEL={shlex.quote(model)}"
    )  # fmt: skip
    bench = f"inferdeck bench --base-url {url} --workload mixed-lengths --concurrency 8"
    return [
        Example("curl", curl, "One question from a terminal"),
        Example("Python", python, "OpenAI's own client, as for any other service"),
        Example("Inferdeck", window, "A window elsewhere, with all views of this engine"),
        Example("Environment", environment, "For programs that read OpenAI's variables"),
        Example("Benchmark", f"{set_key}{bench}", "A load from another machine"),
    ]
