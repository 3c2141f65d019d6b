"""What the tests of the operator share."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.cluster.api.sandbox import Sandbox, open_sandbox
from tests.cluster.harness.apiserver import ApiServer
from tests.forking import forked_programs

from epochal.resources.definitions import all_crds

_numbers = itertools.count(1)


@pytest.fixture(scope="session", autouse=True)
def _programs_are_forked() -> Iterator[None]:
    """Here they are, for they run beside the API server and in no pod."""
    with forked_programs():
        yield


@pytest.fixture(scope="session")
def cluster_with_streams(controlled_api_server: ApiServer) -> ApiServer:
    """An API server with the controller manager, where streams are defined."""
    controlled_api_server.define(all_crds())
    return controlled_api_server


@pytest.fixture
async def sandbox(cluster_with_streams: ApiServer, tmp_path: Path) -> AsyncIterator[Sandbox]:
    """A namespace with a catalog and a node, and no operator yet."""
    namespace = f"sandbox-{next(_numbers)}"
    cluster_with_streams.kubectl("create", "namespace", namespace)
    async with open_sandbox(cluster_with_streams.kubeconfig, namespace, tmp_path) as set_up:
        yield set_up
