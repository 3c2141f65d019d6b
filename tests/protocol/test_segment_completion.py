"""How a segment comes to be complete, where the answers of the catalog come late."""

import pytest

from epochal.protocol import messages as m
from epochal.protocol.publisher.completion import SegmentCompletion
from epochal.protocol.publisher.effects import Reply

OPEN = m.Open(1, "uid", "0", "w", 2, None, None)


@pytest.mark.rule("E7")
def test_only_the_answer_to_the_last_report_lets_writers_in() -> None:
    completion = SegmentCompletion(complete=False, finishing=False)
    first = completion.last_finished()
    second = completion.wait(b"peer", OPEN)
    assert second is not None
    assert completion.cancelled(first.number) == []
    assert len(completion.waiting) == 1
    assert completion.cancelled(second.number) == [(b"peer", OPEN)]
    assert not completion.finishing


@pytest.mark.rule("E7")
def test_only_the_answer_to_the_last_report_confirms_a_finish() -> None:
    completion = SegmentCompletion(complete=False, finishing=False)
    first, second = completion.last_finished(), completion.last_finished()
    done = Reply(b"peer", m.Done(1, "0"))
    assert completion.confirm_later(done)
    assert completion.answered(first.number) == []
    assert completion.answered(second.number) == [done]
    assert not completion.confirm_later(done)
