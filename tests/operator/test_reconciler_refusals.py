"""What is left alone after a refusal, and what is said of it."""

from tests.resources.test_cluster_children import SETTINGS, STORAGE, stream

from epochal.resources.cluster import Apply, Create, children_of
from epochal.resources.cluster.stream import key
from epochal_operator.actions import Refusals

DRAWN = {key(item): item for item in children_of(stream(20, **STORAGE), SETTINGS)}
PODS = [item for (kind, _), item in DRAWN.items() if kind == "Pod"]
VOLUMES = [item for (kind, _), item in DRAWN.items() if kind == "PersistentVolumeClaim"]


def stopped(refusals: Refusals) -> list[str]:
    return [pod["metadata"]["name"] for pod in PODS if refusals.stop(Create(pod))]


def test_a_volume_that_may_not_grow_stops_nothing_else() -> None:
    refusals = Refusals()
    refusals.add(Apply(VOLUMES[3], "uid"), "no resizing")
    assert stopped(refusals) == []
    assert not refusals.stop(Apply(VOLUMES[4], "uid"))


def test_a_volume_that_cannot_be_made_stops_its_pod_only() -> None:
    refusals = Refusals()
    refusals.add(Create(VOLUMES[3]), "exceeded quota")
    assert stopped(refusals) == ["flights-3"]


def test_a_policy_that_cannot_be_made_stops_all_pods() -> None:
    refusals = Refusals()
    refusals.add(Create(DRAWN["NetworkPolicy", "flights-publisher"]), "denied")
    assert len(stopped(refusals)) == len(PODS)
    assert not refusals.stop(Create(VOLUMES[0]))


def test_a_pod_that_is_refused_stops_the_others_only_after_several() -> None:
    refusals = Refusals()
    for pod in PODS[:8]:
        assert not refusals.stop(Create(pod))
        refusals.add(Create(pod), f"{pod['metadata']['name']} is refused")
    assert len(stopped(refusals)) == len(PODS)
    assert refusals.message() == "flights-0 is refused; flights-1 is refused; flights-2 is refused; and 5 more"


def test_the_same_words_are_said_once() -> None:
    refusals = Refusals()
    for volume in VOLUMES[:3]:
        refusals.add(Apply(volume, "uid"), "no resizing")
    assert refusals.message() == "no resizing"
