"""A stream deleted in every state it can be in: nothing of it is left, and a new one of its name knows nothing of it.

Sources: faults 41 to 43, rule S26.
"""

import json
import subprocess
from typing import Self

import pytest
from tests.cluster.harness.kubernetes import eventually
from tests.cluster.harness.release import POD_PATIENCE
from tests.cluster.harness.streams import Streams, stream
from tests.cluster.harness.toolbox import Toolbox


def catalog_forgets(toolbox: Toolbox, streams: Streams, name: str) -> None:
    """Wait until the catalog does not have the stream."""

    def forgotten() -> bool:
        listed = toolbox.epochal("get", "streams", "-o", "name", "-n", streams.namespace, "--timeout", "60")
        return f"stream/{streams.namespace}/{name}" not in listed.split()

    eventually(forgotten, POD_PATIENCE, 1.0)


def volumes_of(streams: Streams) -> list[str]:
    """Persistent volumes that claims of the namespace have."""
    items = streams.cluster.get("persistentvolumes")["items"]
    return [
        item["metadata"]["name"]
        for item in items
        if item["spec"].get("claimRef", {}).get("namespace") == streams.namespace
    ]


def test_a_stream_that_is_ready(streams, toolbox):
    streams.start(stream("orders", segments=2))
    assert len(volumes_of(streams)) == 2
    streams.delete("orders")
    streams.gone("orders")
    catalog_forgets(toolbox, streams, "orders")
    eventually(lambda: not volumes_of(streams), POD_PATIENCE)


def test_a_stream_that_starts(streams, toolbox):
    streams.apply(stream("orders", segments=2))
    eventually(lambda: streams.children("orders"), POD_PATIENCE)
    streams.delete("orders")
    streams.gone("orders")
    catalog_forgets(toolbox, streams, "orders")


def test_a_stream_that_never_started(streams):
    """Nobody may have seen it: deleted in the moment in which it was made."""
    streams.apply(stream("orders"))
    streams.delete("orders")
    streams.gone("orders")


def test_a_stream_that_rolls(streams, toolbox):
    streams.start(stream("orders", segments=2))
    streams.apply(stream("orders", segments=2, push={"bufferBytes": "32Mi"}))
    streams.told("orders", "Progressing", "Rolling")
    streams.delete("orders")
    streams.gone("orders")
    catalog_forgets(toolbox, streams, "orders")


def test_a_stream_whose_pods_cannot_run(streams):
    wrong = stream("orders", publishers={"nodeSelector": {"epochal.dev/none": "such"}})
    streams.apply(wrong)
    eventually(lambda: streams.pods("orders"), POD_PATIENCE)
    streams.delete("orders")
    streams.gone("orders")


def test_a_stream_while_the_catalog_is_away(release, streams, toolbox):
    """The deletion waits for the catalog, but not for ever; the catalog learns of it when it is back."""
    streams.start(stream("orders"))
    release.scale("catalog", 0)
    streams.delete("orders", wait=False)
    streams.gone("orders")
    release.scale("catalog", 1)
    catalog_forgets(toolbox, streams, "orders")


def test_a_stream_while_the_operator_is_away(cluster, release, streams, toolbox):
    streams.start(stream("orders"))
    release.scale("operator", 0)
    streams.delete("orders", wait=False)
    assert "deletionTimestamp" in streams.get("orders")["metadata"]
    assert streams.pods("orders"), "publishers serve on"
    release.scale("operator", 1)
    streams.gone("orders")
    catalog_forgets(toolbox, streams, "orders")


def test_a_stream_while_catalog_and_operator_are_away(release, streams, toolbox):
    streams.start(stream("orders"))
    release.scale("operator", 0)
    release.scale("catalog", 0)
    streams.delete("orders", wait=False)
    release.scale("catalog", 1)
    release.scale("operator", 1)
    streams.gone("orders")
    catalog_forgets(toolbox, streams, "orders")


def test_a_whole_namespace(cluster, release, namespaces):
    streams = Streams(cluster, namespaces())
    streams.start(stream("orders"), stream("trades", storage=False))
    cluster.kubectl(
        "delete", "namespace", streams.namespace, f"--timeout={POD_PATIENCE:.0f}s", timeout=POD_PATIENCE + 10
    )


@pytest.mark.parametrize("storage", [True, False], ids=["storage", "memory"])
def test_a_new_stream_of_the_name_has_nothing_of_the_old_one(cluster, streams, toolbox, storage):
    name = f"{streams.namespace}/orders"
    streams.start(stream("orders", storage=storage))
    toolbox.publish(name, 1, {"of": "old"})
    with _Reading(toolbox, name) as reading:
        assert reading.line() == {"kind": "epoch", "time": 1, "records": [{"of": "old"}]}
        old = streams.get("orders")["metadata"]["uid"]
        streams.delete("orders")
        streams.start(stream("orders", storage=storage))
        assert streams.get("orders")["metadata"]["uid"] != old
        assert "deleted" in reading.failure()
    toolbox.publish(name, 7, {"of": "new"})
    assert toolbox.epochs(name, 1) == {7: [{"of": "new"}]}


class _Reading:
    """`epochal sub` in a pod, while other things happen."""

    def __init__(self, toolbox: Toolbox, stream: str) -> None:
        subscribe = ("epochal", "sub", stream, "--since", "start", "--epochs", "--json")
        cluster = toolbox.cluster
        self._process = subprocess.Popen(
            ["kubectl", "exec", "-n", toolbox.namespace, toolbox.name, "--", *subscribe],
            env=cluster.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with self._process:  # its outputs are closed, its end is awaited
            pass

    def line(self) -> object:
        """The next line that it prints."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def failure(self) -> str:
        """Why it ends, which it must."""
        out, errors = self._process.communicate(timeout=POD_PATIENCE)
        assert self._process.returncode, out
        return errors
