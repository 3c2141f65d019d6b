"""Images on the node, and releases of the chart in namespaces that enforce the Pod Security Standard *restricted*."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.harness.kubernetes import KubectlError, Kubernetes
from tests.cluster.harness.node import Node

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "epochal"
IMAGES = ("catalog", "publisher", "operator", "toolbox")
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
NAMES = {"image": {"registry": "localhost", "tag": "dev", "pullPolicy": "Never"}}


@pytest.fixture(scope="session")
def images(own_node: Node) -> None:
    """The images of this tree on the node, built if they have changed."""
    subprocess.run([ROOT / "tools" / "images", *IMAGES], check=True, timeout=1500)
    for name in IMAGES:
        own_node.import_image(ROOT / ".cache" / "images" / f"{name}.tar")


@pytest.fixture(scope="module", autouse=True)
def _definition_goes(own_node: Node) -> Iterator[None]:
    """Uninstalling keeps the definition of Streams as that release's own, and no other could be installed after it."""
    yield
    own_node.kubectl("delete", "customresourcedefinition", "streams.epochal.dev", "--ignore-not-found", timeout=180)


class Release:
    """A release of the chart in a namespace of its own, which serves that namespace's Streams."""

    def __init__(self, kubernetes: Kubernetes, name: str, namespace: str) -> None:
        self._kubernetes, self.name, self.namespace = kubernetes, name, namespace

    def deploy(self, **values: Any) -> None:
        """Install or upgrade, and wait until all is ready."""
        definition = self._kubernetes.find("customresourcedefinition", "streams.epochal.dev")
        annotations = definition["metadata"].get("annotations", {}) if definition else {}
        mine = (self.name, self.namespace)
        owner = annotations.get("meta.helm.sh/release-name"), annotations.get("meta.helm.sh/release-namespace")
        given = {**NAMES, "watchNamespaces": [self.namespace], "crds": {"enabled": definition is None or owner == mine}}
        flags = [f"--set-json={name}={json.dumps(value)}" for name, value in (given | values).items()]
        self._helm("upgrade", "--install", self.name, str(CHART), "--wait", "--timeout=180s", *flags)

    def roll_back(self) -> None:
        """To the revision before."""
        self._helm("rollback", self.name, "--wait", "--timeout=180s")

    def test(self) -> str:
        """What `helm test` says; raises when the test fails."""
        return self._helm("test", self.name, "--logs", "--timeout=180s")

    def uninstall(self) -> None:
        """Remove it, if it is there."""
        self._helm("uninstall", self.name, "--wait", "--timeout=180s", "--ignore-not-found")

    def pod(self, component: str) -> Any:
        """The only pod of a component."""
        (found,) = self.get(
            "pods", "-l", f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"
        )
        return found

    def get(self, *arguments: str) -> list[Any]:
        """Objects of the release's namespace."""
        return list(self._kubernetes.get(*arguments, namespace=self.namespace)["items"])

    def errors(self) -> list[str]:
        """Lines of the operator's log that tell of an error."""
        log = self._kubernetes.kubectl("logs", "-n", self.namespace, f"deploy/{self.name}-epochal-operator")
        return [line for line in log.splitlines() if " ERROR " in line or line.startswith("Traceback")]

    def _helm(self, *arguments: str) -> str:
        return self._kubernetes.helm(*arguments, f"--namespace={self.namespace}", timeout=400)


@pytest.fixture
def releases(images: None, cluster: Kubernetes, namespaces: Callable[..., str]) -> Iterator[Callable[[str], Release]]:
    """Makes releases by name, not deployed yet, each in a namespace of its own; they are uninstalled at the end."""
    made: list[Release] = []

    def make(name: str) -> Release:
        made.append(Release(cluster, name, namespaces(RESTRICTED)))
        return made[-1]

    yield make
    for each in made:
        try:
            each.uninstall()
        except KubectlError:
            cluster.kubectl("delete", "streams", "--all", "-n", each.namespace, "--wait=false")
            raise
