"""Benchmarks: workloads, load, reports.

Reads in this order: `workload`, `load` and `runner` (an engine of this process), `client` and
`remote` (a server), `report` and `server_metrics`.
"""
