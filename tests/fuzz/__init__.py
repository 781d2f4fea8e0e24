"""Random changes to files that others wrote: a message or the right answer, and nothing else.

    python -m tests.fuzz TARGET [--seconds 600] [--seed N] [--keep DIR]

`mutations` draws the changes, with hypothesis; `targets` reads what came out and compares it with
another reader's answer where there is one.
"""
