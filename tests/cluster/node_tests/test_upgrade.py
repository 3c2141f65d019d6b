"""New versions and old ones again: pods are replaced one at a time, and nobody who publishes or reads loses anything.

Sources: faults 51 and 52. The next version is the same code under another tag, in a chart of another version: what is
tried is the way there and back. The version before (`tests.version_before`) has its own images and chart: what is tried
is the way from there.
"""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from tests.cluster.harness.before import Before, built
from tests.cluster.harness.kubernetes import Kubernetes, eventually
from tests.cluster.harness.load import READERS, SPEC, Load
from tests.cluster.harness.pods import pod
from tests.cluster.harness.release import CATALOGS, CHART, OPERATORS, POD_PATIENCE, TAG, Release
from tests.cluster.harness.streams import SMALL, Streams, condition, stream
from tests.version_before import NoHistoryError

NEXT = "next"
PODS = {f"orders-{index}" for index in range(3)}
PUBLISHERS, RELAYS = (f"app.kubernetes.io/name=epochal-{name}" for name in ("publisher", "relay"))
THROUGH = {"through": "relay"}
"""A reader that goes through any relay, and only through one."""


@pytest.fixture
def next_chart(own_node, tmp_path) -> Path:
    """The chart of the next version, with a definition that says more; its images are there, under another tag."""
    for name in ("catalog", "publisher", "operator", "toolbox"):
        image = f"localhost/epochal-{name}"
        own_node.ctr("images", "tag", "--force", f"{image}:{TAG}", f"{image}:{NEXT}")
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "99.0.0"}))
    definition = chart / "files" / "streams.epochal.dev.yaml"
    document = yaml.safe_load(definition.read_text())
    document["spec"]["names"]["shortNames"].append("strmnext")
    definition.write_text(yaml.safe_dump(document))
    return chart


@pytest.fixture(scope="module")
def before(own_node) -> Before:
    """The version before: its chart, and its images, which are there."""
    try:
        found = built()
    except NoHistoryError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI needs the whole history: {error}")
        pytest.skip(str(error))
    for archive in found.archives:
        own_node.import_image(archive)
    return found


class Watching:
    """Sees each change of the pods that `selector` names, and keeps count of how many serve.

    `on_going` is called with the name of each pod that is told to end, as that is seen.
    """

    def __init__(
        self, cluster: Kubernetes, namespace: str, selector: str, on_going: Callable[[str], None] = lambda _: None
    ) -> None:
        self._counts: list[int] = []
        self._on_going = on_going
        self._serving: set[str] = set()
        self._ready_once: set[str] = set()
        self._told: set[str] = set()
        line = '{.metadata.name} {.metadata.uid} {.status.conditions[?(@.type=="Ready")].status} '
        command = ["kubectl", "get", "pods", "-n", namespace, "-l", selector, "--watch"]
        command += ["-o", f"jsonpath={line}{{.metadata.deletionTimestamp}}{{'\\n'}}"]
        self._process = subprocess.Popen(command, env=cluster.environment(), stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._see, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._thread.join()
        with self._process:  # its output is closed, its end is awaited
            pass

    @property
    def least(self) -> int:
        """How many served at least, since the first was told to end."""
        return min(self._counts)

    def _see(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            name, uid, *more = line.split()
            if more[:1] == ["True"]:
                self._ready_once.add(uid)  # a probe that came late does not count as missing
            going = any(word not in ("True", "False") for word in more)
            if going and uid not in self._told:
                self._told.add(uid)
                self._on_going(name)
            if uid in self._ready_once and not going:
                self._serving.add(uid)
            else:
                self._serving.discard(uid)
            if self._told:
                self._counts.append(len(self._serving))


def images(streams: Streams, name: str) -> set[str]:
    """Those of publishers and relays."""
    return {pod["spec"]["containers"][0]["image"] for pod in streams.pods(name).values()}


def relay(stream: str, replicas: int) -> dict[str, Any]:
    """The manifest of a Relay `near`."""
    spec = {"stream": stream, "replicas": replicas, "resources": SMALL}
    return {"apiVersion": "epochal.dev/v1alpha1", "kind": "Relay", "metadata": {"name": "near"}, "spec": spec}


def uids(streams: Streams) -> set[str]:
    return {pod["metadata"]["uid"] for pod in streams.pods("orders").values()}


def rolled_to(streams: Streams, tag: str, name: str = "orders") -> None:
    """Wait until all pods have the image, and serve."""
    eventually(lambda: images(streams, name) == {f"localhost/epochal-publisher:{tag}"}, POD_PATIENCE)
    streams.settled(name)


def short_names(release: Release) -> list[str]:
    found: list[str] = release.cluster.get("crd", "streams.epochal.dev")["spec"]["names"]["shortNames"]
    return found


def test_there_and_back_under_load(cluster, release, streams, next_chart, tmp_path):
    streams.start(stream("orders", **SPEC))
    streams.apply(relay("orders", 2))
    load = Load(cluster, streams.namespace, tmp_path, readers={**READERS, **THROUGH})
    load.tell("stored", targets=[*PODS, "release"])
    load.start(f"{streams.namespace}/orders", release.catalog_url)
    cluster.wait("relay/near", "condition=Ready", streams.namespace, POD_PATIENCE)
    publishers, relays = (Watching(cluster, streams.namespace, selector) for selector in (PUBLISHERS, RELAYS))
    with publishers, relays:
        load.tell("upgrade", target="release")
        release.upgrade({"image.tag": NEXT}, next_chart)
        assert short_names(release) == ["strm", "strmnext"]
        rolled_to(streams, NEXT)
        load.goes_on()
        load.tell("roll back", target="release")
        release.roll_back()
        assert short_names(release) == ["strm"]
        rolled_to(streams, TAG)
        load.goes_on()
    assert (publishers.least, relays.least) == (2, 2), "of three publishers, and of two relays"
    broken, facts = load.finish()
    assert not broken, "\n".join(broken)
    assert facts["acknowledged"] > 50, facts


def test_an_upgrade_that_changes_nothing_restarts_nothing(release, streams):
    streams.start(stream("orders"))
    before = uids(streams), release.component_uids()  # not all publishers: those of the test before may still end
    version = streams.get("orders")["metadata"]["resourceVersion"]
    release.upgrade()
    assert (uids(streams), release.component_uids()) == before
    assert streams.get("orders")["metadata"]["resourceVersion"] == version


def test_a_bad_image_stops_at_the_first_pod_and_the_way_back_heals(cluster, release, streams, toolbox):
    name = f"{streams.namespace}/orders"
    streams.start(stream("orders", segments=3))
    toolbox.publish(name, 1, *range(30))
    before = uids(streams)
    release.upgrade({"publishers.image.tag": "missing"})
    stuck = streams.told("orders", "Progressing", "RolloutStuck")
    assert stuck["status"] == "False"
    assert "ErrImageNeverPull" in stuck["message"]
    assert "2 pods stay as they are" in stuck["message"]
    found = streams.get("orders")
    assert condition(found, "Ready")["reason"] == "PublishersNotReady"
    assert condition(found, "Degraded")["reason"] == "PublisherFailing"
    assert len(before & uids(streams)) == 2, "two of three serve on"
    release.roll_back()
    rolled_to(streams, TAG)
    assert len(before & uids(streams)) == 2, "and were never touched"
    assert toolbox.epochs(name, 1) == {1: sorted(range(30), key=json.dumps)}


def test_a_catalog_of_other_settings_keeps_what_it_knows_and_no_other_part_is_touched(release, streams, toolbox):
    """Its pod is replaced, there and back; the streams, their pods and the operator stay."""
    streams.start(stream("orders"))

    def known() -> tuple[str, str]:
        found = json.loads(toolbox.epochal("get", "stream", f"{streams.namespace}/orders", "-o", "json"))
        return found["uid"], found["created"]

    def others() -> set[str]:
        pods = [*release.pods(OPERATORS), *streams.pods("orders").values()]
        return {pod["metadata"]["uid"] for pod in pods}

    before, stay = known(), others()
    release.upgrade({"catalog.leaseTtl": "11"})
    assert (lease_ttl(release), known(), others()) == ("11", before, stay)
    release.roll_back()
    assert (lease_ttl(release), known(), others()) == ("10", before, stay)
    assert streams.get("orders")["status"]["catalogUid"] == before[0]
    assert "the epoch came back whole" in release.test()


def lease_ttl(release: Release) -> str:
    [pod] = release.pods(CATALOGS)
    told: dict[str, str] = {item["name"]: item["value"] for item in pod["spec"]["containers"][0]["env"]}
    return told["EPOCHAL_CATALOG_LEASE_TTL"]


@pytest.mark.rule("E11")
def test_from_the_version_before_under_load(cluster, no_release, before, namespaces, tmp_path):
    """The clients of the stream with storage stay those of before, except one that reads through relays.

    The first relay follows the publishers of before, and goes on when the catalog is new: a reader finds it there, and
    goes on through one of the operator's when the first one ends. The clients of the other stream are new before it is.
    """
    release, spec = no_release, {**SPEC, "segments": 2}
    release.upgrade({"image.tag": before.tag}, before.chart)
    with release.watched():
        streams = Streams(cluster, namespaces())
        streams.start(stream("orders", **spec), stream("ticks", storage=False, **spec))
        old = f"localhost/epochal-toolbox:{before.tag}"
        orders = Load(cluster, streams.namespace, tmp_path / "orders", "load-orders", image=old)
        ticks = Load(cluster, streams.namespace, tmp_path / "ticks", "load-ticks")
        through = Load(cluster, streams.namespace, tmp_path / "orders", "load-through", writers=(), readers=THROUGH)
        loads = {"orders": orders, "ticks": ticks}
        orders.tell("stored", targets=["release", "orders-0", "orders-1"])

        def going(pod: str) -> None:
            """What it has in memory is gone with it."""
            ticks.tell("lost", segments=[pod.rpartition("-")[2]])

        for name, load in loads.items():
            load.start(f"{streams.namespace}/{name}", release.catalog_url)
            load.tell("upgrade", target="release")
        early = relay_process(f"{streams.namespace}/orders", release.catalog_url)
        cluster.apply(early, namespace=streams.namespace)
        cluster.wait("pod/early", "condition=Ready", streams.namespace, POD_PATIENCE)
        release.upgrade({"image.tag": before.tag, "catalog.image.tag": TAG}, before.chart)
        through.start(f"{streams.namespace}/orders", release.catalog_url)
        assert images(streams, "orders") == {f"localhost/epochal-publisher:{before.tag}"}
        with Watching(cluster, streams.namespace, f"{PUBLISHERS},epochal.dev/stream=ticks", going):
            release.upgrade()
            streams.apply(relay("orders", 1))
            for name, load in loads.items():
                rolled_to(streams, TAG, name)
                load.goes_on()
                load.join()
            through.goes_on()
            cluster.wait("relay/near", "condition=Ready", streams.namespace, POD_PATIENCE)
            cluster.kubectl("delete", "pod", "early", "-n", streams.namespace)
            through.goes_on()
            # What the new version keeps of the old one's segments is what the next incarnation begins with.
            ticks.tell("kill", target="ticks-0")
            ticks.tell("lost", segments=["0"])
            streams.lose("ticks", 0)
            streams.settled("ticks")
            ticks.goes_on()
            ticks.join()
    for load in (*loads.values(), through):
        broken, facts = load.finish()
        assert not broken, "\n".join(broken)
        assert facts["acknowledged"] > 50, facts


def relay_process(stream: str, catalog: str) -> dict[str, Any]:
    """A pod with a relay as somebody starts it by hand; it is ready once it follows every segment."""
    container = {
        "image": f"localhost/epochal-publisher:{TAG}",
        "command": ["epochal-publisher", "relay", "--stream", stream, "--catalog", catalog, "--host", "0.0.0.0"],
        "args": ["--http-port", "8704"],
        "env": [{"name": "EPOCHAL_RELAY_ADVERTISE", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8704}, "periodSeconds": 1},
    }
    return pod("early", "", container=container, terminationGracePeriodSeconds=30)
