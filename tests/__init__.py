"""Tests mirror the rooms of app, engine and widgets."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
"""The checkout."""
