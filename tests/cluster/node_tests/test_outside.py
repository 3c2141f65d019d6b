"""`epochal --kube` into real pods: by way of the API server, the kubelet and the containers' own network.

The pods are plain ones, as the operator draws them: what is tested is the way, not who made them.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.harness.kubernetes import Kubernetes, eventually
from tests.cluster.harness.places import ROOT

PATIENCE = 120.0
MAIN = "from epochal.cli import main; main()"
IMAGES = Path(os.environ.get("EPOCHAL_IMAGES", ROOT / ".cache" / "images"))
USER = 10001
SOCKETS = ("EVENTS", "REQUESTS", "INGEST", "HTTP")


@pytest.fixture(scope="session")
def images(cluster: Kubernetes) -> None:
    """The images of catalog and publisher, from `make images`."""
    for name in ("catalog", "publisher"):
        archive = IMAGES / f"{name}.tar"
        if not archive.exists():
            pytest.skip(f"needs {archive}, which `make images` makes")
        cluster.import_image(archive)


class Realm:
    """A catalog and a publisher of one stream, in pods of one namespace, seen from outside."""

    def __init__(self, cluster: Kubernetes, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.stream = f"{namespace}/flights"
        without = ("EPOCHAL_CATALOG", "EPOCHAL_NAMESPACE", "KUBERNETES_SERVICE_HOST")
        kept = {key: value for key, value in os.environ.items() if key not in without}
        self.environment = {**kept, "KUBECONFIG": str(cluster.kubeconfig)}

    def command(self, *arguments: str) -> list[str]:
        """`epochal --kube ARGUMENTS`."""
        return [sys.executable, "-c", MAIN, "--kube", "--kube-namespace", self.namespace, *arguments]

    def run(self, *arguments: str, stdin: str = "", status: int = 0) -> str:
        """What such a command prints."""
        done = subprocess.run(
            self.command(*arguments),
            input=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def apply(self, *documents: dict[str, Any]) -> None:
        """Apply objects, and wait for the pods among them."""
        self.cluster.apply(*documents, namespace=self.namespace)
        for document in documents:
            if document["kind"] == "Pod":
                name = document["metadata"]["name"]
                self.cluster.wait(f"pod/{name}", "condition=Ready", namespace=self.namespace, timeout=PATIENCE)

    def declare(self) -> None:
        """Tell the catalog, as the operator does: from the catalog's own pod, which has Python."""
        manifest = {
            "apiVersion": "epochal.dev/v1alpha1",
            "kind": "Stream",
            "metadata": {"name": "flights", "namespace": self.namespace},
            "spec": {"time": {"shape": "int"}, "payload": {"encoding": "json"}, "progress": {"writerTimeout": "5s"}},
        }
        program = (
            "import sys, urllib.request as r\n"
            "url = f'http://127.0.0.1:8700/v1/streams/{sys.argv[1]}'\n"
            "body = sys.stdin.buffer.read()\n"
            "r.urlopen(r.Request(url, body, {'Content-Type': 'application/json'}, method='PUT')).read()\n"
        )
        command = ("exec", "-i", "-n", self.namespace, "epochal-catalog", "--", "python3", "-c", program, self.stream)
        self.cluster.kubectl(*command, stdin=json.dumps(manifest))

    def publisher(self) -> dict[str, Any]:
        """The publisher's pod."""
        environment = {
            "CATALOG": f"http://epochal-catalog.{self.namespace}.svc:8700",
            "STREAM": self.stream,
            "SEGMENTS": "0",
            "PUBLISHER": f"{self.namespace}.flights-0",
            "HOST": "0.0.0.0",
            "ADVERTISE": f"flights-0.flights.{self.namespace}.svc",
            **{f"{name}_PORT": str(port) for name, port in zip(SOCKETS, range(8701, 8705), strict=True)},
        }
        given = {f"EPOCHAL_PUBLISHER_{name}": value for name, value in environment.items()}
        return pod("flights-0", "publisher", given, {"app": "flights"}, 8704, hostname="flights-0", subdomain="flights")

    def subscribed(self) -> bool:
        """Whether the catalog knows of a subscription."""
        return bool(json.loads(self.run("get", "subscriptions", self.stream, "-o", "json"))["items"])


def pod(
    name: str, image: str, environment: dict[str, str], labels: dict[str, str], health: int, **spec: Any
) -> dict[str, Any]:
    container = {
        "name": image,
        "image": f"localhost/epochal-{image}:dev",
        "imagePullPolicy": "Never",
        "args": ["serve"],
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": health}, "periodSeconds": 1},
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
    }
    security = {"runAsNonRoot": True, "runAsUser": USER, "fsGroup": USER, "seccompProfile": {"type": "RuntimeDefault"}}
    whole = {
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": security,
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": whole}


def service(name: str, labels: dict[str, str], selector: dict[str, str], **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"selector": selector, **spec}}


@pytest.fixture
def realm(cluster: Kubernetes, images: None, namespaces: Callable[..., str]) -> Realm:
    """A catalog, and the publisher of a stream, ready."""
    realm = Realm(cluster, namespaces())
    labels = {"app.kubernetes.io/part-of": "epochal", "app.kubernetes.io/component": "catalog"}
    environment = {"EPOCHAL_CATALOG_HOST": "0.0.0.0", "EPOCHAL_CATALOG_DATA": "/tmp/data"}
    realm.apply(
        pod("epochal-catalog", "catalog", environment, labels, 8700),
        service("epochal-catalog", labels, labels, ports=[{"port": 8700}]),
        service("flights", {}, {"app": "flights"}, clusterIP="None", publishNotReadyAddresses=True),
    )
    realm.declare()
    realm.apply(realm.publisher())
    return realm


def test_megabytes_go_in_and_come_out_whole(realm: Realm) -> None:
    records = [{"n": number, "text": hashlib.sha512(str(number).encode()).hexdigest() * 4} for number in range(8000)]
    realm.run("pub", realm.stream, "--time", "1", "-f", "-", "--finish", stdin="\n".join(map(json.dumps, records)))
    epoch, *_ = map(json.loads, realm.run("sub", realm.stream, "--since", "start", "--epochs", "--json").splitlines())
    assert (epoch["kind"], epoch["time"]) == ("epoch", 1)
    assert epoch["records"] == records


def test_doctor_tries_every_port_through_the_cluster(realm: Realm) -> None:
    out = realm.run("doctor", "--timeout", "30", status=1)  # there is no operator, and perhaps no definition
    assert f"ok    catalog      pod {realm.namespace}/epochal-catalog is ready" in out
    assert f"ok    forward      service {realm.namespace}/epochal-catalog is reached at" in out
    assert "ok    ports        all 4 ports of 1 publisher answer" in out


def test_a_subscription_finds_a_pod_that_is_made_anew(realm: Realm) -> None:
    command = realm.command("sub", realm.stream, "--epochs", "--json", "--count", "2")
    told: list[str] = []
    with subprocess.Popen(
        command, env=realm.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        listener = threading.Thread(target=told.extend, args=(reading.stderr,), daemon=True)
        listener.start()
        try:
            eventually(realm.subscribed, timeout=PATIENCE)
            realm.run("pub", realm.stream, "--time", "1", '{"n": 1}', "--advance", "2")
            assert json.loads(reading.stdout.readline()) == {"kind": "epoch", "time": 1, "records": [{"n": 1}]}
            realm.cluster.kubectl("delete", "pod", "flights-0", "-n", realm.namespace, "--grace-period=0", "--force")
            eventually(lambda: realm.cluster.find("pod", "flights-0", namespace=realm.namespace) is None)
            realm.apply(realm.publisher())
            realm.run("pub", realm.stream, "--time", "7", '{"n": 7}', "--finish")
            found = [json.loads(line) for line in reading.stdout]
            assert {"kind": "epoch", "time": 7, "records": [{"n": 7}]} in found, (found, told)
            assert reading.wait(PATIENCE) == 0
        finally:
            reading.kill()
            listener.join(PATIENCE)
