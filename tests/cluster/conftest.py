"""What the tests on a real Kubernetes share; docs/cluster-tests.md says how to run them."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.cluster.harness import apiserver
from tests.cluster.harness.apiserver import ApiServer
from tests.cluster.harness.kubernetes import Kubernetes

_numbers = itertools.count(1)


def pytest_itemcollected(item: pytest.Item) -> None:
    """All that stands below this folder needs `make test-cluster`."""
    item.add_marker(pytest.mark.cluster)


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
