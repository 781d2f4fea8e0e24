"""Latency breakdown of one reply: queue, prefill, and every gap between tokens.

Read `causes` (why a gap was long), `reply` (the breakdown), `chart` (texts and bars), `view` (both
together), `popover`.
"""
