"""The tokens of one reply, with probabilities and alternatives.

Read `record` (a token), `paint` (what colours mean), `strip` (tokens in rows), `choices`
(alternatives at one place), `popover`.
"""
