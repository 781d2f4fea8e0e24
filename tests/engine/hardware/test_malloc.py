"""What steps free is kept; what a model frees goes back. In processes of their own: the C library's
settings are the whole process's."""

import subprocess
import sys

import pytest

from tests import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is told")

SCRIPT = """
import resource, sys, threading
from engine.hardware.malloc import give_back, keep_freed

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()

if sys.argv[1] == "keep":
    keep_freed()

def steps():
    import torch
    for _ in range(30):  # what small pieces lie between is found around first
        torch.empty(2**25, dtype=torch.uint8).fill_(1)
    before = faults()
    for _ in range(10):
        torch.empty(2**25, dtype=torch.uint8).fill_(1)
    found.append(faults() - before)

found = []
thread = threading.Thread(target=steps)
thread.start()
thread.join()
kept = resident()
give_back()
print(found[0], kept - resident())
"""

def run(mode: str, **environment: str) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, env={**environment},
        cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    faults, returned = map(int, done.stdout.split())
    return faults, returned


@pytest.mark.slow
def test_a_thread_uses_its_freed_memory_again_and_gives_it_back() -> None:
    faults, returned = run("keep")
    assert faults < 2 * 2**25 / 2**12  # of ten times as many pages
    assert returned >= 2**25


@pytest.mark.slow
def test_the_users_own_setting_stays() -> None:
    faults, _ = run("keep", MALLOC_MMAP_THRESHOLD_="1048576", MALLOC_ARENA_MAX="8")
    assert faults > 9 * 2**25 / 2**21  # taken anew each time, in pages of 2 MiB at the largest
