"""Measurements, run as programs: `python -m tests.benchmarks.peers`, `.paging`, `.gui_overhead`.

They are no tests: a number depends on the machine. Each prints a table, says which goals were met
or missed, and writes JSON with --output-json.
"""
