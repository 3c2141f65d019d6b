"""What the tests on a real Kubernetes share; docs/cluster-tests.md says how to run them."""

import itertools
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.harness import apiserver, evidence, node
from tests.cluster.harness.apiserver import ApiServer
from tests.cluster.harness.kubernetes import GivenCluster, Kubernetes
from tests.patience import PATIENCE

DEMO_NAMESPACE = "epochal-demo"

_numbers = itertools.count(1)


def pytest_itemcollected(item: pytest.Item) -> None:
    """All that stands below this folder needs `make test-cluster`."""
    item.add_marker(pytest.mark.cluster)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what a cluster can tell about a failure, before the test's objects are removed."""
    report = yield
    clusters = {id(value): value for value in _arguments(item).values() if isinstance(value, Kubernetes)}
    if report.failed and report.when != "teardown" and clusters:
        directory = evidence.directory_of(item.nodeid)
        for number, kubernetes in enumerate(clusters.values()):
            part = directory if number == 0 else directory / f"cluster-{number}"
            part.mkdir(exist_ok=True)
            evidence.collect(kubernetes, part)
        report.sections.append(("cluster", f"objects, events and logs: {directory}"))
    return report


@pytest.fixture(scope="session", autouse=True)
def _programs_are_forked() -> None:
    """They are not: here they start as for users, from the image or from the shell."""


def _arguments(item: pytest.Item) -> dict[str, Any]:
    return getattr(item, "funcargs", {})


# --- the API alone ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """An API server with etcd and nothing else, one for the whole run: nothing is collected, no pod runs."""
    with apiserver.api_server() as server:
        yield server


@pytest.fixture(scope="session")
def controlled_api_server() -> Iterator[ApiServer]:
    """Like `api_server`, with the controller manager: owners' children are collected, namespaces end."""
    with apiserver.api_server(controllers=True) as server:
        yield server


@pytest.fixture
def api_servers() -> Iterator[Callable[..., ApiServer]]:
    """Makes API servers of the test's own: `api_servers(controllers=False)`; they end with the test."""
    with ExitStack() as stack:
        yield lambda *, controllers=False: stack.enter_context(apiserver.api_server(controllers=controllers))


@pytest.fixture
def api_namespace(api_server: Kubernetes) -> str:
    """A fresh namespace of `api_server`; it stays, for nothing there could end it."""
    name = f"test-{next(_numbers)}"
    api_server.kubectl("create", "namespace", name)
    return name


# --- with a node ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def cluster() -> Iterator[Kubernetes]:
    """A cluster that runs pods: that of KUBECONFIG, or the node that is there, or one for this run."""
    if given := os.environ.get("KUBECONFIG"):
        yield _without_demo(GivenCluster(Path(given)))
        return
    was_there = node.running() is not None
    yield _without_demo(node.up())
    if not was_there and "PYTEST_XDIST_WORKER" not in os.environ:  # another process may be using it
        node.down()


def _without_demo(cluster: Kubernetes) -> Kubernetes:
    """The cluster; the run ends here where a kept demo owns what the tests would install."""
    if cluster.find("namespace", DEMO_NAMESPACE):
        pytest.exit(
            f"the cluster holds a kept demo (namespace {DEMO_NAMESPACE}), whose release would be in the way of every "
            "test: remove the node by `make cluster-down`, or the demo alone by `make demo-cluster` without KEEP",
            returncode=2,
        )
    return cluster


@pytest.fixture(scope="session")
def own_node(cluster: Kubernetes) -> node.Node:
    """The cluster, where it is our own node: for tests that kill its components or look behind it."""
    if not isinstance(cluster, node.Node):
        pytest.skip("needs the node of `make cluster-up`, not a cluster given by KUBECONFIG")
    return cluster


@pytest.fixture(scope="session")
def _left_namespaces(cluster: Kubernetes) -> Iterator[list[str]]:
    """Namespaces that tests have left, which must be gone at the end of the run: one that stays is a fault."""
    names: list[str] = []
    yield names
    if names:
        cluster.kubectl(
            "wait",
            *(f"namespace/{name}" for name in names),
            "--for=delete",
            f"--timeout={PATIENCE * 3:.0f}s",
            timeout=PATIENCE * 3 + 20,
        )


@pytest.fixture
def namespaces(cluster: Kubernetes, _left_namespaces: list[str]) -> Iterator[Callable[..., str]]:
    """Makes fresh namespaces: `namespaces(labels={})`; they are deleted after the test."""
    made: list[str] = []

    def make(labels: dict[str, str] | None = None) -> str:
        made.append(cluster.make_namespace(labels))
        return made[-1]

    yield make
    for name in made:
        cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
    _left_namespaces += made


@pytest.fixture
def namespace(namespaces: Callable[..., str]) -> str:
    """A fresh namespace of `cluster`, in which pods can be made; deleted after the test."""
    return namespaces()
