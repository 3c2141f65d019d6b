"""A release of the chart on a cluster: installed, changed, looked at, removed.

The cluster knows nothing about Epochal, and the tests say what must hold.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from tests.cluster.harness.kubernetes import KubectlError, Kubernetes, eventually
from tests.cluster.harness.places import ROOT
from tests.patience import PATIENCE

CHART = ROOT / "charts" / "epochal"
IMAGES = Path(os.environ.get("EPOCHAL_IMAGES", ROOT / ".cache" / "images"))
TAG = "dev"
POD_PATIENCE = PATIENCE * 3
"""Seconds for pods to come or go."""
STANDARD = {
    "image.registry": "localhost",
    "image.tag": TAG,
    "image.pullPolicy": "Never",
    "operator.deletionPatience": "10",
    "operator.releaseStreams.settle": "1",
}
"""As documented for imported images. The operator's patience is shorter, because a test waits until it is over. So is
the time for which its finalizer is looked for: `Release.uninstall` waits for the end of its pod before."""
AS_SHIPPED = {"operator.releaseStreams.settle": "15"}
"""What is different in STANDARD, for a test of `helm uninstall` as users call it."""
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
"""Labels of a namespace that takes only pods of the strictest of Kubernetes' standards."""
CRDS = ("relays.epochal.dev", "streams.epochal.dev")
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
    """One release; nothing is done before a method is called."""

    def __init__(self, cluster: Kubernetes, name: str, namespace: str, values: Mapping[str, str] | None = None) -> None:
        """`values`: in addition to the standard ones, in the form of `--set`."""
        self.cluster, self.name, self.namespace = cluster, name, namespace
        self.values = {**STANDARD, **(values or {})}
        self.stands = False
        """Whether it is as `ensure` installs it; code that changes the release sets this to False."""
        self.may_restart: set[str] = set()
        """Prefixes of the names of pods whose containers a test kills."""
        self.catalog_url = f"http://{name}-catalog.{namespace}.svc:8700"

    # ---- helm ----

    def ensure(self) -> None:
        """Install it with its own values, unless it is so already."""
        if not self.stands:
            self.upgrade()
            self.stands = True

    def upgrade(self, values: Mapping[str, str] | None = None, chart: Path = CHART, *, wait: bool = True) -> str:
        """Install it, or change it to this chart and to its own values with `values` added; returns helm's output."""
        self.stands = False
        whole = {**self.values, **(values or {})}
        if "settle" not in yaml.safe_load((chart / "values.yaml").read_text())["operator"].get("releaseStreams", {}):
            whole.pop("operator.releaseStreams.settle")  # a chart of before, which refuses what it does not know
        sets = [f"--set={name}={value}" for name, value in whole.items()]
        waiting = ["--wait", f"--timeout={POD_PATIENCE:.0f}s"] if wait else []
        place = [self.name, str(chart), "--namespace", self.namespace, "--create-namespace"]
        return self.cluster.helm("upgrade", "--install", *place, *sets, *waiting, timeout=POD_PATIENCE + 30)

    def roll_back(self) -> None:
        """Go back to the previous revision."""
        self.stands = False
        place = (self.name, "--namespace", self.namespace)
        self.cluster.helm("rollback", *place, "--wait", f"--timeout={POD_PATIENCE:.0f}s", timeout=POD_PATIENCE + 30)

    def test(self) -> str:
        """The output of `helm test`, with the logs of its pods; returns when its stream's pods are gone too.

        Raises `KubectlError` when it fails.
        """
        place = (self.name, "--namespace", self.namespace)
        said = self.cluster.helm("test", *place, "--logs", f"--timeout={POD_PATIENCE:.0f}s", timeout=POD_PATIENCE + 30)
        publishers = ("pods", "-l", f"{PUBLISHERS},epochal.dev/stream={self.name}-test")
        eventually(lambda: not self.cluster.get(*publishers, namespace=self.namespace)["items"], POD_PATIENCE)
        return said

    def uninstall(self, cascade: str = "foreground") -> None:
        """Remove it, if it is there; with `foreground`, its pods are gone before the streams are released."""
        self.stands = False
        self.cluster.helm(
            *("uninstall", self.name, "--namespace", self.namespace, "--ignore-not-found", "--cascade", cascade),
            *("--wait", f"--timeout={POD_PATIENCE:.0f}s"),
            timeout=POD_PATIENCE + 30,
        )

    # ---- components ----

    def scale(self, component: str, replicas: int) -> None:
        """Run no pod of a component, or one; returns once that is the case."""
        self.stands = False
        deployment = f"deployment/{self.name}-{component}"
        self.cluster.kubectl("scale", "-n", self.namespace, deployment, f"--replicas={replicas}")
        if replicas:
            status = ("rollout", "status", deployment, "-n", self.namespace, f"--timeout={POD_PATIENCE:.0f}s")
            self.cluster.kubectl(*status, timeout=POD_PATIENCE + 10)
            return
        eventually(lambda: not self.pods(f"app.kubernetes.io/component={component}"), POD_PATIENCE)

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """Its pods."""
        chosen = f"{selector},app.kubernetes.io/instance={self.name}"
        items: list[dict[str, Any]] = self.cluster.get("pods", "-l", chosen, namespace=self.namespace)["items"]
        return items

    # ---- what must hold after every test ----

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Fail at the end if a log has reported an error meanwhile, or a container has ended by itself."""
        self.may_restart.clear()
        before, begun = self.restarts(), datetime.now(UTC)
        with ExitStack() as stack:
            followed = [stack.enter_context(self._followed(pod)) for pod in self._components()]
            yield
            texts = [self._log(pod, begun) for pod in self._components()]
            texts += [file.read_text() for file in followed]  # also those of pods that are gone by now
        troubles = dict.fromkeys(each for text in texts for each in _troubles(text))
        assert not troubles, "\n\n".join(troubles)
        ended = [name for name, count in self.restarts().items() if count > before.get(name, 0)]
        unexpected = [name for name in ended if not name.startswith(tuple(self.may_restart))]
        assert not unexpected, f"containers ended by themselves: {', '.join(unexpected)}"

    @contextmanager
    def _followed(self, pod: dict[str, Any]) -> Iterator[Path]:
        """A file to which a pod's log is written from now on, until the pod ends."""
        command = ["kubectl", "logs", "-n", self.namespace, pod["metadata"]["name"], "--follow", "--since=1s"]
        with TemporaryDirectory() as directory:
            path = Path(directory) / "log"
            with (
                path.open("wb") as file,
                subprocess.Popen(command, env=self.cluster.environment(), stdout=file, stderr=file) as process,
            ):
                try:
                    yield path
                finally:
                    process.terminate()

    def _components(self) -> list[dict[str, Any]]:
        return [*self.pods(OPERATORS), *self.pods(CATALOGS)]

    def _log(self, pod: dict[str, Any], since: datetime) -> str:
        """The log of a pod, and of its container before a restart."""
        moment = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        said = ""
        for more in ([], ["--previous"])[: 1 + bool(_restarts(pod))]:
            with suppress(KubectlError):  # it goes at this moment
                place = ("-n", self.namespace, pod["metadata"]["name"])
                said += self.cluster.kubectl("logs", *place, f"--since-time={moment}", *more)
        return said

    def component_uids(self) -> set[str]:
        """The uids of the operator's and the catalog's pods."""
        return {pod["metadata"]["uid"] for pod in self._components()}

    def restarts(self) -> dict[str, int]:
        """How often the containers of each pod (the release's and publishers') were restarted, by name and uid."""
        publishers = self.cluster.get("pods", "-A", "-l", PUBLISHERS)["items"]
        every = [*self._components(), *publishers]
        return {f"{pod['metadata']['name']} {pod['metadata']['uid']}": _restarts(pod) for pod in every}


def _troubles(log: str) -> Iterator[str]:
    """Each line that reports an error or a bug, with the lines around it."""
    lines = log.splitlines()
    for number, line in enumerate(lines):
        if _BAD.search(line):
            yield "\n".join(lines[max(number - 2, 0) : number + 40])


def _restarts(pod: Mapping[str, Any]) -> int:
    return sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))
