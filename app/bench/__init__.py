"""Measuring the engine under load: workloads, the load generator, and the report."""
