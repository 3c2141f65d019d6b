"""Requests that a relay passes on, by themselves: how long one lasts of which nothing is heard."""

import pytest

from epochal.protocol import messages as m
from epochal.protocol.relay.effects import Forward, HangUp
from epochal.protocol.relay.forwarded_requests import ForwardedRequests


@pytest.mark.rule("F15")
def test_one_whose_asker_still_gives_credit_is_not_given_up() -> None:
    effects: list[object] = []
    forwarded_requests = ForwardedRequests("uid", lambda: bytes(16), effects.append, most=4, most_each=4, ttl=60.0)
    forwarded_requests.begin(b"asker", m.Since(7, "0", None, 1), 0.0)
    forwarded_requests.credit(b"asker", m.Credit(7, 1), 50.0)
    forwarded_requests.forget(70.0)
    assert len(forwarded_requests) == 1
    forwarded_requests.credit(b"other", m.Credit(7, 1), 100.0)
    forwarded_requests.credit(b"asker", m.Credit(8, 1), 100.0)
    forwarded_requests.forget(110.0)
    assert len(forwarded_requests) == 1, "60 seconds after 50, and not before"
    forwarded_requests.forget(110.1)
    assert len(forwarded_requests) == 0
    assert [type(effect) for effect in effects] == [Forward, HangUp]
