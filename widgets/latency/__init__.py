"""Latency breakdown of one reply: queue, prefill, and every gap between tokens.

Read `reply` (the breakdown), `chart` (its texts and bars), `popover`.
"""
