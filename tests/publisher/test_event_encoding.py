"""What HTTP clients are told, word by word."""

import json

import msgpack
import pytest

from epochal.protocol.log.history import SegmentState
from epochal.protocol.messages import Position
from epochal_publisher.http.event_encoding import EventEncoder, opening


@pytest.mark.rule("E11", "E13")
@pytest.mark.parametrize("form", ["lines", "packed"])
def test_every_answer_begins_with_what_is_under_way_what_is_aborted_and_what_was_lost(form: str) -> None:
    first = opening(Position(2, 8), 3, SegmentState(8, ((0, 1),), ((1, 1), (2, 1)), ((0, 4),), ((5, 5),)))
    encoder = EventEncoder("bytes")
    told = json.loads(encoder.lines(first, [])) if form == "lines" else msgpack.unpackb(encoder.packed(first, []))
    assert told == {
        "kind": "opening",
        "position": [2, 8],
        "incarnation": 3,
        "lower": [[0, 1]],
        "active": [[1, 1], [2, 1]],
        "aborted": [[0, 4]],
        "below": [[5, 5]],
    }
