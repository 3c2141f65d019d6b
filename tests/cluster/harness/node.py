"""A whole Kubernetes of one node on this machine, with real containers, seen from outside: made, used, removed.

On the machine it makes one tree of processes in namespaces of their own, one network link to them, one control group,
and one directory. `inside.py` is what runs at the other end of the link.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from tests.cluster.harness import building, images, removal, settings
from tests.cluster.harness.apiserver import AUDIT
from tests.cluster.harness.building import UnfitError
from tests.cluster.harness.certificates import Authority
from tests.cluster.harness.kubernetes import KubectlError, Kubernetes, eventually, image_names
from tests.cluster.harness.places import CACHE, LOGS, ROOT
from tests.cluster.harness.programs import SELDOM_COLLECTED, NotReadyError, running_with, started_at
from tests.cluster.harness.removal import CGROUPS, RemainsError
from tests.cluster.harness.settings import NODE, SOCKET, Layout
from tests.patience import PATIENCE

START_TIMEOUT = PATIENCE * 3
"""Seconds for the node to be ready. It takes about 30 on two free cores."""
_DIRECTORY = CACHE / "node"
_DOWN_TIMEOUT = 50.0
"""Seconds for `down` to end and remove everything. It takes about one, and the files some more."""
_READY = "ready"
_INSIDE = "tests.cluster.harness.inside"
_NUMBERS = range(64)
_PROGRAMS = building.programs("api", "node")
"""The programs that a node needs on the machine, and the Debian package of each."""


@dataclass(frozen=True, slots=True)
class _State:
    number: int
    pid: int
    start: int

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        path = _state_path(directory)
        return cls(**json.loads(path.read_text())) if path.exists() else None

    def write(self, directory: Path) -> None:
        written = _state_path(directory).with_suffix(".new")
        written.write_text(json.dumps(asdict(self)))
        written.replace(_state_path(directory))  # at once: a start may be cut off here


class Node(Kubernetes):
    """The cluster that `up` made."""

    def __init__(self, layout: Layout, pid: int) -> None:
        """Talk to the node whose first process is `pid`."""
        super().__init__(layout.directory / "kubeconfig")
        self.logs = LOGS / layout.directory.name
        self.audit_log = layout.directory / AUDIT
        self.layout = layout
        self.pid = pid

    @property
    def volumes(self) -> Path:
        """Where the data of persistent volumes is, one directory each."""
        return self.layout.directory / "volumes"

    def import_image(self, archive: Path) -> list[str]:
        """Put the images of a docker-archive where pods find them, unless they are there; returns their names."""
        names, status = image_names(archive), archive.stat()
        mark = [str(archive.resolve()), status.st_size, status.st_mtime_ns]
        record = self.layout.directory / "imported.json"
        with building.locked(record.with_suffix(".lock")):
            imported = json.loads(record.read_text()) if record.exists() else {}
            if any(imported.get(name) != mark for name in names):
                self.ctr("images", "import", str(archive))
                record.write_text(json.dumps(imported | dict.fromkeys(names, mark)))
        return names

    def ctr(self, *arguments: str, timeout: float = PATIENCE * 3) -> str:
        """Run containerd's own command on the node's containers and images, and return what it prints."""
        command = ["nsenter", "--target", str(self.pid), "--mount", "--"]
        command += ["ctr", "--address", SOCKET, "--namespace", "k8s.io", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout).stdout

    def component(self, name: str) -> int:
        """The process id, on this machine, of a component: etcd, apiserver, kubelet, containerd, ...

        One that is killed starts again within a second or so.
        """
        for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if name in (words[1], Path(words[0]).name) or f"tests.cluster.harness.{name}" in words:
                    return int(pid)
        raise LookupError(f"{name} does not run")


def up(directory: Path = _DIRECTORY) -> Node:
    """The node that runs already, or a new one; returns when pods can start and names resolve.

    Args:
        directory: Where all of it is kept. A node with another directory is another node; they can run side by side.

    Raises:
        UnfitError: Something is missing on the machine.
        BuildError: A component could not be built.
        NotReadyError: The node was not ready in time; its remains can be examined until `down`.
    """
    require_fit()
    with building.locked(_state_path(directory).with_suffix(".lock")):
        return running(directory) or _start(directory)


def running(directory: Path = _DIRECTORY) -> Node | None:
    """The node that runs and was ready once, if one does."""
    state = _State.read(directory)
    if state is None or not (directory / _READY).exists() or started_at(state.pid) != state.start:
        return None
    return Node(Layout(directory, state.number), state.pid)


def down(directory: Path = _DIRECTORY, timeout: float = _DOWN_TIMEOUT) -> None:
    """Remove the node in any state, and everything that `up` made except the built programs and the logs.

    Raises:
        RemainsError: Something has not ended or could not be removed within `timeout` seconds; the message names it.
            All else is removed, and this can be called again.
    """
    state = _State.read(directory)
    processes = running_with(lambda words: _INSIDE in words and str(directory) in words)
    names = set(removal.links_of(directory))
    if state is not None:
        names.add(Layout(directory, state.number).name)
        if state.pid and started_at(state.pid) == state.start:
            processes[state.pid] = state.start
    remains = removal.remove(directory, names, processes, timeout)
    shutil.rmtree(directory, ignore_errors=True)
    try:
        shutil.rmtree(directory)  # what is left, for the reason
    except FileNotFoundError:
        pass
    except OSError as error:
        remains.append(str(error))
    if remains:
        raise RemainsError("could not be removed:\n" + "\n".join(f"  {each}" for each in remains))
    _state_path(directory).unlink(missing_ok=True)


def _start(directory: Path) -> Node:
    down(directory)
    kube = building.kube()
    archives = [_archive(building.pause(), images.PAUSE), _archive(building.coredns(), images.COREDNS)]
    layout = Layout(directory, _reserve_link(directory))
    _configure(layout)
    node = _spawn(layout, kube)
    _connect(node)
    deadline = time.monotonic() + START_TIMEOUT
    for what, step in {
        "API server": lambda: node.find("namespace", "default"),
        "containerd": lambda: [node.import_image(archive) for archive in archives],
        "objects": lambda: node.apply(*settings.manifests()),
        "kubelet": lambda: node.kubectl("wait", "node", NODE, "--for=condition=Ready", "--timeout=5s"),
        "DNS": lambda: node.kubectl("rollout", "status", "-n", "kube-system", "deployment/coredns", "--timeout=5s"),
    }.items():
        _until(what, step, deadline, node)
    (directory / _READY).touch()
    return node


def _state_path(directory: Path) -> Path:
    return directory.parent / f"{directory.name}.json"


def require_fit(more: Mapping[str, str] | None = None) -> None:
    """Check that a node can run here, and that the programs of `more` are there too; raises `UnfitError`."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise UnfitError("a node needs Linux on x86-64")
    if os.geteuid():
        raise UnfitError("a node needs root, for its containers: run this by sudo")
    building.require({**_PROGRAMS, **(more or {})})


def _archive(program: Path, name: str) -> Path:
    return images.archive_of(program, name, CACHE / "images" / f"{program.name}.tar")


def _until(what: str, step: Callable[[], object], deadline: float, node: Node) -> None:
    """Repeat a step until it succeeds and finds something."""
    problem: object = "nothing there"
    while True:
        try:
            if step():
                return
        except (KubectlError, subprocess.SubprocessError) as error:
            problem = f"{error}\n{getattr(error, 'stderr', '') or ''}"
        if started_at(node.pid) is None:
            raise NotReadyError(f"the node ended by itself, see {node.logs}")
        if time.monotonic() > deadline:
            raise NotReadyError(f"{what} not ready within {START_TIMEOUT:.0f} s, see {node.logs}: {problem}")
        time.sleep(0.2)


def _reserve_link(directory: Path) -> int:
    """Make a link whose number no other node on this machine has; its other end is moved into the node later."""
    for number in _NUMBERS:
        layout = Layout(directory, number)
        ends = ["ip", "link", "add", layout.name, "type", "veth", "peer", "name", f"{layout.name}n"]
        if subprocess.run(ends, capture_output=True, check=False).returncode == 0:
            removal.mark(layout.name, directory)
            _State(number, 0, 0).write(directory)
            subprocess.run(["ip", "address", "add", f"{layout.host_address}/30", "dev", layout.name], check=True)
            subprocess.run(["ip", "link", "set", layout.name, "up"], check=True)
            return number
    raise UnfitError(f"no link to a node could be made: {' '.join(ends)}")


def _configure(layout: Layout) -> None:
    """Write keys and configurations."""
    directory = layout.directory
    (directory / "cni").mkdir(parents=True)
    authority = Authority(directory / "keys")
    services = [f"kubernetes{end}" for end in ("", ".default", ".default.svc", ".default.svc.cluster.local")]
    authority.issue("kube-apiserver", hosts=[layout.address, "127.0.0.1", "localhost", "10.96.0.1", *services])
    authority.issue("kubelet-server", hosts=[layout.address, NODE])
    authority.issue("apiserver-kubelet-client", ["system:masters"])
    authority.issue("controllers", ["system:masters"])
    for file, name, groups in (
        ("kubeconfig", "admin", ["system:masters"]),
        (layout.kubeconfig("controller-manager"), "system:kube-controller-manager", []),
        (layout.kubeconfig("scheduler"), "system:kube-scheduler", []),
        (layout.kubeconfig("kubelet"), f"system:node:{NODE}", ["system:nodes"]),
        (layout.kubeconfig("proxy"), "system:kube-proxy", []),
    ):
        authority.kubeconfig(directory / file, layout.url, name, groups)
    kind = subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, text=True, check=True).stdout
    snapshotter = "native" if kind.startswith("overlay") else "overlayfs"  # the kernel allows no overlay on overlays
    (directory / "containerd.toml").write_text(settings.containerd(layout, snapshotter))
    (directory / "cni" / "pods.conflist").write_text(settings.network())
    (directory / "kubelet.json").write_text(json.dumps(settings.kubelet(layout)))
    (directory / "proxy.json").write_text(json.dumps(settings.proxy(layout)))


def _spawn(layout: Layout, kube: Path) -> Node:
    """Start the node's first process and put it into its control group."""
    logs = LOGS / layout.directory.name
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    command = ["unshare", "--mount", "--net", "--pid", "--fork", "--uts", "--ipc", "--mount-proc", "--kill-child"]
    command += [f"--wd={ROOT}"]
    command += [sys.executable, "-m", _INSIDE]
    command += [str(layout.directory), str(layout.number), str(CACHE), str(kube)]
    outputs = [(os.POSIX_SPAWN_OPEN, fd, f"{logs}/inside.log", os.O_WRONLY | os.O_CREAT, 0o644) for fd in (1, 2)]
    inputs = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    environment = SELDOM_COLLECTED | os.environ | {"PATH": building.search_path()}
    # Not subprocess: it expects to wait for the end of what it started, but the node outlives this process.
    outer = os.posix_spawnp("unshare", command, environment, file_actions=inputs + outputs, setsid=True)
    children = Path(f"/proc/{outer}/task/{outer}/children")
    pid = int(eventually(lambda: children.read_text().split(), timeout=PATIENCE)[0])
    _State(layout.number, pid, started_at(pid) or 0).write(layout.directory)
    for group in removal.groups(layout.name):
        _join_group(group, pid)
    return Node(layout, pid)


def _connect(node: Node) -> None:
    """Give the node the link that its first process waits for."""
    link = f"{node.layout.name}n"
    subprocess.run(["ip", "link", "set", link, "netns", str(node.pid), "name", "eth0"], check=True)


def _join_group(group: Path, pid: int) -> None:
    group.mkdir(exist_ok=True)
    for setting in ("cpuset.cpus", "cpuset.mems"):  # empty in a new group of cgroup v1: then no process may join
        if (group / setting).exists() and (group.parent / "cgroup.clone_children").exists():
            (group / setting).write_text((group.parent / setting).read_text())
    if group.parent == CGROUPS:  # cgroup v2: a group with groups below it may hold no processes itself
        group /= "components"
        group.mkdir(exist_ok=True)
    (group / "cgroup.procs").write_text(str(pid))
