"""The planner: layout, idempotence, and that applying a plan leads to what is declared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.resources.plan import (
    Action,
    DesiredStream,
    Keep,
    PlannedPublisher,
    Start,
    Stop,
    changes,
    place,
    plan,
    plan_relays,
    publishers_of,
    relays_of,
)

names = st.sampled_from(["a", "b", "c"])
streams = st.builds(
    DesiredStream,
    namespace=st.sampled_from(["x", "y"]),
    name=names,
    uid=st.sampled_from(["u1", "u2"]),
    segments=st.integers(1, 6).map(lambda count: tuple(map(str, range(count)))),
    segments_per_pod=st.integers(1, 4),
    generation=st.integers(1, 2),
    relays=st.integers(0, 3),
)
declared = st.lists(streams, max_size=5, unique_by=lambda stream: stream.qualified)
running = st.lists(
    st.sampled_from(["x", "y"]).flatmap(lambda _: streams.flatmap(lambda s: st.sampled_from(publishers_of(s))))
)


def carry_out(actions: list[Action], observed: list[PlannedPublisher]) -> list[PlannedPublisher]:
    left = list(observed)
    for action in actions:
        match action:
            case Stop(publisher):
                left.remove(publisher)
            case Start(publisher):
                assert publisher.id not in [other.id for other in left], "a namesake still runs"
                left.append(publisher)
    return left


def test_consecutive_segments_share_a_publisher() -> None:
    stream = DesiredStream("demo", "flights", "u", ("0", "1", "2"), segments_per_pod=2)
    assert [(item.id, item.segments) for item in publishers_of(stream)] == [
        ("demo.flights-0", ("0", "1")),
        ("demo.flights-1", ("2",)),
    ]


def test_a_stream_that_is_created_again_gets_new_publishers() -> None:
    old = DesiredStream("demo", "flights", "u1", ("0",))
    new = DesiredStream("demo", "flights", "u2", ("0",))
    assert plan([new], publishers_of(old)) == [Stop(publishers_of(old)[0]), Start(publishers_of(new)[0])]


def test_one_of_two_equal_publishers_is_kept() -> None:
    stream = DesiredStream("demo", "flights", "u", ("0",))
    (one,) = publishers_of(stream)
    assert plan([stream], [one, one]) == [Stop(one), Keep(one)]


@given(declared, running)
def test_carrying_out_a_plan_leads_to_what_is_declared(
    desired: list[DesiredStream], observed: list[PlannedPublisher]
) -> None:
    after = carry_out(plan(desired, observed), observed)
    assert sorted(after, key=repr) == sorted((item for stream in desired for item in publishers_of(stream)), key=repr)
    assert changes(plan(desired, after)) == []


@given(declared, running)
def test_each_publisher_is_in_one_action_and_order_does_not_matter(
    desired: list[DesiredStream], observed: list[PlannedPublisher]
) -> None:
    actions = plan(desired, observed)
    assert sorted(map(repr, actions)) == sorted(map(repr, plan(desired[::-1], observed[::-1])))
    seen = [action.publisher for action in actions if not isinstance(action, Start)]
    assert sorted(seen, key=repr) == sorted(observed, key=repr)


@given(declared)
def test_every_segment_has_exactly_one_publisher(desired: list[DesiredStream]) -> None:
    started = [action.publisher for action in changes(plan(desired, []))]
    for stream in desired:
        held = [segment for item in started if item.stream == stream.qualified for segment in item.segments]
        assert held == list(stream.segments)
    assert len({item.id for item in started}) == len(started)


@given(declared, declared)
def test_relays_follow_what_is_declared_and_only_what_differs_is_touched(
    before: list[DesiredStream], after: list[DesiredStream]
) -> None:
    running = [relay for stream in before for relay in relays_of(stream)]
    wanted = [relay for stream in after for relay in relays_of(stream)]
    changes = plan_relays(after, running)
    assert set(changes.stop) == set(running) - set(wanted)
    assert set(changes.start) == set(wanted) - set(running)
    assert {*changes.keep, *changes.start} == set(wanted)
    again = plan_relays(after, [*changes.keep, *changes.start])
    assert (again.stop, again.start) == ((), ())


def test_no_relay_has_the_id_of_a_publisher() -> None:
    stream = DesiredStream("demo", "flights", "u", ("0",), relays=1)
    namesake = DesiredStream("demo", "flights-relay", "v", ("0",), relays=1)
    publishers = {item.id for each in (stream, namesake) for item in publishers_of(each)}
    relays = {item.id for each in (stream, namesake) for item in relays_of(each)}
    assert (len(publishers), len(relays), publishers & relays) == (2, 2, set())


def publisher(name: str, segments: int = 1, *, dedicated: bool = False) -> PlannedPublisher:
    return PlannedPublisher(name, "demo/x", "u", tuple(map(str, range(segments))), dedicated=dedicated)


def test_publishers_are_placed_where_the_fewest_segments_are_and_stay_there() -> None:
    first = [publisher("a", 4), publisher("b"), publisher("c"), publisher("own", dedicated=True), publisher("d", 3)]
    placed = place(first, {}, 2)
    assert placed == {"a": 0, "b": 1, "c": 1, "d": 1}
    later = [publisher("e"), *first[1:]]
    assert place(later, placed, 2) == {"b": 1, "c": 1, "d": 1, "e": 0}, "what runs is not moved"
    assert place(first, placed, 1) == dict.fromkeys("abcd", 0), "there are fewer processes now"
    with pytest.raises(ValueError, match="must be a process"):
        place(first, {}, 0)


@given(st.lists(st.integers(1, 5), max_size=40), st.integers(1, 6))
def test_no_process_has_much_more_than_another(sizes: list[int], processes: int) -> None:
    publishers = [publisher(f"p{number}", size) for number, size in enumerate(sizes)]
    placed = place(publishers, {}, processes)
    load = [sum(len(each.segments) for each in publishers if placed[each.id] == at) for at in range(processes)]
    assert max(load) - min(load) <= 5
    assert place(publishers, placed, processes) == placed
