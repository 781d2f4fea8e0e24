"""Changes to bytes and to JSON, from small to absurd."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

NUMBERS = (0, 1, -1, 2, 3, 7, 8, 16, 63, 64, 65, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53 + 1,
           2**63 - 1, 2**63, 2**64, 10**30, 0.5, -0.5, 1e-300, 1e300, float("nan"),
           float("inf"), float("-inf"))  # fmt: skip
TEXTS = ("", "a", "F32", "I32", "BF16", "true", "../x", "/etc/passwd", "re:(a+)+$", "\0", "\ud800",
         "{{ messages }}", "model.safetensors", "x" * 3000)  # fmt: skip

scalars = (
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.sampled_from(TEXTS)
    | st.integers() | st.floats() | st.text(max_size=8)
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)


@st.composite
def changed_json(draw: st.DrawFn, original: Any) -> bytes:
    """One to three places of a JSON value changed, and sometimes its text too."""
    root = [copy.deepcopy(original)]
    for _ in range(draw(st.integers(1, 3))):
        _change_place(draw, root)
    text = json.dumps(root[0]).encode()
    return draw(changed_bytes(text, 1)) if draw(st.integers(0, 9)) == 0 else text


def _change_place(draw: st.DrawFn, root: list[Any]) -> None:
    holder: Any = root
    place: Any = 0
    while isinstance(holder[place], (dict, list)) and holder[place]:
        inner = holder[place]
        if len(inner) < 50 and draw(st.integers(0, 7)) == 0:
            break  # this one as a whole
        keys = list(inner) if isinstance(inner, dict) else range(len(inner))
        holder, place = inner, draw(st.sampled_from(keys))
    match draw(st.integers(0, 5)):
        case 0 if holder is not root:
            del holder[place]
        case 1 if isinstance(holder, dict):
            holder[draw(st.text(max_size=8) | st.sampled_from(list(holder)))] = holder[place]
        case 2 if isinstance(holder[place], int) and not isinstance(holder[place], bool):
            holder[place] += draw(st.sampled_from((-64, -2, -1, 1, 2, 64)))
        case 3:
            holder[place] = [holder[place]]
        case _:
            holder[place] = draw(values)


@st.composite
def changed_bytes(draw: st.DrawFn, original: bytes, most: int = 4) -> bytes:
    """Some places overwritten, removed, doubled or cut off."""
    raw = bytearray(original)
    for _ in range(draw(st.integers(1, most))):
        # beginnings have the structure
        last = max(0, len(raw) - 1)
        start = draw(st.integers(0, last) | st.integers(0, min(last, 200)))
        length = draw(st.integers(1, 64))
        match draw(st.integers(0, 5)):
            case 0:
                del raw[start:]
            case 1:
                del raw[start : start + length]
            case 2:
                raw[start:start] = raw[start : start + length]
            case 3:
                raw[start : start + 8] = draw(
                    st.sampled_from(
                        [int(n).to_bytes(8, "little", signed=n < 0) for n in NUMBERS[:19]]
                    )
                )
            case _:
                new = draw(st.binary(min_size=1, max_size=length))
                raw[start : start + len(new)] = new
    return bytes(raw)
