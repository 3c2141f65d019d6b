"""What is wrong with a stream: each verdict, their order, and that those who say it agree."""

from typing import Any

import pytest

from epochal.catalog_api.answers import StreamInfo
from epochal.verdicts import StreamVerdict, Trouble, judge, lost_holders, lost_writers, waiting_segments, worst

OWNER = {"id": "p", "token": 1, "verified": True, "addresses": {}, "since": ""}


def held(kind: str = "writer", seconds: float = 1.0, silent: float | None = 0.1, writer: str | None = "w1") -> Any:
    return {"segment": "0", "time": 4, "kind": kind, "writer": writer, "seconds": seconds, "silent": silent}


def segment(name: str = "0", publisher: Any = OWNER, reported: float | None = 0.0, **counters: float) -> dict[str, Any]:
    return {"id": name, "lo": "0", "hi": "1", "state": "open", "incarnation": 1, "publisher": publisher,
            "reported": reported, "counters": counters}  # fmt: skip


def stream(*holders: Any, segments: Any = (), phase: str = "Ready", writers: tuple[str, ...] = ("w1",)) -> StreamInfo:
    return StreamInfo.from_json({
        "namespace": "a", "name": "b", "uid": "u", "generation": 1, "phase": phase, "manifest": {},
        "segments": list(segments or [segment()]), "writers": list(writers), "held_back": list(holders),
    })  # fmt: skip


def troubles(item: StreamInfo) -> str:
    return " ".join(each.trouble for each in judge(item))


FULL = segment("1", disk_full=28, disk_full_seconds=3.2)
WAITING = segment("2", waiting_bytes=9, waiting_seconds=4.0, reported=1.0)
DOWN = segment("3", publisher=None, disk_full=28, waiting_bytes=9, waiting_seconds=9)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (stream(held()), ""),
        (stream(held(seconds=61.0)), "held"),
        (stream(held(seconds=11.0, silent=10.5)), "held"),
        (stream(held("returning", 11.0)), "held"),
        (stream(held("opening", 61.0, None, None)), "held"),
        (stream(held("opening", 61.0, None, None), writers=()), ""),
        (stream(held("parked", 61.0, None, None)), ""),
        (stream(held("parked", 61.0, None, None), segments=[segment(open_epochs=1)]), "held"),
        (stream(held("finishing", 61.0, None)), "held"),
        (stream(held("a kind of a later version", 61.0, None)), ""),
        (stream(segments=[FULL]), "full"),
        (stream(segments=[WAITING]), "waiting"),
        (stream(segments=[DOWN]), "down"),
        (stream(held(seconds=61.0), segments=[DOWN], phase="Complete"), ""),
        (stream(held(seconds=61.0), held("lost", 3.0), segments=[WAITING, FULL, DOWN]), "down full lost held waiting"),
    ],
)
def test_each_trouble_and_the_worst_first(item: StreamInfo, expected: str) -> None:
    assert troubles(item) == expected
    assert worst(judge(item)) == (expected.split()[0] if expected else Trouble.NONE)


def test_of_several_holders_the_first_that_needs_attention_is_named() -> None:
    (found,) = judge(stream(held("opening", 99.0, None, None), held(seconds=98.0), held(seconds=97.0, writer="w2")))
    assert found.words == "segment 0 is at 4: it has waited for 1m39s until progress.minWriters writers have opened"
    (found,) = judge(stream(held(seconds=9.0), held(seconds=98.0, writer="w2"), held(seconds=97.0, writer="w3")))
    assert found.advice == "w2 is alive; it should advance, or finish"


@pytest.mark.rule("E46")
def test_each_lost_writer_is_named_once_with_both_ways_out() -> None:
    item = stream(held("lost", 90.0, 95.0, "w 2"), held("lost", 80.0, 85.0), held("lost", 70.0, 95.0, "w 2"))
    assert judge(item) == [
        StreamVerdict(
            Trouble.LOST,
            f"segment 0 is at 4: it has waited for {waited} for lost writer {writer}",
            f"start {writer} again under the same id, or: epochal release a/b {quoted}",
        )
        for waited, writer, quoted in (("1m30s", "w 2", "'w 2'"), ("1m20s", "w1", "w1"))
    ]
    assert lost_writers(item) == ["w 2", "w1"]
    assert [each.seconds for each in lost_holders(item)] == [90.0, 80.0, 70.0]


def test_segments_without_a_publisher_are_named_and_nothing_else_of_them() -> None:
    (found,) = judge(stream(segments=[segment("0"), DOWN, segment("4", publisher=None)]))
    assert found.words == "no publisher for segments 3, 4"
    (found,) = judge(stream(segments=[DOWN]))
    assert found.words == "no publisher for segment 3"


@pytest.mark.rule("E11")
def test_appends_that_waited_at_the_last_report_have_waited_since() -> None:
    assert waiting_segments(stream(segments=[segment(waiting_bytes=9, waiting_seconds=4.0, reported=0.5)])) == []
    (found,) = judge(stream(segments=[WAITING]))
    assert found.words == "appends wait until the catalog has recorded their times, in segment 2"
