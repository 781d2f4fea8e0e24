"""What `python -m tests.gpu.run_all` runs: cells, each measured on its own and kept.

cell.py        what is measured, and what came of it
parts.py       which cells there are, and in which order
supervisor.py  runs them in processes of their own, within limits of time
worker.py      such a process; the modules that measure are named by the cells
store.py       results on disk, so that a later run carries on
floors.py      what a step has to read and to compute at least
report.py      all results together: figures, fractions of the floors, verdicts
"""
