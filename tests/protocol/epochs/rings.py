"""Rings and cursors as tests need them: outcomes are texts, and a cursor is made from its frontier."""

from typing import Any

from epochal.protocol.epochs.ring import EpochRing, EpochRings
from epochal.protocol.messages import Position
from epochal.protocol.subscriber.cursor import Cursor


def cursor(*frontier: Any, **more: Any) -> Cursor:
    return Cursor("uid", {"0": Position(1, 5)}, frontier, **more)


def ring_of(*outcomes: tuple[str, Cursor], start: Cursor, most: int = 2**20) -> tuple[EpochRings[str], EpochRing[str]]:
    rings = EpochRings[str](most)
    ring = rings.open(start)
    for outcome, after in outcomes:
        rings.append(ring, outcome, 1, after)
    return rings, ring
