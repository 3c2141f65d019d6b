"""The rules by themselves: what they decide, and that deciding changes nothing; `test_machine` drives them all."""

import pytest

from epochal.catalog_api.operations import B
from epochal.catalog_api.publishers import Completion
from epochal.catalog_api.requests import Addresses, Finishing, Register
from epochal.errors import ManifestError
from epochal.resources.manifest import StreamManifest
from epochal_catalog.domain.decisions import _AT_ONCE, Rules
from epochal_catalog.domain.kind import Removed, Renewed
from epochal_catalog.domain.kinds import KINDS, publishers, streams, subscriptions
from epochal_catalog.domain.kinds.subscriptions import SUBSCRIPTIONS, SubscriptionRecord
from epochal_catalog.domain.noun import Call, Listing
from epochal_catalog.domain.pages import PageRequest
from epochal_catalog.domain.records import CounterRecord
from epochal_catalog.domain.registrations import PUBLISHERS
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.domain.stream_entries import STREAMS, StreamRecord
from epochal_catalog.runtime.settings import CatalogSettings

SEGMENTS = ("0", "1")


def manifest(name: str) -> StreamManifest:
    return StreamManifest.from_document(
        {
            "apiVersion": "epochal.dev/v1alpha1",
            "kind": "Stream",
            "metadata": {"name": name, "namespace": "demo"},
            "spec": {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}, "segments": len(SEGMENTS)},
        }
    )


def called(body: B, segment: str = "", at: str = "now") -> Call[B]:
    return Call(body, {"namespace": "demo", "name": "a", "segment": segment}, {}, at, "", 0)


@pytest.mark.rule("E7")
def test_nothing_is_written_after_completion() -> None:
    state = CatalogState(KINDS, CatalogSettings())
    rules = Rules(state)
    asked = Register("p", "i", "demo/a", "u", [*SEGMENTS], Addresses("", "", ""))
    state.commit(streams.apply(rules, manifest("a"), "u", "now").changes, 0.0)
    state.commit(publishers.register(rules, called(asked)).changes, 0.0)
    for segment in SEGMENTS:
        mark = Finishing("p", 1, 1, 1, True)
        state.commit(publishers.finish(rules, called(mark, segment, "then")).changes, 0.0)
    cancelled = publishers.finish(rules, called(Finishing("p", 1, 1, 2, False), "0", "later"))
    assert (cancelled.changes, cancelled.answer()) == ((), Completion(True))
    assert state[STREAMS].stream("demo", "a").record.completed == "then"


def test_a_decision_changes_nothing_by_itself() -> None:
    state = CatalogState(KINDS, CatalogSettings())
    decision = streams.apply(Rules(state), manifest("a"), "u", "now")
    assert state[STREAMS].find("demo", "a") is None
    assert state.commit(decision.changes, 0.0) == {"demo/a"}
    assert state.commit([CounterRecord("revision", 9)], 0.0) == set()
    assert state[STREAMS].stream("demo", "a").record.uid == "u"


@pytest.mark.rule("E12")
def test_only_the_very_same_request_repeats_a_registration() -> None:
    """A publisher whose addresses have changed is a new one: clients must not be sent to the old ones."""
    state = CatalogState(KINDS, CatalogSettings())
    rules = Rules(state)
    state.commit(streams.apply(rules, manifest("a"), "u", "now").changes, 0.0)

    def register(port: int, segments: tuple[str, ...] = SEGMENTS, instance: str = "i") -> int:
        where = Addresses(f"tcp://h:{port}", f"tcp://h:{port + 1}", f"tcp://h:{port + 2}")
        decision = publishers.register(rules, called(Register("p", instance, "demo/a", "u", [*segments], where)))
        state.commit(decision.changes, 0.0)
        [record] = state[PUBLISHERS]
        assert record.addresses == where.to_json()
        return decision.answer().token

    first = register(8701)
    assert register(8701) == first, "its answer was lost"
    moved = register(9701)
    assert moved > first
    assert register(9701, segments=("0",)) > moved
    assert register(9701, segments=("0",)) == state.last_token
    assert register(9701, segments=("0",), instance="j") == state.last_token


def test_what_can_never_run_is_refused_when_new_and_stays_where_an_earlier_version_took_it() -> None:
    document = manifest("a").to_document()
    document["spec"]["history"] = {"storage": {"size": "1Gi"}, "retention": {"bytes": "2Gi"}}
    never = StreamManifest.from_document(document)
    state = CatalogState(KINDS, CatalogSettings())
    with pytest.raises(ManifestError, match="more than the volume has"):
        streams.apply(Rules(state), never, "u", "now")
    state.commit([StreamRecord("u", "demo", "a", 1, never.to_document(), "then")], 0.0)
    assert streams.apply(Rules(state), never, "u2", "now").changes == ()
    document["metadata"]["labels"] = {"team": "x"}
    with pytest.raises(ManifestError, match="more than the volume has"):
        streams.apply(Rules(state), StreamManifest.from_document(document), "u", "now")


def with_subscriptions(many: int) -> CatalogState:
    """A stream with so many subscriptions, made at time 0."""
    state = CatalogState(KINDS, CatalogSettings())
    state.commit(streams.apply(Rules(state), manifest("a"), "u", "now").changes, 0.0)
    state.commit([SubscriptionRecord(f"r{index}", index + 1, "u", "reader", "now") for index in range(many)], 0.0)
    return state


@pytest.mark.rule("S30")
def test_who_does_not_renew_is_not_listed_even_while_it_cannot_be_withdrawn() -> None:
    """A catalog that cannot write keeps the record: readers of lists must not take it for alive."""
    state = with_subscriptions(2)
    leases = state[SUBSCRIPTIONS].leases
    leases.renew("r1", leases.ttl)
    leases.sweep(leases.ttl, 2 * leases.ttl)
    lists = [route for route in subscriptions.NOUN.routes if isinstance(route, Listing)]
    assert len(lists) == 2
    for each in lists:
        for uid in (None, "u"):
            assert [key for key, _ in each.items(state, PageRequest(), uid, 0.0)] == ["r1"]
    assert len(state[SUBSCRIPTIONS]) == 2


@pytest.mark.rule("S30")
def test_many_that_lapse_at_once_are_withdrawn_in_several_transactions() -> None:
    """Other writes get their turn between them."""
    state, withdrawn = with_subscriptions(2 * _AT_ONCE + 1), []
    leases = state[SUBSCRIPTIONS].leases
    leases.sweep(leases.ttl, 2 * leases.ttl)
    while (decision := Rules(state).tidy(60.0, leases.ttl)) is not None:
        withdrawn.append(sum(isinstance(change, Removed) for change in decision.changes))
        state.commit(decision.changes, leases.ttl)
    assert withdrawn == [_AT_ONCE, _AT_ONCE, 1]
    assert len(state[SUBSCRIPTIONS]) == 0


def test_a_lease_that_lapses_again_while_its_notice_is_written_is_noticed_again() -> None:
    """Both notices are equal; only the one that was written is done."""
    state = CatalogState(KINDS, CatalogSettings())
    rules = Rules(state)
    state.commit(streams.apply(rules, manifest("a"), "u", "now").changes, 0.0)
    asked = Register("p", "i", "demo/a", "u", [*SEGMENTS], Addresses("", "", ""))
    registration = publishers.register(rules, called(asked))
    state.commit(registration.changes, 0.0)
    ttl = state.leases.ttl
    state.sweep(ttl, 2 * ttl)
    written = rules.tidy(1000.0, ttl)
    assert written is not None
    state.commit([Renewed(PUBLISHERS, registration.answer().token)], ttl)
    state.sweep(2 * ttl, 2 * ttl)
    state.commit(written.changes, 2 * ttl)
    assert [notice.shown["live"] for notice in state[PUBLISHERS].notices()] == [True, False]
