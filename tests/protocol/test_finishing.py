"""How a segment comes to be complete, where the answers of the catalog come late."""

import pytest

from epochal.protocol import messages as m
from epochal.protocol.publisher.completion import SegmentCompletion
from epochal.protocol.publisher.effects import Reply

OPEN = m.Open(1, "uid", "0", "w", 2, None, None)


@pytest.mark.rule("E7")
def test_only_the_answer_to_the_last_report_lets_writers_in() -> None:
    finishing = SegmentCompletion(complete=False, stands=False)
    first = finishing.report(True)
    second = finishing.wait(b"peer", OPEN)
    assert second is not None
    assert finishing.cancelled(first.number) == []
    assert len(finishing.waiting) == 1
    assert finishing.cancelled(second.number) == [(b"peer", OPEN)]
    assert not finishing.stands


@pytest.mark.rule("E7")
def test_only_the_answer_to_the_last_report_confirms_a_finish() -> None:
    finishing = SegmentCompletion(complete=False, stands=False)
    first, second = finishing.report(True), finishing.report(True)
    done = Reply(b"peer", m.Done(1, "0"))
    assert finishing.confirm_later(done)
    assert finishing.answered(first.number) == []
    assert finishing.answered(second.number) == [done]
    assert not finishing.confirm_later(done)
