"""Answers kept as bytes for as long as nothing that they show has changed.

Apart from the views because it knows nothing of what it keeps. Most of what a catalog is asked is one lookup again and
again, by clients that all start at once; making its JSON is a third of the time that one takes (docs/performance.md).
"""

import json
from collections.abc import Callable

AGE = 0.1
"""Seconds after which an answer is made anew all the same: it says how long something has lasted."""


class Remembered:
    """Answers by key, all of the same version of the state."""

    def __init__(self) -> None:
        self._version = -1
        self._answers: dict[str, tuple[float, bytes]] = {}

    def answer(self, key: str, version: int, now: float, make: Callable[[], object]) -> bytes:
        """The JSON of what `make` returns, or returned for this key and `version` less than `AGE` ago."""
        if version != self._version:
            self._version = version
            self._answers.clear()
        made, body = self._answers.get(key, (-AGE, b""))
        if not body or not 0 <= now - made < AGE:
            body = json.dumps(make()).encode()
            self._answers[key] = now, body
        return body
