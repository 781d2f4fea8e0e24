"""The workstation window measured: one module for each part, each run in a process of its own."""
