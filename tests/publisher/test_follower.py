"""A reader's place in a segment's history, where the real process gets there too rarely to wait for it."""

from types import SimpleNamespace
from typing import Any

import pytest

from epochal.errors import Unavailable
from epochal.protocol import messages as m
from epochal.protocol.history import History, empty_state
from epochal_publisher.follower import Follower


@pytest.mark.rule("E9", "E12")
async def test_a_reader_behind_what_is_gone_does_not_wait_in_a_circle_for_what_may_not_be_told_yet() -> None:
    """After a stall nothing is told before the lease stands again; retention may overtake what was told meanwhile."""
    history = History(empty_state((0,)), max_bytes=250, max_age=60.0)
    history.incarnations = [(1, 0)]
    for seq in range(3):
        history.append(m.Data(seq, seq - 1, 0, b"", 1, 0, b"x"), 0.0)
    publisher = SimpleNamespace(history=history, incarnation=1, seq=history.last)
    served: Any = SimpleNamespace(publisher=publisher, store=None, told_seq=0, told_lower=((0,),))
    process: Any = SimpleNamespace(http_closing=False)
    follower = Follower(process, served)
    follower.at = -1
    with pytest.raises(Unavailable):
        await follower.next(10, 1000)
