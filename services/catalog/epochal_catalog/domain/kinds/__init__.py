"""The nouns of the catalog, one module for each; `NOUNS` is where a new one is registered."""

from typing import Any

from epochal_catalog.domain.kind import Kind
from epochal_catalog.domain.kinds import publishers, relays, segments, sessions, streams, subscriptions
from epochal_catalog.domain.registrations import PUBLISHERS
from epochal_catalog.domain.stream_entries import SEGMENTS, STREAMS

NOUNS = (streams.NOUN, segments.NOUN, sessions.NOUN, publishers.NOUN, subscriptions.NOUN, relays.NOUN)
"""In the order of the OpenAPI document."""
KINDS: tuple[Kind[Any, Any], ...] = tuple(
    dict.fromkeys((STREAMS, SEGMENTS, PUBLISHERS, *(noun.kind for noun in NOUNS)))
)
"""In the order of their tables, in which publishers come before sessions: a row comes after those that it refers to."""
