"""Replays a load with the scheduler on a step-time model. Pure Python and numpy: no torch.

Reads in this order: `step_time` (seconds of a step, fitted to measured steps, by `least_squares`),
`settings` (which ones can be replayed), `engine` (the scheduler on a clock that the model advances;
several steps at once in `decode_run`), `traffic` (the load of an engine, from its snapshots) and
`replay` (that load at other settings).
"""
