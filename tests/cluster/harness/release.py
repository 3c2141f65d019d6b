"""A release of the chart on a cluster: installed, changed, looked at, removed.

Apart from the cluster, which knows nothing of Epochal, and from the tests, which say what must hold.
"""

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.cluster.harness.kubernetes import KubectlError, Kubernetes, eventually
from tests.cluster.harness.places import ROOT

CHART = ROOT / "charts" / "epochal"
IMAGES = Path(os.environ.get("EPOCHAL_IMAGES", ROOT / ".cache" / "images"))
TAG = "dev"
STANDARD = {
    "image.registry": "localhost",
    "image.tag": TAG,
    "image.pullPolicy": "Never",
    "operator.deletionPatience": "10",
}
"""As the documentation says for images that are imported; patience is shorter, for some test waits until it ends."""
PATIENCE = 180.0
"""Seconds for pods to come or go, on a busy machine."""
CRD = "streams.epochal.dev"
OPERATORS, CATALOGS = (f"app.kubernetes.io/component={name}" for name in ("operator", "catalog"))
PUBLISHERS = "app.kubernetes.io/managed-by=epochal-operator,app.kubernetes.io/name=epochal-publisher"
_BAD = re.compile(r"^\S+ \S+ (ERROR|CRITICAL) |^Traceback |Exception ignored|never (awaited|retrieved)")


def import_images(cluster: Kubernetes) -> None:
    """Put the images of all components where pods find them. Raises `FileNotFoundError` where they are not built."""
    for name in ("catalog", "publisher", "operator", "toolbox"):
        archive = IMAGES / f"{name}.tar"
        if not archive.exists():
            raise FileNotFoundError(f"{archive}: run `make images` first")
        cluster.import_image(archive.resolve())


class Release:
    """One release; nothing is done until it is told to."""

    def __init__(self, cluster: Kubernetes, name: str, namespace: str, values: Mapping[str, str] | None = None) -> None:
        """`values`: beside the standard ones, as `--set` has them."""
        self.cluster, self.name, self.namespace = cluster, name, namespace
        self.values = {**STANDARD, **(values or {})}
        self.stands = False
        """Whether it is as installed; what changes it says so by setting this to False."""
        self.may_restart: set[str] = set()
        """Beginnings of names of pods whose containers a test kills."""
        self.catalog_url = f"http://{name}-catalog.{namespace}.svc:8700"

    # ---- helm ----

    def ensure(self) -> None:
        """Have it installed with its own values, whatever was done to it."""
        if not self.stands:
            self.upgrade()
            self.stands = True

    def upgrade(self, values: Mapping[str, str] | None = None, chart: Path = CHART, *, wait: bool = True) -> str:
        """Install it, or bring it to this chart and these values beside its own; returns what helm says."""
        self.stands = False
        whole = {**self.values, **(values or {})}
        sets = [f"--set={name}={value}" for name, value in whole.items()]
        waiting = ["--wait", f"--timeout={PATIENCE:.0f}s"] if wait else []
        place = [self.name, str(chart), "--namespace", self.namespace, "--create-namespace"]
        return self.cluster.helm("upgrade", "--install", *place, *sets, *waiting, timeout=PATIENCE + 30)

    def uninstall(self) -> None:
        """Remove it, if it is there."""
        self.stands = False
        self.cluster.helm(
            *("uninstall", self.name, "--namespace", self.namespace, "--ignore-not-found"),
            *("--wait", f"--timeout={PATIENCE:.0f}s"),
            timeout=PATIENCE + 30,
        )

    # ---- components ----

    def scale(self, component: str, replicas: int) -> None:
        """Run no pod of a component, or one; returns when that is so."""
        self.stands = False
        deployment = f"deployment/{self.name}-{component}"
        self.cluster.kubectl("scale", "-n", self.namespace, deployment, f"--replicas={replicas}")
        if replicas:
            status = ("rollout", "status", deployment, "-n", self.namespace, f"--timeout={PATIENCE:.0f}s")
            self.cluster.kubectl(*status, timeout=PATIENCE + 10)
            return
        eventually(lambda: not self.pods(f"app.kubernetes.io/component={component}"), PATIENCE)

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """Its pods."""
        chosen = f"{selector},app.kubernetes.io/instance={self.name}"
        items: list[dict[str, Any]] = self.cluster.get("pods", "-l", chosen, namespace=self.namespace)["items"]
        return items

    # ---- what must hold after every test ----

    def troubles(self, since: datetime) -> list[str]:
        """What the components' logs tell of errors and bugs: each such line, with what follows it."""
        found: list[str] = []
        for selector in (OPERATORS, CATALOGS):
            for pod in self.pods(selector):
                name = pod["metadata"]["name"]
                text = self._log(name, since)
                if _restarts(pod):
                    text += self._log(name, since, "--previous")
                lines = text.splitlines()
                bad = [number for number, line in enumerate(lines) if _BAD.search(line)]
                found += ["\n".join([name, *lines[max(number - 2, 0) : number + 40]]) for number in bad]
        return found

    def _log(self, pod: str, since: datetime, *more: str) -> str:
        moment = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            return self.cluster.kubectl("logs", "-n", self.namespace, pod, f"--since-time={moment}", *more)
        except KubectlError as error:  # it goes at this moment
            return str(error) if "Traceback" in str(error) else ""

    def restarts(self) -> dict[str, int]:
        """How often containers of each pod, of the release's or of publishers, were started anew, by name and uid."""
        publishers = self.cluster.get("pods", "-A", "-l", PUBLISHERS)["items"]
        every = [*self.pods(OPERATORS), *self.pods(CATALOGS), *publishers]
        return {f"{pod['metadata']['name']} {pod['metadata']['uid']}": _restarts(pod) for pod in every}

    def unexpected_restarts(self, before: Mapping[str, int]) -> list[str]:
        """Pods with containers that ended by themselves since."""
        return [
            name
            for name, count in self.restarts().items()
            if count > before.get(name, 0) and not name.startswith(tuple(self.may_restart))
        ]


def _restarts(pod: Mapping[str, Any]) -> int:
    return sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))
