"""A pod with the command `epochal`, as an application's pod would call it.

`epochal --kube` is the way from outside of the cluster; this is the way from inside.
"""

import json
from typing import Any

from tests.cluster.harness.kubernetes import Kubernetes
from tests.cluster.harness.pods import pod
from tests.cluster.harness.release import POD_PATIENCE, TAG

IMAGE = f"localhost/epochal-toolbox:{TAG}"


class Toolbox:
    """One such pod; the constructor makes it, and returns when it is ready."""

    def __init__(self, cluster: Kubernetes, namespace: str, catalog: str = "", name: str = "toolbox") -> None:
        """`catalog`: its address, unless it is the one that a pod finds by itself."""
        self.cluster, self.namespace, self.name = cluster, namespace, name
        environment = [{"name": "EPOCHAL_CATALOG", "value": catalog}] if catalog else []
        container = {"image": IMAGE, "command": ["sleep", "infinity"], "env": environment}
        cluster.apply(pod(name, "", container=container), namespace=namespace)
        cluster.wait(f"pod/{name}", "condition=Ready", namespace, POD_PATIENCE)

    def run(self, *command: str, stdin: str | None = None, timeout: float = POD_PATIENCE) -> str:
        """The output of a command in the pod. If it fails, `KubectlError` is raised with the output and the errors."""
        into = ["-i"] if stdin is not None else []
        place = ["exec", *into, "-n", self.namespace, self.name, "--"]
        return self.cluster.kubectl(*place, *command, stdin=stdin, timeout=timeout)

    def epochal(self, *arguments: str, stdin: str | None = None) -> str:
        """`epochal ARGUMENTS`."""
        return self.run("epochal", *arguments, stdin=stdin)

    def publish(self, stream: str, time: int, *records: Any) -> None:
        """Publish a whole epoch."""
        lines = "\n".join(map(json.dumps, records))
        self.epochal("pub", stream, "--time", str(time), "--advance", str(time + 1), "-q", "-f", "-", stdin=lines)

    def epochs(self, stream: str, count: int) -> dict[int, list[Any]]:
        """The first epochs of a stream, from its start, each with its records in order."""
        said = self.epochal("sub", stream, "--since", "start", "--epochs", "--json", "--count", str(count))
        told = [line for line in map(json.loads, said.splitlines()) if line["kind"] == "epoch"]
        return {line["time"]: sorted(line["records"], key=json.dumps) for line in told}
