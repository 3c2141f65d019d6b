"""`make demo-cluster`: the demo on a real Kubernetes, each part in pods of its own.

Helm installs Epochal, the operator starts the stream's publishers, `spark-submit` a driver that starts executors, and
two pods follow: one from the start, one that joins in the middle of an hour. What they computed from whole hours is
compared with a plain Spark batch over the same file. docs/spark.md has the same steps by hand.

Separate from the demo on one machine, whose tally, view and verdict it uses, because it needs what the tests on a
cluster need: kubectl, helm, a node.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml
from examples.demo import traces
from examples.demo.follow import replay
from examples.demo.pod_events import FollowedPod, Logs
from examples.demo.prerequisites import check_java
from examples.demo.run import Run
from examples.demo.tally import truth_of
from examples.demo.verdict import verdict
from examples.demo.view import PlainView
from tests.cluster.harness import building, evidence, node, progress
from tests.cluster.harness.building import BuildError, UnfitError
from tests.cluster.harness.kubernetes import GivenCluster, KubectlError, Kubernetes
from tests.cluster.harness.places import CACHE, ROOT
from tests.cluster.harness.programs import NotReadyError
from tests.cluster.harness.progress import CommandError
from tests.cluster.harness.removal import RemainsError

from epochal.errors import ConfigError

NAMESPACE = "epochal-demo"
"""Where everything is that the demo makes, and what is deleted at the end."""
MARK = "app.kubernetes.io/managed-by=epochal-demo"
RELEASE = "epochal"
DRIVER, EARLY, LATE = "flights-driver", "flights-early", "flights-late"
WORK = "/var/lib/flights"
"""Where the pods of Spark see the volume that they share."""
GATE = f"{WORK}/begin"
FILES = ROOT / "spark" / "kubernetes"
PODS = ROOT / "examples" / "demo" / "kubernetes"
EXECUTORS = 2
LEAST_DAYS_TO_KILL = 5
"""With fewer, the job could be done before the pod that is deleted has gone."""
IMAGES = ("catalog", "publisher", "operator", "toolbox", "spark")
TRACING = ROOT / "examples" / "tracing" / "zipkin.yaml"
TRACING_IMAGES = ("collector", "zipkin")
ZIPKIN_PORT = 9411
ZIPKIN = f"http://127.0.0.1:{ZIPKIN_PORT}"
"""Where Zipkin is while its port is forwarded, as `kept` says."""
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
COLLECTOR = f"http://collector.{NAMESPACE}.svc:4318"


class Sidecars(StrEnum):
    """How Spark's pods get their sidecars."""

    TEMPLATE = "template"
    INJECT = "inject"
    NONE = "none"


class DemoError(Exception):
    """The demo could not be run to its end; the message says why."""


class Demo:
    """One run, in a namespace that it makes and removes."""

    def __init__(
        self,
        cluster: Kubernetes,
        days: int,
        registry: str,
        tag: str,
        *,
        kills: bool,
        sidecars: Sidecars,
        traces: bool,
    ) -> None:
        """Nothing is done yet; images are `REGISTRY/epochal-NAME:TAG`.

        If it `kills`, a publisher's pod is deleted; if it `traces`, a collector and Zipkin run beside the rest.
        """
        self.cluster = cluster
        self.days = days
        self.registry = registry
        self.tag = tag
        self.kills = kills
        self.sidecars = sidecars
        self.traces = traces
        self.catalog = ""
        self.made = False
        """Whether anything was made that has to be removed."""

    def image(self, name: str) -> str:
        """The name of an image."""
        return f"{self.registry}/epochal-{name}:{self.tag}"

    # --- before -------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the namespace, Epochal unless it serves there already, the stream, and what Spark needs."""
        if (found := self.cluster.find("namespace", NAMESPACE)) is not None:
            key, _, value = MARK.partition("=")
            if found["metadata"].get("labels", {}).get(key) != value:
                raise DemoError(f"there is a namespace {NAMESPACE} that this demo did not make; delete or rename it")
            step(f"removing what an earlier demo left in the namespace {NAMESPACE}")
            self.remove()
        self.made = True
        self.cluster.kubectl("create", "namespace", NAMESPACE)
        self.cluster.kubectl("label", "namespace", NAMESPACE, MARK, "pod-security.kubernetes.io/enforce=restricted")
        if self.traces:
            step("starting a collector and Zipkin")
            self._start_tracing()
        self._install()
        step("applying the stream and waiting for its publishers")
        stream = yaml.safe_load((ROOT / "examples" / "flights.yaml").read_text())
        stream["metadata"]["namespace"] = NAMESPACE
        self.cluster.apply(stream)
        for file in (FILES / "rights.yaml", PODS / "work.yaml"):
            self.cluster.apply(file.read_text(), namespace=NAMESPACE)
        self.cluster.wait("stream/flights", "condition=Ready", namespace=NAMESPACE, timeout=300)
        if self.traces:
            for name in TRACING_IMAGES:
                self.cluster.wait(f"pod/{name}", "condition=Ready", namespace=NAMESPACE, timeout=300)

    def _start_tracing(self) -> None:
        for each in yaml.safe_load_all(TRACING.read_text()):
            if each["kind"] == "Pod":
                (container,) = each["spec"]["containers"]
                container["image"] = self.image(container["name"])
            self.cluster.apply(each, namespace=NAMESPACE)

    def _install(self) -> None:
        release, namespace = self._serving() or (RELEASE, NAMESPACE)
        if namespace != NAMESPACE:
            if self.sidecars is Sidecars.INJECT or self.traces:
                which = "--traces" if self.traces else "--sidecar inject"
                raise DemoError(f"{which} installs a release of its own, and {release} serves all namespaces")
            step(f"using the release {release} of Epochal in the namespace {namespace}")
        else:
            step("installing Epochal with Helm")
            there = self.cluster.find("crd", "streams.epochal.dev") is not None
            settings = {
                "image.registry": self.registry,
                "image.tag": self.tag,
                "watchNamespaces": f"{{{NAMESPACE}}}",
                "crds.enabled": str(not there).lower(),
                "crds.keep": "false",
                "operator.releaseStreams.enabled": "false",  # the stream is deleted before the release
            }
            if self.sidecars is Sidecars.INJECT:
                settings["sidecar.inject"] = "true"
            if self.traces:
                settings["tracing.endpoint"] = COLLECTOR
            values = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
            chart = ROOT / "charts" / "epochal"
            where = ("--namespace", namespace, "--wait", "--timeout", "5m")
            self.cluster.helm("install", release, chart, *where, *values, timeout=330)
        labels = f"app.kubernetes.io/instance={release},app.kubernetes.io/component=catalog"
        (service,) = self.cluster.get("service", "--selector", labels, namespace=namespace)["items"]
        self.catalog = f"http://{service['metadata']['name']}.{namespace}.svc:8700"

    def _serving(self) -> tuple[str, str] | None:
        """Name and namespace of a release that serves our namespace already, because it serves all."""
        for release in json.loads(self.cluster.helm("list", "--all-namespaces", "--output", "json")):
            if release["chart"].startswith("epochal-"):
                which = (release["name"], "--namespace", release["namespace"])
                values = json.loads(self.cluster.helm("get", "values", *which, "--all", "--output", "json"))
                if not values["watchNamespaces"]:
                    return release["name"], release["namespace"]
        return None

    # --- the run ------------------------------------------------------------------------------------------------------

    def run(self, timeout: float) -> Run:
        """Publish and follow; returns what the verdict needs.

        Raises:
            DemoError: A pod failed, or `timeout` seconds went by.
        """
        run = Run(self.days, PlainView(), self.kills)
        deadline = time.monotonic() + timeout
        with Logs(self.cluster, NAMESPACE) as logs:
            self._start_follower(logs, EARLY, "early")
            run.view.step("submitting the job to Spark")
            self._submit(logs)
            waiting, began = {DRIVER, EARLY, LATE}, 0.0
            for pod, event in logs.events(deadline):
                match pod, event["event"]:
                    case _, "failed":
                        raise DemoError(event["why"])
                    case str(), "prepared":
                        run.view.prepared(self.days, event["hours"], event["flights"])
                        more = ("--kill",) if self.kills else ()
                        self._start_follower(logs, LATE, "late", "--hours", str(event["hours"]), *more)
                        run.view.step("starting Spark's executors and the late subscriber")
                    case str(), "started" | "ready":
                        waiting.discard(pod)
                        if not waiting:
                            run.view.step("publishing")
                            self.cluster.kubectl("exec", "--namespace", NAMESPACE, DRIVER, "--", "touch", GATE)
                            began = time.monotonic()
                    case str(), "kill":
                        self._delete_by_force(event["publisher"])
                    case str(), "published":
                        run.batches, run.publishing = event["batches"], time.monotonic() - began
                        run.view.step("comparing with a plain Spark batch over the same file")
                    case str(), "sums":
                        run.truth |= truth_of(event["rows"])
                    case _:
                        self._take(run, pod, event)
        return run

    def _take(self, run: Run, pod: str, event: dict[str, Any]) -> None:
        """Add a subscriber's event to its tally, and show it."""
        if pod == DRIVER:
            return
        tally = run.early if pod == EARLY else run.late
        replay(event, run, tally)
        if event["event"] == "hour":
            run.view.complete(event["hour"], tally, late=pod == LATE)
        if event["event"] == "joined" and run.join is not None:
            run.view.joined(run.join)
        if event["event"] == "killed" and run.kill is not None:
            run.view.killed(run.kill)
        if event["event"] == "back" and run.back_after is not None:
            run.view.back(run.back_after)

    def _delete_by_force(self, publisher: str) -> None:
        """Take away a publisher's pod as the loss of its node would; the operator creates it again."""
        pod = publisher.rpartition(".")[2]
        force = ("--grace-period=0", "--force", "--wait=false")
        self.cluster.kubectl("delete", "pod", pod, "--namespace", NAMESPACE, *force)

    def _start_follower(self, logs: Logs, name: str, *arguments: str) -> None:
        pod = yaml.safe_load((PODS / "follower.yaml").read_text())
        pod["metadata"]["name"] = name
        (container,) = pod["spec"]["containers"]
        container["image"] = self.image("spark")
        container["args"] = [*arguments, "--stream", f"{NAMESPACE}/flights"]
        container["env"] = [{"name": "EPOCHAL_CATALOG", "value": self.catalog}, *self._traced()]
        self.cluster.apply(pod, namespace=NAMESPACE)
        logs.follow(FollowedPod(name, last="ended"))

    def _traced(self) -> list[dict[str, str]]:
        """The environment that names the collector to a container."""
        return [{"name": ENDPOINT, "value": COLLECTOR}] if self.traces else []

    def _submit(self, logs: Logs) -> None:
        command = submit_command(self.cluster.url, NAMESPACE, self.image("spark"), self.catalog, self.days)
        # Java's second compiler pays in jobs of many minutes; here it would take a fifth of the processor's time.
        quick = [f"spark.{role}.defaultJavaOptions=-XX:TieredStopAtLevel=1" for role in ("driver", "executor")]
        command[1:1] = [word for setting in quick for word in ("--conf", setting)]
        if self.sidecars is Sidecars.INJECT:
            labels = [f"spark.kubernetes.{role}.label.epochal.dev/inject=true" for role in ("driver", "executor")]
            command[1:1] = [word for label in labels for word in ("--conf", label)]
        if self.traces:
            pairs = [f"spark.kubernetes.driverEnv.{ENDPOINT}={COLLECTOR}", f"spark.executorEnv.{ENDPOINT}={COLLECTOR}"]
            command[1:1] = [word for pair in pairs for word in ("--conf", pair)]
        if isinstance(self.cluster, node.Node):  # Debian's etcd has not what Spark's watches ask for; it also polls
            command[1:1] = ["--conf", "spark.kubernetes.executor.enableApiWatcher=false"]
        log = CACHE / "logs" / "demo-submit.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        # With the driver's own rights. Spark's client also fails at client keys that are not RSA.
        with tempfile.TemporaryDirectory() as private, log.open("w") as output:
            user = self.cluster.run_as_service_account(NAMESPACE, "spark", Path(private) / "kubeconfig")
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            if self.sidecars is Sidecars.TEMPLATE:
                templates = self._templates(Path(private))
                command = [templates.get(word, word) for word in command]
            java = f"-Djava.io.tmpdir={private} -XX:-UsePerfData"
            environment = {**user.environment(), "PATH": path, "SPARK_LOCAL_DIRS": private, "JAVA_TOOL_OPTIONS": java}
            done = subprocess.run(
                command, env=environment, cwd=ROOT, stdout=output, stderr=output, timeout=300, check=False
            )
        if done.returncode:
            said = [line for line in log.read_text().splitlines() if not line.startswith("\t")]  # no stack traces
            end = "\n".join(said[-10:])
            raise DemoError(f"spark-submit failed; the end of {log}:\n{end}")
        logs.follow(FollowedPod(DRIVER, last="truth"))

    def _templates(self, directory: Path) -> dict[str, str]:
        """What names a template of Spark's pods -> what names the same with a sidecar, of this cluster's image."""
        words = {}
        for role in ("driver", "executor"):
            pod = yaml.safe_load((FILES / f"{role}-sidecar.yaml").read_text())
            (sidecar,) = pod["spec"]["initContainers"]
            sidecar["image"] = self.image("publisher")
            (catalog,) = [entry for entry in sidecar["env"] if entry["name"] == "EPOCHAL_CATALOG"]
            catalog["value"] = self.catalog
            sidecar["env"] += self._traced()
            written = directory / f"{role}.yaml"
            written.write_text(yaml.safe_dump(pod))
            option = f"spark.kubernetes.{role}.podTemplateFile="
            words[f"{option}spark/kubernetes/{role}.yaml"] = f"{option}{written}"
        return words

    def see_the_end(self) -> None:
        """Wait until the driver's pod has completed, its sidecar after it, and no executor is left."""
        step("waiting for Spark's pods to end")
        self.cluster.wait(f"pod/{DRIVER}", "jsonpath={.status.phase}=Succeeded", namespace=NAMESPACE, timeout=120)
        if self.sidecars is not Sidecars.NONE:
            status = self.cluster.get("pod", DRIVER, namespace=NAMESPACE)["status"]
            states = {each["name"]: each["state"] for each in status["initContainerStatuses"]}
            code = states["epochal-sidecar"].get("terminated", {}).get("exitCode")
            if code != 0:
                raise DemoError(f"the driver's sidecar has not ended well: {states['epochal-sidecar']}")
        executors = ("pod", "--selector", "spark-role=executor", "--namespace", NAMESPACE)
        self.cluster.kubectl("wait", "--for=delete", *executors, "--timeout=120s", timeout=150)

    def show_traces(self, *, keep: bool) -> None:
        """Find a trace that leads through all of it, and show it: at the address that `kept` leads to, if all stays."""
        with self.cluster.port_forward("service/zipkin", ZIPKIN_PORT, NAMESPACE) as port:
            address = f"http://127.0.0.1:{port}"
            try:
                found = traces.find(address, f"{NAMESPACE}/flights", self._leads_through_all)
            except TimeoutError as error:
                raise DemoError(str(error)) from None
            traces.show(found, ZIPKIN if keep else address, stays=keep)
        if not keep:
            step("Zipkin is removed with all else (KEEP=1 keeps it)")

    def _leads_through_all(self, found: traces.FoundTrace) -> bool:
        steps = [each for each in traces.STEPS if each != "forward" or self.sidecars is not Sidecars.NONE]
        ways = {"direct" if self.sidecars is Sidecars.NONE else "sidecar"}
        if found.tagged("send", "epochal.way") != ways:
            return False
        return all(map(found.count, steps)) and len(found.tagged("send", "host.name")) == EXECUTORS

    # --- after --------------------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Delete everything that was made, the publishers by the operator while it is there."""
        if self.cluster.find("crd", "streams.epochal.dev") is not None:
            delete = ("delete", "streams.epochal.dev", "--all", "--namespace", NAMESPACE, "--timeout=120s")
            self.cluster.kubectl(*delete, timeout=150)
        self.cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found", "--wait")
        self.cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=180s", timeout=200)


def submit_command(url: str, namespace: str, image: str, catalog: str, days: int) -> list[str]:
    """How the job is submitted; all requests are small, as a node may have two cores."""
    settings = {
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.authenticate.driver.serviceAccountName": "spark",
        "spark.kubernetes.driver.pod.name": DRIVER,
        "spark.kubernetes.driver.podTemplateFile": "spark/kubernetes/driver.yaml",
        "spark.kubernetes.driver.podTemplateContainerName": "spark",
        "spark.kubernetes.executor.podTemplateFile": "spark/kubernetes/executor.yaml",
        "spark.kubernetes.executor.podTemplateContainerName": "spark",
        **{
            f"spark.kubernetes.{role}.volumes.persistentVolumeClaim.flights.{key}": value
            for role in ("driver", "executor")
            for key, value in {"options.claimName": "flights-work", "mount.path": WORK}.items()
        },
        "spark.kubernetes.driver.request.cores": "200m",
        "spark.kubernetes.executor.request.cores": "200m",
        # Beside a driver's JVM there are several Pythons, to which the default of 384 MiB leaves too little room.
        "spark.driver.memory": "768m",
        "spark.driver.memoryOverhead": "768m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.instances": str(EXECUTORS),
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.extraJavaOptions": "-Xss16m",
        "spark.kubernetes.submission.waitAppCompletion": "false",
    }
    command = ["spark-submit", "--master", f"k8s://{url}", "--deploy-mode", "cluster", "--name", "flights"]
    command += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    job = ["local:///opt/spark/jobs/flights.py", "--catalog", catalog, "--stream", f"{namespace}/flights"]
    return [*command, *job, "--days", str(days), "--work", WORK, "--gate", GATE]


def step(text: str) -> None:
    """Print what is done next."""
    print(text, flush=True)


def images_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The images that are built here: none that come from a registry."""
    if options.registry is not None:
        return ()
    return IMAGES + (TRACING_IMAGES if options.traces else ())


def import_images(cluster: Kubernetes, names: tuple[str, ...]) -> None:
    """Put images that were built where pods find them."""
    step("importing the images")
    for name in names:
        cluster.import_image(ROOT / ".cache" / "images" / f"{name}.tar")


def demonstrate(cluster: Kubernetes, options: argparse.Namespace, *, keep: bool) -> int:
    """Run the demo on a cluster, print the verdict, and remove what was made."""
    began = time.monotonic()
    if names := images_of(options):
        import_images(cluster, names)
    kills = options.kill and options.days >= LEAST_DAYS_TO_KILL
    demo = Demo(
        cluster,
        options.days,
        options.registry or "localhost",
        options.tag,
        kills=kills,
        sidecars=options.sidecar,
        traces=options.traces,
    )
    try:
        demo.prepare()
        status = verdict(demo.run(options.timeout), time.monotonic() - began)
        demo.see_the_end()
        if options.traces:
            demo.show_traces(keep=keep)
        if status:
            keep_evidence(cluster)
    except (DemoError, KubectlError, subprocess.SubprocessError):
        keep_evidence(cluster)
        raise
    finally:
        if keep:
            step(kept(cluster.kubeconfig, traces=options.traces))
        elif demo.made:
            step("removing what was made")
            demo.remove()
    return int(status)


def kept(kubeconfig: Path, *, traces: bool) -> str:
    """How to reach what stays when the demo has ended; the ports that it forwarded itself end with it."""
    lines = [f"kept, in the namespace {NAMESPACE}:", f"export KUBECONFIG={shlex.quote(str(kubeconfig))}"]
    if traces:
        kubectl = shlex.quote(str(building.kubectl()))
        forward = f"{kubectl} port-forward --namespace {NAMESPACE} service/zipkin {ZIPKIN_PORT}:{ZIPKIN_PORT}"
        lines += [f"Zipkin is at {ZIPKIN}/zipkin while this runs:", forward]
    return "\n".join(lines)


def keep_evidence(cluster: Kubernetes) -> None:
    """Write down what the cluster can tell about a failure, before it is removed."""
    directory = evidence.directory_of("demo-cluster")
    evidence.collect(cluster, directory)
    step(f"objects, events and logs: {directory}")


def main() -> int:
    """Do what the command line and the environment say."""
    parser = argparse.ArgumentParser(prog="make demo-cluster DEMO_ARGS=...", description=__doc__)
    parser.add_argument("--days", type=int, default=14, help="how many days to publish, 3 to 365")
    parser.add_argument("--registry", help="take the images from this registry, instead of building them")
    parser.add_argument("--tag", default="dev", help="tag of the images")
    say = f"delete no publisher's pod by force in the middle (as with fewer than {LEAST_DAYS_TO_KILL} days)"
    parser.add_argument("--no-kill", dest="kill", action="store_false", help=say)
    say = "how Spark's pods get sidecars: by templates, injected by a label (Kubernetes 1.36), or not at all"
    parser.add_argument("--sidecar", type=Sidecars, choices=list(Sidecars), default=Sidecars.TEMPLATE, help=say)
    say = "trace it all: a collector and Zipkin run too, and the address of one hour's trace is printed at the end"
    parser.add_argument("--traces", action="store_true", help=say)
    parser.add_argument("--timeout", type=float, default=900, help="seconds for the run, once all is installed")
    options = parser.parse_args()
    if not 3 <= options.days <= 365:
        parser.error("--days is 3 to 365")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))  # ends in order as Ctrl-C does
    try:
        check_java()
        if not os.environ.get("KUBECONFIG"):
            node.require_fit({} if options.registry else building.IMAGE_PROGRAMS)
        elif options.registry is None:
            building.require(building.IMAGE_PROGRAMS)
        tier = None if os.environ.get("KUBECONFIG") else "node"
        if images_of(options) or tier:
            step("building what is not there yet, side by side (minutes the first time)")
            progress.build(images_of(options) or None, tier, step)
        return _on_cluster(lambda cluster, keep: demonstrate(cluster, options, keep=keep))
    except (
        ConfigError,
        UnfitError,
        BuildError,
        NotReadyError,
        RemainsError,
        CommandError,
        DemoError,
        KubectlError,
    ) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.SubprocessError as error:
        print(f"error: {error}\n{getattr(error, 'stderr', None) or ''}".rstrip(), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _on_cluster(use: Callable[[Kubernetes, bool], int]) -> int:
    """Use the cluster of KUBECONFIG, or the node that stands, or one for the time of the demo (KEEP=1: it stays)."""
    keep = os.environ.get("KEEP", "") not in ("", "0")
    if given := os.environ.get("KUBECONFIG"):
        return use(GivenCluster(Path(given)), keep)
    stands = node.running() is not None
    if not stands:
        step("starting a throw-away Kubernetes")
    try:
        return use(node.up(), keep)
    finally:
        if not stands and not keep:
            node.down()


if __name__ == "__main__":
    sys.exit(main())
