"""Broken and hostile inputs: each ends with a message, and none with a traceback or wrong tokens.

    python -m tests.corpus [--kind KIND] [--only TEXT] [--sample SECONDS] [--json FILE]

A case is an unbroken control with one change; its key says which. `controls` makes the controls and
says what they generate, the other modules are tables of changes by kind. `child` runs a case in a
process of its own, forked from one that has imported everything.
"""
