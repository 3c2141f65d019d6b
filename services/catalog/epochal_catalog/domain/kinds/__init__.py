"""The nouns of the catalog, one module for each; `NOUNS` is where a new one is registered."""

from typing import Any

from epochal_catalog.domain.kind import Kind
from epochal_catalog.domain.kinds import relays, sessions, subscriptions
from epochal_catalog.domain.registrations import PUBLISHERS
from epochal_catalog.domain.stream_entries import SEGMENTS, STREAMS

NOUNS = (sessions.NOUN, subscriptions.NOUN, relays.NOUN)
"""In the order of their references: a row comes after those that it refers to."""
KINDS: tuple[Kind[Any, Any], ...] = (STREAMS, SEGMENTS, PUBLISHERS, *(noun.kind for noun in NOUNS))
