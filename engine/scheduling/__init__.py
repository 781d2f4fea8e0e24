"""Continuous batching over a paged KV cache. Pure Python: no torch.

Reads in this order: `request`, `admission` (limits and refusals), `step_plan` (tokens per request
of a step), `scheduler` (makes the plans), `block_tables` and `block_pool` (KV blocks, prefix
cache), `invariants` (checked in tests and when idle).
"""
