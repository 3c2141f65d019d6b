"""Answers to lookups, kept as bytes while nothing that they show has changed.

Separate from the views because it does not depend on what it keeps. Most requests to a catalog are the same lookup
again and again, from clients that all start at once; making its JSON takes a third of the time of a lookup
(docs/performance.md).
"""

import json
from collections.abc import Callable

AGE = 0.1
"""Seconds after which an answer is made again in any case, because it says how long something has lasted."""


class Remembered:
    """Answers by key, all of the same version of the state."""

    def __init__(self) -> None:
        self._version = -1
        self._answers: dict[str, tuple[float, bytes]] = {}

    def answer(self, key: str, version: int, now: float, make: Callable[[], object]) -> bytes:
        """The JSON of what `make` returns now, or returned for this key and `version` less than `AGE` seconds ago."""
        if version != self._version:
            self._version = version
            self._answers.clear()
        made, body = self._answers.get(key, (-AGE, b""))
        if not body or not 0 <= now - made < AGE:
            body = json.dumps(make()).encode()
            self._answers[key] = now, body
        return body
