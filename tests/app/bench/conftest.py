"""Servers that answer as the test says."""

from __future__ import annotations

from tests.app.dialects.conftest import server

__all__ = ["server"]
