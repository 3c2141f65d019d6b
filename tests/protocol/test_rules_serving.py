"""Joins against what is queued at the same moment (S9)."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.protocol.recorded import record_all

from epochal.protocol import messages as m
from epochal.protocol.publisher.effects import Private, Push

NONCE = b"n" * 16


@pytest.mark.rule("S9", "E14")
def test_a_snapshot_comes_after_the_events_that_it_reflects_and_before_all_later_ones(
    wire_up: Callable[..., Any],
) -> None:
    wiring = wire_up()
    publisher, server = wiring.publishers["0"], wiring.servers["0"]
    writer = wiring.writer()
    record_all(publisher)
    server.receive(b"r", m.Hello(1, (m.VERSION,), wiring.stream, "0", NONCE), 0.0)
    publisher.take()
    append = m.Append("0", 0, 3, b"", 1, 0, b"")
    publisher.receive(writer.peers["0"], append, 0.0)
    server.subscribed(NONCE, 0.0)
    publisher.receive(writer.peers["0"], append._replace(number=1), 0.0)
    before, snapshot, after = (each.message for each in publisher.take() if isinstance(each, Push | Private))
    assert isinstance(before, m.Data)
    assert isinstance(snapshot, m.Snapshot)
    assert isinstance(after, m.Data)
    assert (snapshot.seq, snapshot.upper) == (before.seq, (3,))
    assert after.seq == before.seq + 1
