"""One engine step, from its launch to its events.

Reads in this order: `loop` (the step loop), `execute` (the in-flight step, async
scheduling), `output` (text, stop sequences, log probabilities).
"""
