"""Kill -9 of each component under load, one after the other, judged by the chaos kit: not a record is lost.

Streams with storage come first, of which the checker excuses nothing: no loss, no duplicate, and no epoch is aborted
that no writer wanted to abort. Of one without, epochs that were open when a publisher died are aborted, as a whole.
Faults 1, 2, 3, 6, 8, 33, 45 and 60 of the kit's own rounds, on a real cluster.
"""

import pytest
from tests.cluster.harness.kubernetes import eventually
from tests.cluster.harness.load import SPEC, Load, kill_9
from tests.cluster.harness.release import CATALOGS, OPERATORS
from tests.cluster.harness.streams import stream

PODS = [f"orders-{index}" for index in range(3)]


@pytest.fixture
def load(cluster, release, streams, own_node, tmp_path) -> Load:
    """Writers and readers at work on a stream `orders` with storage."""
    streams.start(stream("orders", **SPEC))
    found = Load(cluster, streams.namespace, tmp_path)
    found.tell("stored", targets=[*PODS, "catalog", "operator"])
    found.start(f"{streams.namespace}/orders", release.catalog_url)
    return found


def judge(load: Load) -> None:
    """End the load; it must have been one, and without a flaw."""
    broken, facts = load.finish()
    assert not broken, "\n".join(broken)
    assert facts["acknowledged"] > 50, facts
    assert facts["given"] > 10, facts


def test_every_component_is_killed_once(cluster, release, streams, load):
    release.may_restart |= {"orders-0", "epochal-catalog", "epochal-operator"}

    def publisher_process() -> None:
        kill_9(streams.pods("orders")["orders-0"])

    def publisher_pod() -> None:
        cluster.kubectl("delete", "pod", "orders-1", "-n", streams.namespace, "--grace-period=0", "--force")

    def catalog() -> None:
        kill_9(release.pods(CATALOGS)[0])

    def operator() -> None:
        kill_9(release.pods(OPERATORS)[0])

    faults = {"orders-0": publisher_process, "orders-1": publisher_pod, "catalog": catalog, "operator": operator}
    for target, fault in faults.items():
        load.tell("kill", target=target)
        fault()
        eventually(lambda: {"orders-0", "orders-1", "orders-2"} == streams.pods("orders").keys())
        streams.settled("orders")
        load.goes_on()
    judge(load)


def test_a_pod_is_lost_while_the_operator_and_the_catalog_are_away(cluster, release, streams, load):
    """Nobody is there to make the pod anew, or to be registered at; both come back, and so does it."""
    release.scale("operator", 0)
    release.scale("catalog", 0)
    for target in ("catalog", "operator", "orders-2"):
        load.tell("kill", target=target)
    cluster.kubectl("delete", "pod", "orders-2", "-n", streams.namespace, "--grace-period=0", "--force")
    eventually(lambda: "orders-2" not in streams.pods("orders"))
    release.scale("catalog", 1)
    release.scale("operator", 1)
    eventually(lambda: "orders-2" in streams.pods("orders"))
    streams.settled("orders")
    load.goes_on()
    judge(load)


def test_a_drained_pod_hands_over(cluster, release, streams, load):
    """A deletion with grace, as a drained node does it: SIGTERM, and the pod is made anew."""
    before = streams.pods("orders")["orders-1"]["metadata"]["uid"]
    load.tell("end", target="orders-1")
    cluster.kubectl("delete", "pod", "orders-1", "-n", streams.namespace, "--timeout=60s")
    eventually(lambda: streams.pods("orders").get("orders-1", {}).get("metadata", {}).get("uid") not in (None, before))
    streams.settled("orders")
    load.goes_on()
    judge(load)


def test_publishers_without_storage_are_killed_lost_and_drained(cluster, release, streams, own_node, tmp_path):
    release.may_restart.add("orders-0")
    streams.start(stream("orders", storage=False, **SPEC))
    load = Load(cluster, streams.namespace, tmp_path)
    load.start(f"{streams.namespace}/orders", release.catalog_url)

    def pod_goes(name: str, *how: str) -> None:
        cluster.kubectl("delete", "pod", name, "-n", streams.namespace, *how)

    faults = [
        ("kill", lambda: kill_9(streams.pods("orders")["orders-0"])),
        ("kill", lambda: pod_goes("orders-1", "--grace-period=0", "--force")),
        ("end", lambda: pod_goes("orders-2", "--timeout=60s")),
    ]
    for segment, (op, fault) in enumerate(faults):
        load.tell(op, target=f"orders-{segment}")
        fault()
        load.tell("lost", segments=[str(segment)])
        eventually(lambda: {"orders-0", "orders-1", "orders-2"} == streams.pods("orders").keys())
        streams.settled("orders")
        load.goes_on()
    judge(load)


@pytest.mark.rule("E11")
def test_epochs_without_storage_are_whole_or_aborted_when_pods_are_deleted_by_force(
    cluster, release, streams, own_node, tmp_path
):
    """Epochs are open, and complete, at each deletion; every second pod has no time to say a word.

    The checker excuses nothing: what was acknowledged is in its epoch, or nobody is given that epoch. After each
    deletion another reader asks for all there is from the start.
    """
    release.may_restart.add("orders-")
    streams.start(stream("orders", storage=False, **{**SPEC, "segments": 2}))
    load = Load(cluster, streams.namespace, tmp_path, pause=0.1)
    load.start(f"{streams.namespace}/orders", release.catalog_url)
    for number in range(6):
        segment, silently = number % 2, number % 4 < 2
        load.tell("kill", target=f"orders-{segment}")
        if silently:
            kill_9(streams.pods("orders")[f"orders-{segment}"])
            load.tell("lost", segments=[str(segment)])
        streams.lose("orders", segment)
        load.tell("lost", segments=[str(segment)])  # of what was killed, too, if it came back meanwhile
        streams.settled("orders")
        load.join()
        load.goes_on()
    judge(load)
