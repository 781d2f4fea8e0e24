"""Labs, windows and proxies of a test, taken down behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.app.wire.windows import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()
