"""What `python -m tests.gpu.run_all` measures.

cell.py      the smallest thing that is measured, and its result
parts.py     which cells there are, and in which order
bench.py     the device and the engine that cells share
floors.py    the least that a step has to read and to compute
report.py    figures, fractions of the floors, verdicts
"""
