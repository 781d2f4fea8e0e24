"""A part runs in a process of its own: options in as JSON, figures out as a line of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def run_child(measure: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The main function of a part."""
    print(json.dumps(measure(json.loads(sys.argv[1]))), flush=True)
