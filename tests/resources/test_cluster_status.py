"""Conditions and numbers: what is told when, and that the same is told in the same words."""

import doctest
import importlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonschema
import pytest
from tests.resources.admission import SCHEMA
from tests.resources.pretended import Pretended
from tests.resources.test_cluster_children import SETTINGS, STORAGE, stream
from tests.resources.test_cluster_planner import NEWER, pod, running

from epochal.resources.cluster import ClusterPlan, ClusterSettings, ClusterStream, Seen, children_of, status_of
from epochal.resources.cluster.status import news

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
STREAM = stream(3, **STORAGE)


def seen(cluster: Pretended, settings: ClusterSettings = SETTINGS, **more: Any) -> Seen:
    plan = cluster.plan(STREAM, children_of(STREAM, settings))
    known = {"segments": ("0", "1", "2"), "catalog_uid": "u", "frontier": "[7]", **more}
    return Seen("flights", 4, NOW, plan, **known)


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}


def told(found: Seen, before: dict[str, Any] | None = None) -> dict[str, tuple[str, str]]:
    status = status_of(before or {}, found)
    jsonschema.validate(status, SCHEMA["properties"]["status"])
    assert all(item["observedGeneration"] == 4 and item["message"] for item in status["conditions"])
    return conditions(status)


def waiting(cluster: Pretended, index: int, reason: str) -> None:
    state = {"waiting": {"reason": reason, "message": "no such image"}}
    cluster.ready(pod(cluster, index), is_so=False)
    pod(cluster, index)["status"]["containerStatuses"] = [{"name": "publisher", "state": state}]


def test_a_stream_that_is_served() -> None:
    status = status_of({}, seen(running(STREAM)))
    assert conditions(status) == {
        "Ready": ("True", "Serving"),
        "Progressing": ("False", "Complete"),
        "Degraded": ("False", "AsExpected"),
    }
    del status["conditions"]
    assert status == {
        "observedGeneration": 4,
        "segments": 3,
        "readySegments": 3,
        "selector": "app.kubernetes.io/name=epochal-publisher,epochal.dev/stream=flights",
        "frontier": "[7]",
        "catalogUid": "u",
        "notInEffect": [],
    }


def test_a_stream_that_starts() -> None:
    assert told(seen(Pretended()))["Ready"] == ("False", "PublishersNotReady")
    assert told(seen(Pretended()))["Progressing"] == ("True", "Starting")


def test_a_stream_that_rolls_is_degraded_only_by_the_pod_that_is_replaced() -> None:
    cluster = running(STREAM)
    cluster.reconcile(STREAM, children_of(STREAM, NEWER))
    found = seen(cluster, NEWER)
    assert told(found)["Progressing"] == ("True", "Rolling")
    assert status_of({}, found)["readySegments"] == 2


def test_a_pod_that_never_becomes_ready_is_reported_as_stuck() -> None:
    cluster = running(STREAM)
    waiting(cluster, 1, "ImagePullBackOff")
    assert told(seen(cluster, NEWER))["Progressing"] == ("False", "RolloutStuck")
    assert told(seen(cluster, NEWER))["Degraded"] == ("True", "PublisherFailing")


def test_a_pod_that_takes_too_long_is_reported_as_stuck_in_the_same_words_each_time() -> None:
    cluster = running(STREAM)
    cluster.ready(pod(cluster, 1), is_so=False)
    created = (NOW - timedelta(seconds=200)).isoformat()
    pod(cluster, 1)["metadata"]["creationTimestamp"] = created
    young = seen(cluster)
    assert told(young)["Progressing"] == ("True", "Starting")
    old = replace(young, now=NOW + timedelta(seconds=200))
    assert told(old)["Progressing"] == ("False", "RolloutStuck")
    first = status_of({}, old)
    assert status_of(first, replace(old, now=NOW + timedelta(days=1))) == first


def test_an_old_pod_that_has_just_become_unready_is_not_stuck() -> None:
    cluster = running(STREAM)
    cluster.ready(pod(cluster, 1), is_so=False)
    pod(cluster, 1)["metadata"]["creationTimestamp"] = (NOW - timedelta(days=9)).isoformat()
    [ready] = pod(cluster, 1)["status"]["conditions"]
    ready["lastTransitionTime"] = (NOW - timedelta(seconds=200)).isoformat()
    assert told(seen(cluster))["Progressing"] == ("True", "Starting")
    later = replace(seen(cluster), now=NOW + timedelta(seconds=200))
    assert told(later)["Progressing"] == ("False", "RolloutStuck")


def test_what_cannot_be_done_is_reported_and_what_runs_stays_reported() -> None:
    before = status_of({}, seen(running(STREAM)))
    after = status_of(before, Seen("flights", 4, NOW, wrong=("Invalid", "spec.time.shape: is no shape")))
    assert conditions(after) == {
        "Ready": ("False", "Invalid"),
        "Progressing": ("False", "Invalid"),
        "Degraded": ("True", "Invalid"),
    }
    assert (after["readySegments"], after["frontier"]) == (3, "[7]")


@pytest.mark.parametrize("reason", ["Invalid", "Refused"])
def test_what_is_wrong_leaves_ready_to_say_what_is_served(reason: str) -> None:
    cluster = running(STREAM)
    wrong = seen(cluster, wrong=(reason, "no"))
    assert told(wrong) == {
        "Ready": ("True", "Serving"),
        "Progressing": ("False", reason),
        "Degraded": ("True", reason),
    }
    del cluster.items["Pod", "flights-1"]
    lost = seen(cluster, wrong=(reason, "no"))
    assert told(lost)["Ready"] == ("False", "PublishersNotReady")
    assert status_of({}, lost)["readySegments"] == 2


def test_a_name_that_is_taken_is_reported() -> None:
    cluster = Pretended()
    cluster.put({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "flights", "namespace": "demo"}})
    assert told(seen(cluster))["Ready"] == ("False", "NameConflict")


def test_without_its_relay_whose_name_is_taken_a_stream_is_served() -> None:
    what = stream(1, relays=2)
    wanted = children_of(what, SETTINGS)
    cluster = Pretended()
    taken = {"metadata": {"name": "flights", "namespace": "demo"}}
    cluster.put({"apiVersion": "epochal.dev/v1alpha1", "kind": "Relay", **taken})
    cluster.settle(what, wanted)
    status = status_of({}, Seen("flights", 1, NOW, cluster.plan(what, wanted), what.segments, "u"))
    conditions = {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}
    assert conditions == {
        "Ready": ("True", "Serving"),
        "Progressing": ("False", "NameConflict"),
        "Degraded": ("True", "NameConflict"),
    }


def test_a_lost_volume_degrades() -> None:
    cluster = running(STREAM)
    del cluster.items["PersistentVolumeClaim", "flights-1"]
    assert told(seen(cluster))["Degraded"] == ("True", "VolumeLost")
    assert told(seen(cluster))["Ready"] == ("True", "Serving")


@pytest.mark.parametrize(
    ("claim", "pod_runs", "to_delete"),
    [
        ("gone", True, "Pod flights-1"),
        ("going", True, "Pod flights-1"),
        ("lost", True, "Pod flights-1, PersistentVolumeClaim flights-1"),
        ("lost", False, "PersistentVolumeClaim flights-1"),
    ],
)
def test_what_is_said_of_a_lost_volume_heals_it(claim: str, pod_runs: bool, to_delete: str) -> None:
    cluster, place = running(STREAM), ("PersistentVolumeClaim", "flights-1")
    match claim:
        case "gone":
            del cluster.items[place]
        case "going":
            cluster.items[place]["metadata"]["deletionTimestamp"] = "now"
        case _:
            cluster.items[place]["status"] = {"phase": "Lost"}
    if not pod_runs:
        del cluster.items["Pod", "flights-1"]
    found = seen(cluster)
    assert told(found)["Degraded"] == ("True", "VolumeLost")
    [message] = [item["message"] for item in status_of({}, found)["conditions"] if item["type"] == "Degraded"]
    assert message.endswith(f"deleted: {to_delete}")
    for each in to_delete.split(", "):
        del cluster.items[tuple(each.split(" "))]  # type: ignore[arg-type]  # of two
    cluster.gone()
    cluster.settle(STREAM, children_of(STREAM, SETTINGS))
    assert told(seen(cluster))["Degraded"] == ("False", "AsExpected")


def test_what_was_lost_stays_named_for_a_day_after_it_was_made_again() -> None:
    cluster = running(STREAM)
    del cluster.items["PersistentVolumeClaim", "flights-1"]
    status = status_of({}, seen(cluster))
    lost_at = "2026-11-01T12:00:00Z"
    assert status["lostVolumes"] == [{"name": "flights-1", "lostAt": lost_at}]
    later = status_of(status, replace(seen(cluster), now=NOW + timedelta(days=3)))
    assert later["lostVolumes"] == status["lostVolumes"], "it is lost still"
    unseen = status_of(status, Seen("flights", 4, NOW, wrong=("Invalid", "no")))
    assert unseen["lostVolumes"] == status["lostVolumes"]
    del cluster.items["Pod", "flights-1"]
    cluster.settle(STREAM, children_of(STREAM, SETTINGS))
    healed = status_of(status, seen(cluster))
    assert told(seen(cluster), status)["Degraded"] == ("False", "VolumeReplaced")
    assert healed["lostVolumes"] == [{"name": "flights-1", "lostAt": lost_at, "replacedAt": lost_at}]
    assert f"flights-1 at {lost_at}" in next(
        item["message"] for item in healed["conditions"] if item["type"] == "Degraded"
    )
    assert [(each.reason, each.is_warning) for each in news(status, healed)] == [("VolumeReplaced", False)]
    after = status_of(healed, replace(seen(cluster), now=NOW + timedelta(hours=23)))
    assert after["lostVolumes"] == healed["lostVolumes"]
    del cluster.items["PersistentVolumeClaim", "flights-1"]
    again = status_of(after, replace(seen(cluster), now=NOW + timedelta(hours=23)))
    assert [entry["lostAt"] for entry in again["lostVolumes"]] == [lost_at, "2026-11-02T11:00:00Z"]
    past = status_of(healed, replace(seen(running(STREAM)), now=NOW + timedelta(days=1)))
    assert past["lostVolumes"] == []
    assert conditions(past)["Degraded"] == ("False", "AsExpected")


def of(what: ClusterStream, cluster: Pretended) -> dict[str, Any]:
    plan = cluster.plan(what, children_of(what, SETTINGS))
    return status_of({}, Seen("flights", 4, NOW, plan, what.segments, "u", not_in_effect=("spec.relays",)))


def test_a_volume_that_is_not_as_declared_is_reported() -> None:
    cluster = running(stream(2, **STORAGE))
    storage = {"size": "1Gi", "storageClassName": "slow"}
    changed = of(stream(2, history={"storage": storage}), cluster)
    assert changed["notInEffect"] == [
        "spec.relays",
        "spec.history.storage.size",
        "spec.history.storage.storageClassName",
    ]
    assert of(stream(2, **STORAGE), cluster)["notInEffect"] == ["spec.relays"]
    assert of(stream(2, history={"storage": {"size": "2Gi"}}), cluster)["notInEffect"] == ["spec.relays"]


def test_settings_that_wait_for_a_start_are_reported_until_the_pods_are_new() -> None:
    def message(what: ClusterStream) -> str:
        [found] = [item for item in of(what, cluster)["conditions"] if item["type"] == "Progressing"]
        assert found["reason"] == "Complete"
        return str(found["message"])

    before, after = stream(2), stream(2, push={"heartbeat": "2s"})
    cluster = running(before)
    cluster.settle(after, children_of(after, SETTINGS))
    assert message(after).startswith("everything is as declared, but flights-0, flights-1 were made under other")
    assert message(before) == "everything is as declared", "it was changed back"
    del cluster.items["Pod", "flights-0"]
    cluster.settle(after, children_of(after, SETTINGS))
    assert message(after).startswith("everything is as declared, but flights-1 were made")
    kept = stream(2, **STORAGE, push={"heartbeat": "2s"})
    cluster.settle(kept, children_of(kept, SETTINGS))
    assert message(kept) == "everything is as declared"


def test_a_catalog_that_is_away_degrades_and_serving_goes_on() -> None:
    away = seen(running(STREAM), catalog_trouble="no catalog answers")
    assert told(away)["Ready"] == ("True", "Serving")
    assert told(away)["Degraded"] == ("True", "CatalogUnavailable")
    never = Seen("flights", 4, NOW, ClusterPlan(), catalog_trouble="no catalog answers")
    assert told(never)["Ready"] == ("False", "CatalogUnavailable")


def test_the_time_of_a_condition_moves_only_when_its_status_flips() -> None:
    cluster = running(STREAM)
    first = status_of({}, seen(cluster))
    later = replace(seen(cluster, catalog_trouble="away"), now=NOW + timedelta(hours=1))
    second = status_of(first, later)
    times = {item["type"]: item["lastTransitionTime"] for item in second["conditions"]}
    assert times == {
        "Ready": "2026-11-01T12:00:00Z",
        "Progressing": "2026-11-01T12:00:00Z",
        "Degraded": "2026-11-01T13:00:00Z",
    }


def test_what_changes_is_news_once_and_only_what_is_wrong_is_a_warning() -> None:
    def told(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, bool]]:
        return [(each.reason, each.is_warning) for each in news(before, after)]

    starts, serves = status_of({}, seen(Pretended())), status_of({}, seen(running(STREAM)))
    assert told({}, starts) == [], "a new stream starts, as one would think"
    assert told(starts, serves) == [("Serving", False), ("Complete", False)]
    assert told(serves, serves) == []
    cluster = running(STREAM)
    cluster.reconcile(STREAM, children_of(STREAM, NEWER))
    rolls = status_of(serves, seen(cluster, NEWER))
    assert told(serves, rolls) == [("PublishersNotReady", False), ("Rolling", False)]
    waiting(cluster, 2, "ImagePullBackOff")
    stuck = status_of(rolls, seen(cluster, NEWER))
    assert told(rolls, stuck) == [("RolloutStuck", True), ("PublisherFailing", True)]
    wrong = status_of({}, Seen("flights", 4, NOW, wrong=("Invalid", "spec.time.shape: is no shape")))
    assert told({}, wrong) == [("Invalid", True)], "one event, though two conditions say it"
    assert told(wrong, serves) == [("Serving", False), ("Complete", False), ("AsExpected", False)]
    away = status_of(serves, seen(running(STREAM), catalog_trouble="away"))
    assert told(serves, away) == [("CatalogUnavailable", True)]
    assert told(away, serves) == [("AsExpected", False)]


def test_a_frontier_that_is_not_known_leaves_what_was_reported() -> None:
    before = status_of({}, seen(running(STREAM)))
    assert status_of(before, seen(running(STREAM), frontier=None))["frontier"] == "[7]"


@pytest.mark.parametrize("name", ["children", "status", "stream"])
def test_the_examples_in_the_documentation_of_the_code(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"epochal.resources.cluster.{name}"))
    assert result.attempted
    assert not result.failed


@pytest.mark.rule("E11")
def test_a_stream_whose_publisher_lost_its_memory_is_degraded_until_that_is_past() -> None:
    lost = seen(running(STREAM), lost_epochs=("segment 0 up to 7",))
    assert told(lost)["Degraded"] == ("True", "MemoryLost")
    (condition,) = [item for item in status_of({}, lost)["conditions"] if item["type"] == "Degraded"]
    assert "segment 0 up to 7" in condition["message"]
    assert told(seen(running(STREAM)))["Degraded"] == ("False", "AsExpected")


@pytest.mark.rule("E11")
def test_a_stream_whose_appends_wait_for_the_catalog_is_degraded_unless_something_worse_is_known() -> None:
    waits: dict[str, Any] = {"waiting_segments": tuple(map(str, range(7)))}
    assert told(seen(running(STREAM), **waits))["Degraded"] == ("True", "AppendsWaiting")
    assert "0, 1, 2, 3, 4 and 2 more; see that the catalog" in str(status_of({}, seen(running(STREAM), **waits)))
    for worse, reason in (
        ({"lost_epochs": ("segment 0 up to 7",)}, "MemoryLost"),
        ({"lost_writers": ("w",)}, "WriterLost"),
    ):
        waits |= worse
        assert told(seen(running(STREAM), **waits))["Degraded"] == ("True", reason)
    assert told(seen(running(STREAM)))["Degraded"] == ("False", "AsExpected")


@pytest.mark.rule("E10")
def test_a_stream_whose_disk_is_full_is_degraded_and_says_why() -> None:
    full: dict[str, Any] = {"full_disks": ("segment 0: its log cannot be written (No space left on device)",)}
    assert told(seen(running(STREAM), **full, lost_writers=("w",)))["Degraded"] == ("True", "DiskFull")
    (condition,) = [
        item for item in status_of({}, seen(running(STREAM), **full))["conditions"] if item["type"] == "Degraded"
    ]
    assert "segment 0: its log cannot be written (No space left on device); give" in condition["message"]


@pytest.mark.rule("E46")
def test_a_stream_that_waits_for_lost_writers_is_degraded_until_none_is_left() -> None:
    waiting_for = seen(running(STREAM), lost_writers=("w1", "w2"))
    status = status_of({}, waiting_for)
    assert conditions(status) == {
        "Ready": ("True", "Serving"),
        "Progressing": ("False", "Complete"),
        "Degraded": ("True", "WriterLost"),
    }
    [message] = [item["message"] for item in status["conditions"] if item["type"] == "Degraded"]
    assert ": w1, w2;" in message
    assert "epochal release flights WRITER" in message
    assert [(each.reason, each.is_warning) for each in news(status_of({}, seen(running(STREAM))), status)] == [
        ("WriterLost", True)
    ]
    assert told(seen(running(STREAM)), status)["Degraded"] == ("False", "AsExpected")
    many = seen(running(STREAM), lost_writers=tuple(f"w{at}" for at in range(9)))
    assert "w4 and 4 more" in str(status_of({}, many))
