"""The NUMA nodes of the machine: which logical cores are near to which part of the memory."""

from __future__ import annotations

from pathlib import Path

from engine.threads.crowding import allowed_cores

SYSFS = Path("/sys/devices/system/node")


def nodes(
    folder: Path = SYSFS, allowed: frozenset[int] | None = None
) -> tuple[frozenset[int], ...]:
    """The logical cores of each node that this process may use, in the order of the nodes' numbers;
    nodes without any (of memory alone, or of cores that it may not use) are left out. One node with
    all cores where the system does not tell. folder, allowed: given in tests."""
    allowed = allowed_cores() if allowed is None else allowed
    found = []
    for place in _folders(folder):
        try:
            cores = cores_of((place / "cpulist").read_text()) & allowed
        except (OSError, ValueError):  # half of it says nothing of the machine
            return (allowed,)
        if cores:
            found.append(cores)
    return tuple(found) or (allowed,)


def cores_of(text: str) -> frozenset[int]:
    """Linux's list of cores: "0-3,8-11", a single "5", or nothing. Raises ValueError for others."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        begin, end = int(first), int(last) if dash else int(first)
        if not 0 <= begin <= end:
            raise ValueError(f"{part!r} is no range of cores")
        cores.update(range(begin, end + 1))
    return frozenset(cores)


def _folders(folder: Path) -> list[Path]:
    numbered = [place for place in folder.glob("node[0-9]*") if place.name[4:].isdigit()]
    return sorted(numbered, key=lambda place: int(place.name[4:]))
