"""Continuous batching over a paged KV cache. Pure Python: no torch.

Reads in this order: `request` (with the plan of a step, and admission limits), `scheduler` (makes
the plans), `block_tables` and `block_pool` (KV blocks, prefix cache, invariants).
"""
