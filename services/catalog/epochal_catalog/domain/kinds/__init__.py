"""The nouns of the catalog, one module for each; `NOUNS` is where a new one is registered."""

from epochal_catalog.domain.kinds import relays, sessions, subscriptions

NOUNS = (sessions.NOUN, subscriptions.NOUN, relays.NOUN)
"""In the order of their references: a row comes after those that it refers to."""
KINDS = tuple(noun.kind for noun in NOUNS)
