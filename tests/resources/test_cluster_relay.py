"""The objects of a Relay: that Kubernetes takes them, what of the manifest goes where, and what leads to them."""

import copy
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.resources.pretended import Pretended
from tests.resources.test_cluster_children import SETTINGS, drawn, stream
from tests.resources.test_relay import document

from epochal.resources.cluster import RELAY_ENVIRONMENT, ClusterPlan, Create, Delete
from epochal.resources.cluster.relay import (
    OF_READER,
    READERS,
    RING,
    SUBSCRIPTIONS,
    ClusterRelay,
    deployment_of,
    plan_relay,
    relay_children_of,
    relay_selector,
)
from epochal.resources.cluster.relay_scaling import RecentNeeds, is_ending, needed, next_replicas
from epochal.resources.cluster.stream import key
from epochal.resources.relay import RelayManifest, RelaySpec
from epochal_publisher.relay.epochs.encoding import PIECE
from epochal_publisher.relay.epochs.settings import RelayHttpSettings
from epochal_publisher.relay.settings import RelaySettings

Object = dict[str, Any]
EVERYTHING: dict[str, Any] = {
    "upstream": "far",
    "capacity": 2000,
    "bufferBytes": "128Mi",
    "http": {"corsOrigins": ["https://a.example", "https://b.example"]},
    "advertise": "{pod}.{relay}.{namespace}.example.org",
    "resources": {"limits": {"memory": "1Gi"}},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "spark", "operator": "Exists"}],
    "topologySpread": False,
}


def relay(name: str = "near", replicas: int = 2, of: Any = None, **spec: Any) -> ClusterRelay:
    manifest = RelayManifest.from_document(document(name, **spec))
    return ClusterRelay(manifest, "relay-uid", (of or stream()).manifest, replicas)


def objects(what: ClusterRelay) -> dict[str, Object]:
    return {item["kind"]: item for item in relay_children_of(what, SETTINGS)}


def container(what: ClusterRelay) -> Object:
    [found] = objects(what)["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def environment(what: ClusterRelay) -> dict[str, str]:
    return {item["name"].removeprefix("EPOCHAL_RELAY_"): item.get("value", "") for item in container(what)["env"]}


CASES = {
    "the least": relay(),
    "with everything": relay(**EVERYTHING),
    "named as its stream": relay("flights"),
    "the longest name": relay("a" * 52),
}


@pytest.mark.parametrize("what", CASES)
def test_kubernetes_takes_all_of_them(what: str) -> None:
    streams = {key(item) for item in relay_children_of(CASES[what], SETTINGS)}
    assert streams.isdisjoint(map(key, [item for each in drawn(stream()).values() for item in each]))
    for item in relay_children_of(CASES[what], SETTINGS):
        kubernetes_validate.validate(item, "1.37", strict=True)
        metadata = item["metadata"]
        assert len(metadata["name"]) <= 63
        assert all(len(value) <= 63 for value in metadata["labels"].values())
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "epochal-operator"
        assert metadata["labels"]["app.kubernetes.io/component"] == "relay"
        [owner] = metadata["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("Relay", "relay-uid", True)


@pytest.mark.parametrize("what", CASES)
def test_what_selects_pods_selects_these_and_no_publishers(what: str) -> None:
    found = objects(CASES[what])
    template = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        dict(part.split("=") for part in relay_selector(CASES[what].name).split(",")),
    ):
        assert selector.items() <= template.items()
        assert not any(selector.items() <= pod["metadata"]["labels"].items() for pod in drawn(stream())["Pod"])
    for publishers in (drawn(stream())["Service"][0]["spec"]["selector"], {"app.kubernetes.io/managed-by": "any"}):
        assert not publishers.items() <= template.items()


@pytest.mark.parametrize("what", CASES)
def test_pods_may_do_what_pod_security_restricted_allows(what: str) -> None:
    found = objects(CASES[what])
    spec = found["Deployment"]["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not spec["automountServiceAccountToken"]
    assert spec["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]
    [each] = spec["containers"]
    allowed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
    assert each["securityContext"] == allowed
    assert each["resources"]["limits"]["memory"]
    assert {probe: each[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} == {
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }


def test_a_relay_gets_all_its_settings_from_its_environment() -> None:
    assert environment(relay()) == {
        "POD": "",
        "POD_ADDRESS": "",
        "CATALOG": "http://catalog:8700",
        "STREAM": "demo/flights",
        "NAME": "near",
        "ID": "demo.$(EPOCHAL_RELAY_POD)",
        "UPSTREAM": "direct",
        "HOST": "0.0.0.0",
        "ADVERTISE": "$(EPOCHAL_RELAY_POD_ADDRESS)",
        "CAPACITY": "1000",
        "BUFFER_BYTES": str(64 << 20),
        "EVENTS_PORT": "8701",
        "REQUESTS_PORT": "8702",
        "HTTP_PORT": "8704",
    }
    more = environment(relay(**EVERYTHING))
    assert more["ADVERTISE"] == "$(EPOCHAL_RELAY_POD).near.demo.example.org"
    assert more["CORS_ORIGINS"] == "https://a.example,https://b.example"
    assert (more["UPSTREAM"], more["CAPACITY"], more["BUFFER_BYTES"]) == ("far", "2000", str(128 << 20))


def test_all_that_a_relay_sets_is_refused_of_others() -> None:
    assert {item["name"] for item in container(relay(**EVERYTHING))["env"]} == RELAY_ENVIRONMENT


def test_variables_are_defined_before_they_are_used() -> None:
    names = [item["name"] for item in container(relay())["env"]]
    assert max(map(names.index, ("EPOCHAL_RELAY_POD", "EPOCHAL_RELAY_POD_ADDRESS"))) < names.index("EPOCHAL_RELAY_ID")
    [pod, address, *_] = container(relay())["env"]
    assert pod["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert address["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"


def test_pods_go_where_the_manifest_says_and_are_given_what_it_says() -> None:
    spec = objects(relay(**EVERYTHING))["Deployment"]["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"disk": "ssd"}
    assert spec["tolerations"] == [{"key": "spark", "operator": "Exists"}]
    assert "topologySpreadConstraints" not in spec
    assert spec["containers"][0]["resources"]["limits"] == {"memory": "1Gi"}
    [zone, _] = objects(relay())["Deployment"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert zone["labelSelector"]["matchLabels"]["epochal.dev/relay"] == "near"
    assert container(relay())["resources"]["limits"] == {"memory": "1088Mi"}
    assert container(relay(bufferBytes="1Gi"))["resources"]["limits"] == {"memory": "3008Mi"}


def test_the_limit_of_memory_is_made_of_what_a_relay_may_hold_by_its_settings() -> None:
    def default(name: str) -> int:
        return int(RelayHttpSettings.model_fields[name].default)

    assert (
        default("ring_bytes"), default("subscription_bytes"), default("max_readers"),
    ) == (RING, SUBSCRIPTIONS, READERS)  # fmt: skip
    assert 3 * PIECE == OF_READER


def ingress(item: Object) -> list[Object]:
    return list(item["spec"]["ingress"])


def test_who_may_read_the_stream_may_connect_and_its_relays_reach_publishers() -> None:
    access = {"subscribe": [{"serviceAccount": "*", "namespace": "jobs"}]}
    readers, monitoring = ingress(objects(relay(of=stream(access=access)))["NetworkPolicy"])
    assert readers["from"][0]["namespaceSelector"]["matchExpressions"][0]["values"] == ["jobs"]
    assert [port["port"] for port in readers["ports"]] == [8701, 8702, 8704]
    assert [port["port"] for port in monitoring["ports"]] == [8704]
    relays = {
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "epochal-relay", "epochal.dev/stream": "flights"}}
    }
    assert relays in readers["from"], "relays that follow these"
    assert relays in ingress(drawn(stream(access=access))["NetworkPolicy"][0])[0]["from"]
    assert relays not in ingress(drawn(stream())["NetworkPolicy"][0])[0]["from"], "the whole namespace may already"
    pod = objects(relay(of=stream(access=access)))["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert relays["podSelector"]["matchLabels"].items() <= pod.items()
    assert {"ipBlock": {"cidr": "0.0.0.0/0"}} in ingress(objects(relay(advertise="{pod}.x"))["NetworkPolicy"])[0][
        "from"
    ]


def settled(cluster: Pretended, what: ClusterRelay) -> None:
    wanted = relay_children_of(what, SETTINGS)
    for action in planned(cluster, what, wanted).actions:
        cluster.carry_out(action)
    assert planned(cluster, what, wanted).actions == ()


def planned(cluster: Pretended, what: ClusterRelay, wanted: list[Object]) -> ClusterPlan:
    return plan_relay(what.manifest, what.object_uid, wanted, copy.deepcopy(list(cluster.items.values())))


def test_it_is_made_changed_and_then_rests() -> None:
    cluster = Pretended()
    settled(cluster, relay())
    assert set(cluster.items) == {
        ("ServiceAccount", "near-relay"),
        ("Service", "near-relay"),
        ("PodDisruptionBudget", "near-relay"),
        ("NetworkPolicy", "near-relay"),
        ("Deployment", "near-relay"),
    }
    settled(cluster, relay(replicas=0))
    deployment = deployment_of("near", cluster.items.values())
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 0
    assert deployment_of("far", cluster.items.values()) is None


def test_a_value_that_is_drawn_no_more_is_a_change() -> None:
    cluster = Pretended()
    settled(cluster, relay(**EVERYTHING))
    without = {name: value for name, value in EVERYTHING.items() if name != "http"}
    wanted = relay_children_of(relay(**without), SETTINGS)
    plan = planned(cluster, relay(), wanted)
    assert [key(action.item) for action in plan.actions] == [("Deployment", "near-relay")]


def test_what_others_made_stays_and_what_an_older_one_left_goes() -> None:
    cluster = Pretended()
    wanted = {key(item): item for item in relay_children_of(relay(), SETTINGS)}
    theirs = cluster.put({**wanted["Service", "near-relay"], "metadata": {"name": "near-relay", "namespace": "demo"}})
    old = copy.deepcopy(wanted["Deployment", "near-relay"])
    old["metadata"]["ownerReferences"][0]["uid"] = "older"
    cluster.put(old)
    plan = planned(cluster, relay(), list(wanted.values()))
    assert plan.conflicts == ("Service near-relay",)
    assert all(action.item["metadata"].get("uid") != theirs["metadata"]["uid"] for action in plan.actions)
    [gone] = [action for action in plan.actions if isinstance(action, Delete)]
    assert key(gone.item) == ("Deployment", "near-relay")
    assert ("Deployment", "near-relay") not in {key(each.item) for each in plan.actions if isinstance(each, Create)}


# ---- a stream's own ----


def test_a_stream_with_relays_has_a_relay_of_its_name_which_the_model_takes() -> None:
    [item] = drawn(stream(relays=3))["Relay"]
    assert RelayManifest.from_document(
        {**item, "metadata": {name: item["metadata"][name] for name in ("name", "namespace", "labels", "annotations")}}
    ).spec == RelaySpec(stream="flights", replicas=3)
    assert item["metadata"]["ownerReferences"][0]["uid"] == "object-uid"
    assert "Relay" not in drawn(stream())


def test_it_goes_when_the_stream_wants_none_any_more_and_what_others_declared_stays() -> None:
    cluster = Pretended()
    cluster.settle(stream(1), drawn_all(1, relays=2))
    assert ("Relay", "flights") in cluster.items
    cluster.settle(stream(1), drawn_all(1))
    assert ("Relay", "flights") not in cluster.items
    cluster.put({**document("flights"), "metadata": {"name": "flights", "namespace": "demo"}})
    cluster.settle(stream(1), drawn_all(1))
    plan = cluster.reconcile(stream(1), drawn_all(1, relays=2))
    assert plan.conflicts == ("Relay flights",)
    assert cluster.items["Relay", "flights"]["spec"] == {"stream": "flights"}


def drawn_all(segments: int, **spec: Any) -> list[Object]:
    return [item for each in drawn(stream(segments, **spec)).values() for item in each]


# ---- how many ----

SCALED = RelayManifest.from_document(document(autoscaling={"min": 2, "max": 6, "subscribersPerReplica": 100})).spec


def recent(current: int, *, up: float = 15.0, down: float = 300.0, every: float = 15.0) -> RecentNeeds:
    return RecentNeeds(up, down, every, current=current, now=0.0)


@given(st.lists(st.tuples(st.floats(0.1, 400) | st.just(15.0), st.integers(0, 800)), max_size=30))
def test_relays_are_enough_soon_and_go_one_by_one_once_fewer_were_enough_all_the_while(
    looks: list[tuple[float, int]],
) -> None:
    now, current = 0.0, 2
    needs, history = recent(current), [(now, current)]
    for pause, subscribers in looks:
        if now + pause - now > 300.0:  # what was needed before is too old, and it is as at the first look
            history = [(now + pause, current)]
        now += pause
        history.append((now, needed(SCALED, subscribers)))
        needs.look(history[-1][1], now, current)
        after = needs.replicas(SCALED, current, ending=False)
        assert 2 <= after <= 6
        before = [need for when, need in history if when < now - 15.0]
        lately = [need for when, need in history[1:] if when >= now - 15.0]
        if after > current:
            assert len(history) >= 2
            assert min(lately) >= after
        elif before and min(before[-1], *lately) > current:
            pytest.fail(f"{after} at {now} of {history}")
        if after < current:
            assert after == current - 1
            assert all(each < current for when, each in history if when >= now - 300.0)
        current = after


def test_what_is_needed_once_begins_none() -> None:
    needs = recent(2)
    for now in (100.0, 100.0):  # two looks at one list
        needs.look(6, now, 2)
        assert needs.lasting(2) == 2
    needs.look(3, 115.0, 2)
    assert needs.lasting(2) == 3


def test_more_begin_at_once_where_nothing_is_to_last() -> None:
    needs = recent(2, up=0.0)
    needs.look(6, 0.0, 2)
    assert needs.lasting(2) == 6


@pytest.mark.parametrize("down", [0.0, 10.0, 300.0])
@pytest.mark.parametrize("pause", [15.0, 15.2])
@pytest.mark.parametrize(("up", "late"), [(15.0, 1), (60.0, 4)])
def test_more_begin_whatever_the_time_for_which_fewer_must_be_enough(
    down: float, pause: float, up: float, late: int
) -> None:
    needs, lasting = recent(1, up=up, down=down), []
    for number in range(1, 9):
        needs.look(3 - number % 2, number * pause, 1)
        lasting.append(needs.lasting(1))
    assert lasting == [1] * late + [2] * (8 - late), "always two at least, and three only at every other look"


def test_fewer_are_enough_by_their_own_time_where_more_must_be_needed_for_longer() -> None:
    needs = recent(4, up=60.0, down=10.0)
    for number in range(1, 3):
        needs.look(2, number * 15.0, 4)
    assert needs.highest == 2


def test_a_pause_in_which_nothing_was_seen_is_no_time_in_which_fewer_were_enough() -> None:
    needs = recent(2)
    needs.look(2, 0.0, 2)
    needs.look(2, 1000.0, 6)
    assert (needs.highest, needs.lasting(6)) == (6, 6)
    rare = recent(6, every=3600.0)
    for number in range(3):  # here they are looked at no more often
        rare.look(2, number * 3600.0, 6)
    assert rare.highest == 2


def test_none_ends_while_another_ends_or_at_the_look_at_which_one_was_ended() -> None:
    assert next_replicas(SCALED, 4, 4, 2, may_end=False) == 4
    assert next_replicas(SCALED, 4, 4, 2, may_end=True) == 3
    assert next_replicas(SCALED, 4, 6, 6, may_end=False) == 6
    needs = recent(6, down=10.0)
    needs.look(2, 30.0, 6)
    assert needs.replicas(SCALED, 6, ending=True) == 6
    assert [needs.replicas(SCALED, current, ending=False) for current in (6, 5, 5)] == [5, 5, 5]
    needs.look(2, 45.0, 5)
    assert needs.replicas(SCALED, 5, ending=False) == 4


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"replicas": 3, "readyReplicas": 3}, False),
        ({"replicas": 3, "readyReplicas": 1}, False),
        ({"replicas": 2, "readyReplicas": 2}, False),
        ({"replicas": 3, "terminatingReplicas": 0}, False),
        ({}, False),
        ({"replicas": 4, "readyReplicas": 3}, True),
        ({"replicas": 3, "readyReplicas": 3, "terminatingReplicas": 1}, True),
        ({"replicas": 3, "readyReplicas": 3, "observedGeneration": 6}, True),
    ],
)
def test_a_relay_is_ending_while_there_are_more_than_there_should_be(status: Object, expected: bool) -> None:
    deployment = {"metadata": {"generation": 7}, "spec": {"replicas": 3}, "status": {"observedGeneration": 7, **status}}
    assert is_ending(deployment) == expected
    assert not is_ending(None)


def test_bounds_hold_at_once() -> None:
    assert next_replicas(SCALED, 9, 9, 9, may_end=False) == 6
    assert next_replicas(SCALED, 5, 8, 8, may_end=False) == 6, "they were others when that was needed"
    assert next_replicas(SCALED, 1, 1, 2, may_end=False) == 2
    fixed = RelayManifest.from_document(document(replicas=5)).spec
    assert next_replicas(fixed, 1, 9, 1, may_end=False) == 5


def test_the_environment_is_what_a_relay_reads() -> None:
    known = {*RelaySettings.model_fields, *RelayHttpSettings.model_fields, "pod", "pod_address"}
    assert {name.lower() for name in environment(relay(**EVERYTHING))} <= known
    read = RelaySettings.read(**{name.lower(): value for name, value in environment(relay()).items() if value})
    assert (read.stream, read.name, read.capacity, read.events_port) == ("demo/flights", "near", 1000, 8701)
