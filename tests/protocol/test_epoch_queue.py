"""The queue of whole epochs: what a cursor needs outlives an epoch that is not handed out after all."""

import google_crc32c
import pytest

from epochal.protocol import messages as m
from epochal.protocol.subscriber.effects import EpochBatches, EpochWasAborted
from epochal.protocol.subscriber.epoch_queue import EpochQueue
from epochal.protocol.subscriber.epoch_state import OpenEpoch
from epochal.protocol.topics.filter import TopicFilter

CRC = google_crc32c.value(b"x")


def queue_of(*topics: bytes) -> EpochQueue:
    """A complete epoch at time 0 with the first of these topics, at 10 with the second, and so on."""
    queue = EpochQueue(10**6, holds=True)
    queue.reports = False
    for index, topic in enumerate(topics):
        time = 10 * index
        epoch = queue.open[time] = OpenEpoch()
        queue.add("0", m.Data(index, index - 1, time, topic, 1, CRC, b"x"), epoch)
        assert queue.finish(time)
        queue.finish_aborted(time + 5, report=True)
    return queue


@pytest.mark.rule("E16", "F8")
@pytest.mark.parametrize(
    ("topics", "times", "aborted"),
    [
        ((b"a", b"b"), [0], [5, 15]),
        ((b"a", b"a", b"b"), [0, 10], [5, 15, 25]),
        ((b"a", b"b", b"b", b"a"), [0, 30], [5, 15, 25, 35]),
        ((b"b", b"a"), [10], [15]),  # no cursor goes back to before the first epoch
    ],
)
def test_the_aborts_of_an_epoch_whose_topics_are_not_wanted_any_more_go_to_the_epoch_before_it(
    topics: tuple[bytes, ...], times: list[int], aborted: list[int]
) -> None:
    queue = queue_of(*topics)
    queue.keep_topics(TopicFilter([b"a"]))
    assert [time for time, _ in queue.unyielded] == times
    assert sorted(queue.aborted_meanwhile()) == aborted
    given = []
    while (item := queue.hand_out_epoch()) is not None:
        given.append(item)
        queue.pass_epoch(item)
    assert [item.time for item in given if isinstance(item, EpochBatches)] == times
    assert [item.time for item in given if isinstance(item, EpochWasAborted)] == [
        10 * index + 5 for index in range(len(topics))
    ]
    assert queue.buffered_bytes == queue.waiting_bytes == 0
    assert not queue.unyielded


@pytest.mark.rule("E18")
def test_nothing_waits_for_a_program_that_reads_only_events_from_now_on() -> None:
    queue = queue_of(b"a", b"b")
    assert queue.buffered_bytes == queue.waiting_bytes > 0
    queue.only_events()
    assert (queue.buffered_bytes, queue.waiting_bytes, queue.waits) == (0, 0, False)
    assert not queue.unyielded, "all events of these epochs were handed out before"
