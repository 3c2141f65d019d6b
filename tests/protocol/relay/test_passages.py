"""Requests that a relay passes on, by themselves: how long one lasts of which nothing is heard."""

import pytest

from epochal.protocol import messages as m
from epochal.protocol.relay.effects import Forward, HangUp
from epochal.protocol.relay.passages import Passages


@pytest.mark.rule("F15")
def test_one_whose_asker_still_gives_credit_is_not_given_up() -> None:
    effects: list[object] = []
    passages = Passages("uid", lambda: bytes(16), effects.append, most=4, most_each=4, ttl=60.0)
    passages.begin(b"asker", m.Since(7, "0", None, 1), 0.0)
    passages.credit(b"asker", m.Credit(7, 1), 50.0)
    passages.forget(70.0)
    assert len(passages) == 1
    passages.credit(b"other", m.Credit(7, 1), 100.0)
    passages.credit(b"asker", m.Credit(8, 1), 100.0)
    passages.forget(110.0)
    assert len(passages) == 1, "60 seconds after 50, and not before"
    passages.forget(110.1)
    assert len(passages) == 0
    assert [type(effect) for effect in effects] == [Forward, HangUp]
