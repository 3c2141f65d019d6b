"""`epochal --kube` against a real API server: what is applied, what is refused, what is found, and what is forwarded.

No node runs here, so one part is not Kubernetes': the kubelet at the end of a forwarded port is ours, and leads to a
catalog and a publisher that run as processes. `tests/cluster/node_tests/test_clients.py` has a real one.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.harness import apiserver, building
from tests.cluster.harness.apiserver import ApiServer
from tests.cluster.harness.certificates import write_kubeconfig
from tests.cluster.harness.kubernetes import KubectlError, Kubernetes, eventually
from tests.cluster.harness.places import ROOT
from tests.cluster.harness.programs import Program
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.resources.test_relay import document as relay_document

from epochal.local.child import console_script

CRDS = ROOT / "charts/epochal/files"
PUBLISHERS = 2
"""With more ports than a small machine has threads."""
MAIN = "from epochal.cli import main; main()"
EXEC = "client.authentication.k8s.io/v1"
MOMENT = "2026-01-01T00:00:00Z"
MANIFEST = {
    "apiVersion": "epochal.dev/v1alpha1",
    "kind": "Stream",
    "metadata": {"name": "flights"},
    "spec": {"time": {"shape": "int"}, "payload": {"encoding": "json"}},
}


@dataclass(frozen=True)
class Result:
    """What a command left."""

    status: int
    out: str
    err: str


class Outside:
    """A user with a kubeconfig, on a machine outside the cluster."""

    def __init__(self, kubeconfig: Path, more: Mapping[str, str] | None = None) -> None:
        without = ("EPOCHAL_CATALOG", "EPOCHAL_NAMESPACE", "KUBERNETES_SERVICE_HOST")
        kept = {key: value for key, value in os.environ.items() if key not in without}
        self.environment = {**kept, "KUBECONFIG": str(kubeconfig), **(more or {})}

    def __call__(self, *arguments: str | Path, stdin: str = "", program: str = MAIN) -> Result:
        """`epochal ARGUMENTS`."""
        command = [sys.executable, "-c", program, *map(str, arguments)]
        done = subprocess.run(
            command, input=stdin, env=self.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """An API server of this module's own: what is found in all namespaces is what is put here."""
    with apiserver.api_server() as server:
        server.kubectl("apply", "-f", CRDS)
        eventually(lambda: _served(server))
        for namespace in ("demo", "epochal"):
            server.kubectl("create", "namespace", namespace)
        yield server


def _served(server: ApiServer) -> bool:
    try:
        return "streams" in server.kubectl("get", "--raw", "/apis/epochal.dev/v1alpha1")
    except KubectlError:
        return False


@pytest.fixture
def admin(server: ApiServer) -> Outside:
    return Outside(server.kubeconfig)


@pytest.fixture
def namespace(server: ApiServer, request: pytest.FixtureRequest) -> str:
    """A fresh one."""
    name = request.node.name.replace("_", "-")[5:60].strip("-")
    server.kubectl("create", "namespace", name)
    return name


def manifest(**spec: Any) -> str:
    return yaml.safe_dump({**MANIFEST, "spec": {**MANIFEST["spec"], **spec}})  # type: ignore[dict-item]  # a mapping


def user(server: Kubernetes, path: Path, namespace: str, *rules: str) -> Outside:
    """A service account with a Role of these rules, "VERB,... RESOURCE"; its context names the namespace."""
    server.kubectl("create", "serviceaccount", path.stem, "-n", namespace)
    for number, rule in enumerate(rules):
        verbs, resource = rule.split()
        role = f"{path.stem}-{number}"
        server.kubectl("create", "role", role, "-n", namespace, f"--verb={verbs}", f"--resource={resource}")
        account = f"--serviceaccount={namespace}:{path.stem}"
        server.kubectl("create", "rolebinding", role, "-n", namespace, f"--role={role}", account)
    return Outside(server.run_as_service_account(namespace, path.stem, path).kubeconfig)


# ---- Stream objects ----


def test_apply_makes_objects_as_kubectl_does(server: ApiServer, admin: Outside, namespace: str) -> None:
    text = manifest(segments=2)
    result = admin("--kube", "apply", "-n", namespace, "-f", "-", stdin=text)
    assert (result.status, result.out) == (0, f"stream {namespace}/flights created\n"), result.err
    assert "as kubectl apply --server-side does" in result.err
    assert admin("--kube", "apply", "-n", namespace, "-f", "-", stdin=text).out.endswith("flights unchanged\n")
    more = manifest(segments=2, progress={"writerTimeout": "1m"})
    result = admin("--kube", "apply", "-n", namespace, "-f", "-", "--dry-run", stdin=more)
    assert result.out == f"stream {namespace}/flights configured (dry run)\n"
    assert server.get("stream", "flights", namespace=namespace)["spec"]["progress"]["writerTimeout"] == "30s"
    assert admin("--kube", "apply", "-n", namespace, "-f", "-", stdin=more).out.endswith("flights configured\n")
    found = server.get("stream", "flights", "--show-managed-fields", namespace=namespace)
    assert found["spec"]["progress"]["writerTimeout"] == "1m"
    (ours,) = (one for one in found["metadata"]["managedFields"] if one["manager"] == "epochal")
    assert ours["operation"] == "Apply"
    assert "f:push" not in ours["fieldsV1"]["f:spec"]  # what was not written is left to defaults, and to others


def test_fields_of_others_are_taken_over_only_when_asked(server: ApiServer, admin: Outside, namespace: str) -> None:
    server.apply(manifest(progress={"writerTimeout": "45s"}), namespace=namespace)
    changed = manifest(progress={"writerTimeout": "2m"})
    result = admin("--kube", "apply", "-n", namespace, "-f", "-", stdin=changed)
    assert (result.status, result.out) == (1, "")
    assert "kubectl-client-side-apply" in result.err
    assert "writerTimeout" in result.err
    assert "--force-conflicts" in result.err
    result = admin("--kube", "apply", "-n", namespace, "-f", "-", "--force-conflicts", stdin=changed)
    assert result.out == f"stream {namespace}/flights configured\n"


def test_what_the_cluster_refuses_names_the_field(server: ApiServer, admin: Outside, namespace: str) -> None:
    admin("--kube", "apply", "-n", namespace, "-f", "-", stdin=manifest())
    result = admin("--kube", "apply", "-n", namespace, "-f", "-", stdin=manifest(time={"shape": "(int, int)"}))
    assert (result.status, result.out) == (2, "")
    assert "spec.time" in result.err
    result = admin("--kube", "apply", "-n", "nowhere", "-f", "-", stdin=manifest())
    assert result.status == 1
    assert "kubectl create namespace nowhere" in result.err


def test_delete_ends_objects_and_waits_for_what_ends_them(server: ApiServer, admin: Outside, namespace: str) -> None:
    admin("--kube", "apply", "-n", namespace, "-f", "-", stdin=manifest())
    assert admin("--kube", "delete", "stream", f"{namespace}/nothing").status == 3
    patch = json.dumps({"metadata": {"finalizers": ["epochal.dev/finalizer"]}})
    server.kubectl("patch", "stream", "flights", "-n", namespace, "--type=merge", f"--patch={patch}")
    result = admin("--kube", "delete", "stream", f"{namespace}/flights", "--wait", "--timeout", "1")
    assert (result.status, result.out) == (4, f"stream {namespace}/flights deleted\n")
    assert "not gone after 1 s" in result.err
    server.kubectl(
        "patch",
        "stream",
        "flights",
        "-n",
        namespace,
        "--type=json",
        '-p=[{"op":"remove","path":"/metadata/finalizers"}]',
    )
    assert server.find("stream", "flights", namespace=namespace) is None
    admin("--kube", "apply", "-n", namespace, "-f", "-", stdin=manifest())
    assert admin("--kube", "delete", "-n", namespace, "-f", "-", "--wait", stdin=manifest()).status == 0


def test_relays_are_applied_and_deleted_as_streams_are(server: ApiServer, admin: Outside, namespace: str) -> None:
    relay = json.dumps(relay_document("near", replicas=2) | {"metadata": {"name": "near"}})
    both = f"{manifest()}\n---\n{relay}"
    result = admin("--kube", "apply", "-n", namespace, "-f", "-", stdin=both)
    assert result.out == f"stream {namespace}/flights created\nrelay {namespace}/near created\n"
    assert server.get("relay", "near", namespace=namespace)["spec"]["replicas"] == 2
    more = relay.replace('"replicas": 2', '"replicas": 3')
    assert (
        admin("--kube", "apply", "-n", namespace, "-f", "-", stdin=more).out == f"relay {namespace}/near configured\n"
    )
    assert admin("--kube", "delete", "relay", f"{namespace}/nothing").status != 0
    result = admin("--kube", "delete", "relay", f"{namespace}/near", "--wait")
    assert (result.status, result.out) == (0, f"relay {namespace}/near deleted\n")
    assert server.find("relay", "near", namespace=namespace) is None
    admin("--kube", "apply", "-n", namespace, "-f", "-", stdin=relay)
    assert admin("--kube", "delete", "-n", namespace, "-f", "-", "--wait", stdin=both).status == 0


# ---- who may, and who may not ----


def test_a_missing_right_is_named_with_the_rule_that_grants_it(server, namespace, tmp_path) -> None:
    nobody = user(server, tmp_path / "nobody", namespace)
    result = nobody("--kube", "apply", "-f", "-", stdin=manifest())
    assert result.status == 1
    assert f"you may not get streams.epochal.dev in namespace {namespace}" in result.err
    assert f"a Role in namespace {namespace} with apiGroups: ['epochal.dev'], resources: [streams]" in result.err
    result = nobody("--kube", "get", "streams")
    assert result.status == 1
    assert "you may not list services in all namespaces" in result.err
    assert "--kube-namespace" in result.err
    result = nobody("--kube", "--kube-namespace", namespace, "get", "streams")
    assert f"you may not list services in namespace {namespace}" in result.err
    # What is advised is enough.
    writer = user(server, tmp_path / "writer", namespace, "get,patch,create,delete streams.epochal.dev")
    assert writer("--kube", "apply", "-f", "-", stdin=manifest()).out == f"stream {namespace}/flights created\n"
    assert writer("--kube", "delete", "stream", "flights").out == f"stream {namespace}/flights deleted\n"


def test_credentials_that_ended_are_reported(server: ApiServer, tmp_path: Path) -> None:
    document = yaml.safe_load(server.kubeconfig.read_text())
    cluster = document["clusters"][0]["cluster"]
    old = Outside(write_kubeconfig(tmp_path / "old", cluster, {"token": "eyJhbGciOiJub25lIn0.e30."}))
    result = old("--kube", "get", "streams")
    assert result.status == 1
    assert "credentials of context throw-away (401): they may have expired" in result.err
    result = old("--kube", "doctor")
    assert (result.status, "fail  kubernetes   Kubernetes does not take the credentials" in result.out) == (1, True)
    failing = {"exec": {"apiVersion": EXEC, "command": "false", "interactiveMode": "Never"}}
    result = Outside(write_kubeconfig(tmp_path / "plugin", cluster, failing))("--kube", "get", "streams")  # type: ignore[arg-type]
    assert "cannot log in: exec: process returned 1" in result.err
    assert result.status == 1


def test_a_plug_in_logs_in(server: ApiServer, namespace: str, tmp_path: Path) -> None:
    server.kubectl("create", "serviceaccount", "robot", "-n", namespace)
    account = f"--serviceaccount={namespace}:robot"
    server.kubectl("create", "role", "streams", "-n", namespace, "--verb=*", "--resource=streams.epochal.dev")
    server.kubectl("create", "rolebinding", "streams", "-n", namespace, "--role=streams", account)
    token = server.kubectl("create", "token", "-n", namespace, "robot").strip()
    said = {"apiVersion": EXEC, "kind": "ExecCredential", "status": {"token": token}}
    plugin = tmp_path / "login"
    plugin.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n")
    plugin.chmod(0o755)
    cluster = yaml.safe_load(server.kubeconfig.read_text())["clusters"][0]["cluster"]
    how = {"exec": {"apiVersion": EXEC, "command": str(plugin), "interactiveMode": "Never"}}
    robot = Outside(write_kubeconfig(tmp_path / "config", cluster, how, namespace))  # type: ignore[arg-type]
    assert robot("--kube", "apply", "-f", "-", stdin=manifest()).out == f"stream {namespace}/flights created\n"


def test_an_api_server_that_is_away_is_reported(server: ApiServer, tmp_path: Path) -> None:
    away = Outside(write_kubeconfig(tmp_path / "away", {"server": f"https://127.0.0.1:{free_port()}"}, {"token": "x"}))
    result = away("--kube", "apply", "-f", "-", stdin=manifest())
    assert result.status == 4
    assert "the API server of context throw-away cannot be reached at https://127.0.0.1" in result.err


# ---- the catalog and publishers ----


@dataclass(frozen=True)
class ClusterServices:
    """A catalog in the namespace `epochal` and a publisher of demo/flights, with what the cluster knows of them."""

    catalog: str


@pytest.fixture(scope="module")
def cluster_services(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterServices]:
    """Processes where containers would run: a node's kubelet, a catalog, a publisher, each in its pod's place."""
    place = tmp_path_factory.mktemp("services")
    kubelet_port, catalog_port = free_port(), free_port()
    catalog = f"http://127.0.0.1:{catalog_port}"
    keys = server.authority.issue("system:node:node", hosts=("127.0.0.1",))
    programs = [
        Program("kubelet", [sys.executable, "-m", "tests.kube.kubelet", str(kubelet_port), *keys], place / "kubelet"),
        Program(
            "catalog",
            [console_script("epochal-catalog"), "serve", "--data", place / "data", "--port", str(catalog_port)],
            place / "catalog",
        ),
        *(_publisher(catalog, index, place) for index in range(PUBLISHERS)),
    ]
    _objects(server, kubelet_port, catalog_port)
    try:
        for program in programs:
            program.start()
            program.wait_until(partial(_says_ready, program.log), PATIENCE)
            if program.name == "catalog":
                _declare(server, catalog)
        yield ClusterServices(catalog)
    finally:
        for program in reversed(programs):
            program.stop()


def _publisher(catalog: str, index: int, place: Path) -> Program:
    name = f"flights-{index}"
    command: list[str | Path] = [
        *(console_script("epochal-publisher"), "serve", "--catalog", catalog, "--stream", "demo/flights"),
        *("--segments", str(index), "--publisher", f"demo.{name}", "--advertise", f"{name}.flights.demo.svc"),
    ]
    return Program(name, command, place / name)


def _says_ready(log: Path) -> bool:
    return "ready" in log.read_text()


def _declare(server: ApiServer, catalog: str) -> None:
    """What the operator does: it tells the catalog of the object."""
    declared = manifest(segments=PUBLISHERS)
    server.apply(declared, namespace="demo")
    without = Outside(server.kubeconfig)
    result = without("apply", "--catalog", catalog, "-n", "demo", "-f", "-", stdin=declared)
    assert result.status == 0, result.err


def _objects(server: ApiServer, kubelet_port: int, catalog_port: int) -> None:
    server.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}})
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
    }
    server.kubectl(
        "patch", "node", "node", "--subresource=status", "--type=merge", f"-p={json.dumps({'status': status})}"
    )
    for component in ("catalog", "operator"):
        labels = {"app.kubernetes.io/part-of": "epochal", "app.kubernetes.io/component": component}
        _pod(server, "epochal", f"epochal-{component}-0", labels, {"http": catalog_port})
    for index in range(PUBLISHERS):
        _pod(server, "demo", f"flights-{index}", {"app.kubernetes.io/name": "epochal-publisher"}, {})
    labels = {"app.kubernetes.io/part-of": "epochal", "app.kubernetes.io/component": "catalog"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "epochal-catalog", "namespace": "epochal", "labels": labels},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": 8700, "targetPort": "http"}]},
    }
    server.apply(service)


def _pod(server: ApiServer, namespace: str, name: str, labels: dict[str, str], ports: dict[str, int]) -> None:
    listed = [{"name": key, "containerPort": port} for key, port in ports.items()]
    container = {"name": "main", "image": "none", "ports": listed}
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"nodeName": "node", "containers": [container]},
    }
    server.apply(document)
    _ready(server, namespace, name, True)


def _ready(server: ApiServer, namespace: str, name: str, ready: bool) -> None:
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": str(ready), "message": "as the test says"}],
    }
    patch = json.dumps({"status": status})
    server.kubectl("patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge", f"-p={patch}")


def test_publishes_and_subscribes_from_outside(cluster_services: ClusterServices, admin: Outside) -> None:
    records = [json.dumps({"n": number}) for number in range(500)]
    result = admin(
        "--kube", "pub", "demo/flights", "--time", "1", "-f", "-", "--advance", "2", stdin="\n".join(records)
    )
    assert result.status == 0, result.err
    result = admin("--kube", "sub", "demo/flights", "--since", "start", "--epochs", "--count", "1", "--json")
    assert result.status == 0, result.err
    epoch = json.loads(result.out)
    assert (epoch["kind"], epoch["time"]) == ("epoch", 1)
    assert sorted(record["n"] for record in epoch["records"]) == list(range(500))  # of two segments, in any order


def test_looks_from_outside(cluster_services: ClusterServices, admin: Outside) -> None:
    assert admin("--kube", "get", "streams", "-A", "-o", "name").out == "stream/demo/flights\n"
    assert admin("--kube", "describe", "stream", "demo/flights").status == 0
    # Any address of the cluster's own is found, not only the catalog that is looked for.
    result = admin(
        "--kube", "get", "streams", "-A", "-o", "name", "--catalog", "http://epochal-catalog.epochal.svc:8700"
    )
    assert (result.status, result.out) == (0, "stream/demo/flights\n")


def test_doctor_sees_all_of_a_cluster(cluster_services: ClusterServices, admin: Outside) -> None:
    result = admin("--kube", "doctor", "--timeout", "20")
    assert result.status == 0, result.out
    for line in (
        f"kubernetes   {building.kubernetes_version()}, context throw-away at https://127.0.0.1:",
        "resource     streams.epochal.dev/v1alpha1",
        "operator     pod epochal/epochal-operator-0 is ready",
        "catalog      pod epochal/epochal-catalog-0 is ready",
        "rights       you may reach all pods, and apply streams in namespace default",
        "forward      service epochal/epochal-catalog is reached at http://127.0.0.1:",
        "ports        all 8 ports of 2 publishers answer",
    ):
        assert f"ok    {line}" in result.out


def test_doctor_reports_objects_that_are_not_ready(
    cluster_services: ClusterServices, server: ApiServer, admin: Outside
) -> None:
    told = "warn  objects      demo/flights: the operator has not looked at it"
    assert told in admin("--kube", "doctor", "--timeout", "20").out
    ready = {"type": "Ready", "reason": "Waiting", "message": "as the test says", "lastTransitionTime": MOMENT}
    for status, line in (("False", "demo/flights: Waiting: as the test says"), ("True", "Stream objects are ready")):
        patch = json.dumps({"status": {"conditions": [{**ready, "status": status}]}})
        server.kubectl(
            *("patch", "stream", "flights", "-n", "demo", "--subresource=status", "--type=merge", f"-p={patch}")
        )
        assert line in admin("--kube", "doctor", "--timeout", "20").out


def test_a_catalog_that_is_not_ready_is_reported_with_its_reason(
    server: ApiServer, cluster_services: ClusterServices, admin: Outside
) -> None:
    _ready(server, "epochal", "epochal-catalog-0", False)
    try:
        result = admin("--kube", "get", "streams")
        assert result.status == 4
        assert "no pod of Service epochal/epochal-catalog is ready" in result.err
        assert "as the test says" in result.err
        result = admin("--kube", "doctor")
        assert result.status == 1
        assert "fail  catalog      pod epochal/epochal-catalog-0: it is running and not ready" in result.out
    finally:
        _ready(server, "epochal", "epochal-catalog-0", True)


def test_rights_to_forward(server: ApiServer, cluster_services: ClusterServices, tmp_path: Path) -> None:
    looker = user(server, tmp_path / "looker", "epochal", "get,list services", "get,list pods", "get pods/portforward")
    result = looker("--kube", "get", "streams", "--timeout", "1")
    assert result.status == 4
    assert "you may not get, create pods/portforward in namespace epochal" in result.err
    result = looker("--kube", "--kube-namespace", "epochal", "doctor")
    assert "warn  rights       you may not create pods/portforward in namespace epochal" in result.out
    lister = user(server, tmp_path / "lister", "epochal", "list services", "list pods", "get,create pods/portforward")
    assert "you may not get services in namespace epochal" in lister("--kube", "get", "streams", "--timeout", "1").err
    result = lister("--kube", "--kube-namespace", "epochal", "doctor")
    assert "warn  rights       you may not get services in namespace epochal" in result.out
    allowed = ("get,list services", "get,list pods", "get,create pods/portforward")
    reader = user(server, tmp_path / "reader", "epochal", *allowed)
    # Finds the catalog without a right in all namespaces, for it is where it usually is.
    assert reader("--kube", "get", "streams", "-A", "-o", "name").out == "stream/demo/flights\n"
    # It may not reach the publishers, whose namespace is another.
    result = reader("--kube", "sub", "demo/flights", "--idle", "3")
    assert "pod demo/flights-0 port" in result.err
    assert "you may not get, create pods/portforward in namespace demo" in result.err


def test_environment_of_another_realm_does_not_contradict_the_choice(
    cluster_services: ClusterServices, server: ApiServer
) -> None:
    confused = Outside(server.kubeconfig, {"EPOCHAL_CATALOG": "http://127.0.0.1:1"})
    assert confused("--kube", "get", "streams", "-A", "-o", "name").out == "stream/demo/flights\n"
    assert confused("get", "streams", "--timeout", "0").status == 4


def test_two_catalogs_are_distinguished_by_their_namespace(
    cluster_services: ClusterServices, server: ApiServer, admin: Outside, namespace: str
) -> None:
    labels = {"app.kubernetes.io/part-of": "epochal", "app.kubernetes.io/component": "catalog"}
    metadata = {"name": "other-catalog", "namespace": namespace, "labels": labels}
    spec = {"selector": labels, "ports": [{"port": 8700}]}
    server.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    names = f"epochal/epochal-catalog, {namespace}/other-catalog"
    try:
        result = admin("--kube", "get", "streams")
        assert result.status == 1
        assert f"there are 2 catalogs in any namespace that you may look into: {names}" in result.err
        assert admin("--kube", "--kube-namespace", "epochal", "get", "streams", "-A", "-o", "name").status == 0
        result = admin("--kube", "--kube-namespace", namespace, "get", "streams")
        assert (result.status, "(there is none)" in result.err) == (4, True)
    finally:
        server.kubectl("delete", "service", "other-catalog", "-n", namespace)


def test_as_a_plug_in_of_kubectl(cluster_services: ClusterServices, server: ApiServer, tmp_path: Path) -> None:
    for name, function in (("kubectl-epochal", "run"), ("kubectl_complete-epochal", "complete")):
        script = tmp_path / name
        program = f"from epochal.cli.plugin import {function}; {function}()"
        script.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{program}' \"$@\"\n")
        script.chmod(0o755)
    environment = {**server.environment(), "EPOCHAL_NAMESPACE": ""}
    del environment["EPOCHAL_NAMESPACE"], environment["KUBECONFIG"]
    # An activated environment has the command too, and kubectl does not like two, nor directories that are not there.
    searched = [place for place in environment["PATH"].split(":") if Path(place).is_dir()]
    searched = [place for place in searched if not (Path(place) / "kubectl-epochal").exists()]
    environment["PATH"] = ":".join([str(tmp_path), *searched])

    def kubectl(*arguments: str) -> str:
        command = [str(building.kubectl()), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    config = f"--kubeconfig={server.kubeconfig}"
    assert "kubectl-epochal" in kubectl("plugin", "list")
    assert kubectl("epochal", "get", "streams", "-A", "-o", "name", config) == "stream/demo/flights\n"
    assert kubectl("epochal", config, "--context", "throw-away", "-n", "demo", "get", "streams", "-o", "name") != ""
    assert kubectl("epochal", config, "-n", "epochal", "get", "streams", "-o", "name") == ""
    # kubectl asks for completion as a shell would have it asked.
    assert kubectl("__complete", "epochal", config, "desc").splitlines()[0] == "describe"
    assert "demo/flights" in kubectl("__complete", "epochal", config, "sub", "").splitlines()
