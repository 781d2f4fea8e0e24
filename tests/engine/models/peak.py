"""The most memory that torch's allocator had out at once, temporaries within operations too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch.autograd.profiler import profile


@dataclass
class Peak:
    """Bytes above what was there before; set when the block has ended."""

    bytes: int = 0
    left: int = 0


@contextmanager
def allocated() -> Iterator[Peak]:
    """Watch this process while the block runs: `left` is what it did not give back."""
    found = Peak()
    with profile(profile_memory=True) as seen:
        yield found
    events = seen.kineto_results.events()
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    for _, change in changes:
        found.left += change
        found.bytes = max(found.bytes, found.left)
