"""The storage dtypes of keys and values in the KV cache.

    "auto"              the model's dtype
    "int8", "fp8"       both in 8 bits, with a 16-bit scale for each token and head
    "k=int8,v=fp8"      separate dtypes for keys and values

Pure Python: no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from engine.errors import ConfigError

AUTO, FP8, INT8 = "auto", "fp8", "int8"
NAMES = (AUTO, FP8, INT8)
SCALE_BYTES = 2
REMEDY = "Choose auto, fp8 (e4m3) or int8, or set keys and values separately: k=int8,v=fp8."


class KVDtype(NamedTuple):
    """The storage dtype of keys and that of values, each one of `NAMES`."""

    keys: str = AUTO
    values: str = AUTO

    @property
    def is_quantized(self) -> bool:
        return self != PLAIN

    def resolved(self, model_dtype: str) -> KVDtype:
        """With the model's precision in the place of "auto"."""
        return KVDtype(*(model_dtype if name == AUTO else name for name in self))


PLAIN = KVDtype()


class KVWidths(NamedTuple):
    """The size of one token in the cache: elements of keys and of values, and heads, each with a
    scale if quantized. Of one layer, or the sum of several."""

    keys: int = 0
    values: int = 0
    heads: int = 0

    @classmethod
    def sum(cls, parts: Iterable[KVWidths]) -> KVWidths:
        return cls(*map(sum, zip(*parts, strict=True)))

    def bytes_per_token(self, dtype: KVDtype, itemsize: int) -> int:
        """`itemsize`: bytes of an element in the model's precision."""
        sides = zip(dtype, (self.keys, self.values), strict=True)
        return sum(
            width * itemsize if name == AUTO else width + self.heads * SCALE_BYTES
            for name, width in sides
        )


def parse_kv_dtype(text: str) -> KVDtype:
    """Read a value of the setting kv_cache_dtype; ConfigError where it is none."""
    if text in NAMES:
        return KVDtype(text, text)
    sides = [part.partition("=")[::2] for part in text.replace(" ", "").split(",")]
    found = dict(sides)
    if len(sides) != 2 or set(found) != {"k", "v"} or not set(found.values()) <= set(NAMES):
        raise ConfigError(f"Invalid kv_cache_dtype: {text!r}.", REMEDY)
    return KVDtype(found["k"], found["v"])


def check_kv_dtype(value: object) -> None:
    """Raise ConfigError unless `value` is one of the setting kv_cache_dtype."""
    if not isinstance(value, str):
        raise ConfigError(f"Invalid kv_cache_dtype: {value!r}.", REMEDY)
    parse_kv_dtype(value)
