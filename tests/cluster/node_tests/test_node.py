"""The node itself: what tests of Epochal on it may count on."""

import os
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from tests.cluster.harness import evidence, images, node
from tests.cluster.harness.busybox import BUSYBOX, busybox_image
from tests.cluster.harness.kubernetes import KubectlError, Kubernetes, eventually
from tests.cluster.harness.places import CACHE
from tests.cluster.harness.pods import RESTRICTED, USER, pod, said_by, server, service
from tests.cluster.harness.settings import NODE, Layout
from tests.patience import PATIENCE


@pytest.fixture(scope="session", autouse=True)
def _image(cluster: Kubernetes) -> None:
    assert cluster.import_image(busybox_image()) == [BUSYBOX]


def test_a_pod_is_reached_by_its_service_and_name(cluster, namespace):
    cluster.apply(server(), service(), namespace=namespace)
    cluster.wait("pod/server", "condition=Ready", namespace)
    for host in ("server", f"server.{namespace}", f"server.{namespace}.svc.cluster.local"):
        asking = pod(f"asks-{host.count('.')}", f"until timeout 5 wget -q -O - http://{host}/; do sleep 1; done")
        assert "good day" in said_by(cluster, namespace, asking)


def test_a_pod_reaches_itself_by_its_service(cluster, namespace):
    cluster.apply(server(), service(), namespace=namespace)
    cluster.wait("pod/server", "condition=Ready", namespace)
    address = f"http://server.{namespace}.svc/"  # alone, the name is the pod's own
    ask = ("exec", "-n", namespace, "server", "--", "timeout", "5", "wget", "-q", "-O", "-", address)
    assert eventually(lambda: _tried(cluster, *ask)) == "good day\n"


def test_a_pod_behind_a_headless_service_has_a_name_before_it_is_ready(cluster, namespace):
    never = {"readinessProbe": {"exec": {"command": ["false"]}}}
    cluster.apply(
        server("member-0", hostname="member-0", subdomain="server", container=never),
        service(clusterIP="None", publishNotReadyAddresses=True),
        namespace=namespace,
    )
    address = f"http://member-0.server.{namespace}.svc:8080/"
    asking = pod("asks", f"until timeout 5 wget -q -O - {address}; do sleep 1; done")
    assert "good day" in said_by(cluster, namespace, asking)


def test_logs_exec_and_port_forward_work(cluster, namespace):
    cluster.apply(server(), namespace=namespace)
    cluster.wait("pod/server", "condition=Ready", namespace)
    assert cluster.kubectl("logs", "-n", namespace, "server") == "serving\n"
    assert cluster.kubectl("exec", "-n", namespace, "server", "--", "id", "-u") == f"{USER}\n"
    with cluster.port_forward("pod/server", 8080, namespace) as port:
        answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE)
        with answer:
            assert answer.read() == b"good day\n"


def test_a_volume_is_writable_for_its_pods_group_outlives_pods_and_goes_with_its_claim(cluster, namespace):
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "kept"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}},
    }
    mounted = {"volumeMounts": [{"name": "kept", "mountPath": "/kept", "subPath": "log"}]}
    volumes = [{"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}}]
    cluster.apply(claim, namespace=namespace)
    said_by(cluster, namespace, pod("writes", "echo found > /kept/file", container=mounted, volumes=volumes))
    cluster.kubectl("delete", "pod", "-n", namespace, "writes")
    assert said_by(cluster, namespace, pod("reads", "cat /kept/file", container=mounted, volumes=volumes)) == "found\n"
    name = cluster.get("pvc", "kept", namespace=namespace)["spec"]["volumeName"]
    cluster.kubectl("delete", "pod/reads", "pvc/kept", "-n", namespace)
    cluster.wait(f"pv/{name}", "delete", timeout=PATIENCE)
    if isinstance(cluster, node.Node):
        assert not (cluster.volumes / name).exists()


def test_what_a_cluster_says_is_kept_for_a_failed_test(cluster, namespace, tmp_path):
    cluster.apply(pod("dies", "echo last words; exit 3", restartPolicy="OnFailure"), namespace=namespace)

    def restarted() -> bool:
        containers = cluster.get("pod", "dies", namespace=namespace)["status"].get("containerStatuses", [])
        return any(container["restartCount"] for container in containers)

    eventually(restarted)
    evidence.collect(cluster, tmp_path)
    assert f"{namespace} " in (tmp_path / "objects.txt").read_text()
    assert "Pod/dies" in (tmp_path / "events.txt").read_text()
    logs = (tmp_path / "pods").glob(f"{namespace}.dies*")  # of the present container, of the one before, or of both
    assert "last words" in "".join(path.read_text() for path in logs)
    if isinstance(cluster, node.Node):
        assert (tmp_path / "components" / "kubelet.log").stat().st_size


def test_an_archive_is_imported_again_when_it_has_changed_and_only_then(own_node, monkeypatch, tmp_path):
    name, archive = "cluster.epochal.dev/changing:dev", tmp_path / "image.tar"
    calls: list[str] = []
    ctr = own_node.ctr

    def counted(*arguments: str) -> str:
        calls.append(arguments[1])
        return ctr(*arguments)

    monkeypatch.setattr(own_node, "ctr", counted)
    for content in ("one", "one", "another"):
        program = tmp_path / "program"
        if not program.exists() or program.read_text() != content:
            program.write_text(content)
            images.archive_of(program, name, archive)
        assert own_node.import_image(archive) == [name]
    assert calls == ["import", "import"]
    ctr("images", "remove", name)


def test_pods_that_keep_to_the_restricted_standard_run_and_others_are_refused(cluster, namespaces):
    namespace = namespaces({"pod-security.kubernetes.io/enforce": "restricted"})
    assert said_by(cluster, namespace, pod("keeps", "echo ran")) == "ran\n"
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        cluster.apply(pod("breaks", "true", container={"securityContext": {}}), namespace=namespace)


def test_a_sidecar_starts_before_the_container_beside_it_and_ends_with_it(cluster, namespace):
    sidecar = {"name": "sidecar", "image": BUSYBOX, "imagePullPolicy": "Never", "securityContext": RESTRICTED}
    sidecar |= {"restartPolicy": "Always", "command": ["httpd", "-f", "-p", "8080", "-h", "/etc"]}
    sidecar |= {"startupProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}}
    asks = pod("asks", "timeout 5 wget -q -O - http://127.0.0.1:8080/hostname", initContainers=[sidecar])
    assert said_by(cluster, namespace, asks) == "asks\n"


def test_a_component_that_is_killed_comes_back(own_node, namespace):
    for name in ("kubelet", "apiserver", "controller-manager"):
        before = own_node.component(name)
        os.kill(before, signal.SIGKILL)
        eventually(lambda: (pid := _component(own_node, name)) and pid != before, timeout=PATIENCE)  # noqa: B023 (awaited here)
    eventually(lambda: _tried(own_node, "get", "node", NODE))
    assert said_by(own_node, namespace, pod("after", "echo still")) == "still\n"


def test_starting_the_node_again_finds_it(own_node):
    assert node.up().pid == own_node.pid


def test_a_second_node_runs_beside_the_first_and_leaves_the_machine_as_it_was(own_node):
    directory = CACHE / "second"
    before = _machine()
    second = node.up(directory)
    layout = second.layout
    try:
        assert second.url != own_node.url
        assert second.find("deployment", "coredns", namespace="kube-system") is not None
        assert _machine() == before
        traces = _traces(layout)
        assert not traces.pop("mounts")  # they are in the node's own view
        assert all(traces.values()), traces  # else nothing is shown below
    finally:
        node.down(directory)
    eventually(lambda: not any(_traces(layout).values()), timeout=PATIENCE)
    assert _machine() == before
    own_node.get("nodes")


def _machine() -> dict[str, str]:
    """What nodes share with the machine, and must leave as it is."""
    settings = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
    values = {setting: Path("/proc/sys", setting).read_text() for setting in settings}
    folders = ("/var/lib/kubelet", "/var/lib/cni", "/var/lib/containerd", "/var/log/pods", "/run/containerd")
    there = {folder: str(Path(folder).exists()) for folder in folders}
    rules = subprocess.check_output(["nft", "list", "ruleset"], text=True)
    return values | there | {"rules": rules}


def _traces(layout: Layout) -> dict[str, list[str]]:
    """What shows on the machine that one node is there."""
    links = subprocess.check_output(["ip", "-o", "address"], text=True).splitlines()
    commands = [path.read_bytes().decode() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return {
        "links": [line for line in links if layout.name in line.split()],
        "groups": [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{layout.name}")],
        "mounts": [str(layout.directory)] if str(layout.directory) in Path("/proc/mounts").read_text() else [],
        "processes": [command for command in commands if str(layout.directory) in command],
        "files": [str(path) for path in layout.directory.glob("*")],
    }


def _component(own: node.Node, name: str) -> int | None:
    try:
        return own.component(name)
    except LookupError:
        return None


def _tried(kubernetes: Kubernetes, *arguments: str) -> str | None:
    try:
        return kubernetes.kubectl(*arguments)
    except KubectlError:
        return None
