"""Measurements of the engine; they never change what it computes.

Reads in this order: `recorder` (steps and latency samples), `snapshots` (the state as records),
`metrics` (exported to Prometheus), `step_cost` (bytes and operations against the machine's peaks),
`situation` (recent steps with other work), `kernel_times` (the same by measured kernels), `what_if`
(estimates the `gain` of each setting), and `profiler` with `operation_work` (the time of steps by
operation).
"""
