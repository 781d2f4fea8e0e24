"""Fault injection: numbered points at every stage of load, step, add, save, download, reconfigure,
unload, shutdown and of the engine's process.

    python -m tests.faults [--point N] [--kind KIND] [--json FILE]

A point names the attribute whose call fails: with an exception, a panic, MemoryError, a full disk,
or the death of the process. Each runs in a forked child with a limit of 20 s. Then the cause is
named, nothing acknowledged is lost, and what comes next succeeds as if nothing had failed.
"""
