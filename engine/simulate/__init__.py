"""Replays a load with the scheduler on a step-time model. Pure Python and numpy: no torch.

Reads in this order: `step_time` (seconds of a step, fitted to measured steps, by `least_squares`)
and `engine` (the scheduler on a clock that the model advances).
"""
