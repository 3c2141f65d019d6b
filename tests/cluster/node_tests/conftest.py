"""What the tests of Epochal itself on a node share: the images, a release of the chart, and what must hold after each.

`release` is the one that the documentation installs: release and namespace `epochal`, all namespaces served. It stands
from the first test that needs it to the end of the run; a test that changes it leaves it to the next one to repair.
"""

from collections.abc import Callable, Iterator

import pytest
from tests.cluster.harness.kubernetes import GivenCluster, Kubernetes
from tests.cluster.harness.release import CRDS, RESTRICTED, Release, import_images
from tests.cluster.harness.streams import Streams
from tests.cluster.harness.toolbox import Toolbox
from tests.patience import PATIENCE

CLIENT = {"epochal.dev/client": "true"}
"""Labels of a namespace whose pods may connect to the publishers of every stream."""


@pytest.fixture(scope="session")
def components(cluster: Kubernetes) -> None:
    """The images of all components, from `make images`; somebody's cluster may have them already."""
    try:
        import_images(cluster)
    except FileNotFoundError as error:
        if not isinstance(cluster, GivenCluster):
            pytest.fail(str(error))


@pytest.fixture(scope="session")
def _release(cluster: Kubernetes, components: None, _left_namespaces: list[str]) -> Iterator[Release]:
    found = Release(cluster, "epochal", "epochal")
    named = {"name": found.namespace, "labels": RESTRICTED}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": named})
    yield found
    # Namespaces of tests end before: their streams need an operator, or nobody to wait for.
    found.uninstall()
    cluster.kubectl("delete", "crd", *CRDS, "--ignore-not-found")
    cluster.kubectl("delete", "namespace", found.namespace, "--ignore-not-found", timeout=PATIENCE * 2)


@pytest.fixture
def release(_release: Release) -> Iterator[Release]:
    """The release, as installed; after the test its logs hold no error, and no container has ended by itself."""
    _release.ensure()
    with _release.watched():
        yield _release


@pytest.fixture
def no_release(_release: Release) -> Release:
    """The same, not installed."""
    _release.uninstall()
    return _release


@pytest.fixture
def streams(cluster: Kubernetes, release: Release, namespaces: Callable[..., str]) -> Streams:
    """A fresh namespace for streams; its own pods and others' may connect to them."""
    return Streams(cluster, namespaces())


@pytest.fixture(scope="session")
def _toolbox(cluster: Kubernetes, components: None, _left_namespaces: list[str]) -> Iterator[Toolbox]:
    namespace = cluster.make_namespace(CLIENT)
    try:
        yield Toolbox(cluster, namespace)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false", "--ignore-not-found")
        _left_namespaces.append(namespace)


@pytest.fixture
def toolbox(release: Release, _toolbox: Toolbox) -> Toolbox:
    """A pod with `epochal`, in a namespace of clients; it keeps nothing from test to test."""
    return _toolbox
