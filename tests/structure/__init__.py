"""Measures how the code is laid out: `python -m tests.structure [--root DIR] [--json FILE]`.

It reads the files of a checkout (what git tracks, and what it does not ignore) and imports none of
them, so that another version can be measured, whatever its modules are called. Only `--trace` runs
the program: see token_path. How each number is made stands at the function that makes it.
"""
