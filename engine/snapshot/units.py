"""Another name of `engine.units`, until all of its users import that."""

# ruff: noqa: F403

from engine.units import *
