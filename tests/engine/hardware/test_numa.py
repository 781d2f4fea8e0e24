"""The NUMA nodes of a machine, from what Linux says of them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.hardware.idle_cores import FreeCores, allowed_cores, cores_of, nodes
from engine.parallel.team import Team


def machine(folder: Path, **lists: str) -> Path:
    """As in /sys/devices/system/node: a folder each, beside files of other things."""
    folder.mkdir(exist_ok=True)
    (folder / "online").write_text("0-1\n")
    (folder / "node_of_names").mkdir()
    for name, text in lists.items():
        (folder / name).mkdir()
        (folder / name / "cpulist").write_text(f"{text}\n")
    return folder


def test_two_sockets_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = machine(tmp_path / "node", node10="6-7", node2="4-5", node0="0-1,8", node1="2-3")
    every = frozenset(range(16))
    assert nodes(folder, every) == ({0, 1, 8}, {2, 3}, {4, 5}, {6, 7})


def test_only_cores_that_may_be_used(tmp_path: Path) -> None:
    """And none of a node of memory alone, or of one that the process was kept from."""
    folder = machine(tmp_path / "node", node0="0-3", node1="4-7", node2="")
    assert nodes(folder, frozenset({2, 3, 5})) == ({2, 3}, {5})
    assert nodes(folder, frozenset({4, 5})) == ({4, 5},)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EINVAL])
def test_a_sandbox_that_forbids_to_ask_leaves_all_cores(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    for name in ("sched_getaffinity", "sched_setaffinity", "nice"):
        monkeypatch.setattr(os, name, refuse, raising=False)
    assert allowed_cores() == frozenset(range(os.cpu_count() or 1))
    free = FreeCores(2)
    assert free._last[1] is not None  # the use by other programs is still known
    two = (frozenset({0}), frozenset({1}))
    monkeypatch.setattr("engine.parallel.team.nodes", lambda: two)
    with closing(Team(["cpu", "cpu"], 1)) as team:
        assert team.together(lambda rank: rank) == [0, 1] and team.cores == [frozenset()] * 2


@pytest.mark.parametrize("text", ["0-x", "a", "1--2", "1-", "3-1"])
def test_what_is_not_understood_is_one_node(tmp_path: Path, text: str) -> None:
    folder = machine(tmp_path / "node", node0="0-1", node1=text)
    assert nodes(folder, frozenset({0, 1, 2, 3})) == ({0, 1, 2, 3},)


def test_one_node_where_the_system_does_not_tell(tmp_path: Path) -> None:
    own = frozenset({0, 1})
    assert nodes(tmp_path / "none", own) == (own,)
    (tmp_path / "node0").mkdir()  # without a list
    assert nodes(tmp_path, own) == (own,)
    assert nodes(machine(tmp_path / "far", node0="60-61"), own) == (own,)  # a container's own view


def test_on_this_machine_every_core_is_in_one_node_at_most() -> None:
    found = nodes()
    assert found and all(found)
    assert sum(map(len, found)) == len(frozenset().union(*found))
    assert frozenset().union(*found) <= allowed_cores()


@given(st.sets(st.integers(0, 300)))
def test_any_list_is_read(cores: set[int]) -> None:
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and runs[-1][1] == core - 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    text = ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
    assert cores_of(text) == cores


def test_it_imports_no_torch() -> None:
    """The window asks before there is an engine."""
    code = "import sys, engine.hardware.idle_cores; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
