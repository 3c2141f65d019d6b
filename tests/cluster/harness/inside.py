"""The first process of a node: it sets up the node's own view of the machine, then keeps the components running.

It runs in namespaces of its own (mounts, network, processes, host name). So the node can be thrown away: its links,
rules, routes, mounts and processes exist only there, and are gone when this process ends, however that happens. The
machine's kernel settings stay unchanged too: files that only the node sees show the kubelet the values that it wants.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.harness import settings
from tests.cluster.harness.apiserver import ready
from tests.cluster.harness.settings import NODE, Layout

_RESTART = 1.0
"""A component that has ended is started again after this many seconds at most."""
_WANTED = {"vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1}
_WANTED |= {"kernel/keys/root_maxkeys": 1000000, "kernel/keys/root_maxbytes": 25000000}
"""What the kubelet would set in the machine's kernel, unless it finds these values there already."""


def main(layout: Layout, cache: Path, kube: Path) -> None:
    """Set up the node, start the components in order, and run until killed."""
    _await_link()
    _furnish(layout, cache)
    _connect(layout)
    supervisor = Supervisor(cache / "logs" / layout.directory.name)
    supervisor.start(settings.api(layout, kube))
    while not ready(layout.url, layout.directory / "keys" / "ca.crt"):
        supervisor.tend(_RESTART / 10)
    supervisor.start(settings.components(layout, kube, sys.executable))
    while True:
        supervisor.tend(_RESTART)


def _await_link() -> None:
    """Wait for the network link: before it is moved here, this process has been put into its control group."""
    while not Path("/proc/sys/net/ipv4/conf/eth0").exists():
        time.sleep(0.02)


def _furnish(layout: Layout, cache: Path) -> None:
    _run("mount", "--make-rshared", "/")  # among the node's own mounts; none reaches the machine
    _run("mount", "-t", "tmpfs", "tmpfs", "/run")
    kept, hidden = Path("/run/cache"), Path("/run/var")
    for directory in (kept, hidden / "upper", hidden / "work"):
        directory.mkdir(parents=True)
    _run("mount", "--bind", cache, kept)
    layers = f"lowerdir=/var,upperdir={hidden}/upper,workdir={hidden}/work"
    _run("mount", "-t", "overlay", "-o", layers, "overlay", "/var")
    if cache.is_relative_to("/var"):
        _run("mount", "--bind", kept, cache)
    for inner, outer in {
        "/var/lib/kubelet": layout.directory / "kubelet",
        "/var/lib/containerd": layout.directory / "containerd",
        "/var/lib/cni": layout.directory / "leases",
        "/var/log": cache / "logs" / layout.directory.name / "var",
    }.items():
        outer.mkdir(parents=True, exist_ok=True)
        Path(inner).mkdir(parents=True, exist_ok=True)
        _run("mount", "--bind", outer, inner)
    # The kubelet reads these settings and writes only those that differ, so files mounted over them are enough.
    shown = Path("/run/kernel")
    shown.mkdir()
    for number, (setting, value) in enumerate(_WANTED.items()):
        (shown / str(number)).write_text(f"{value}\n")
        _run("mount", "--bind", shown / str(number), f"/proc/sys/{setting}")
    Path("/run/resolv.conf").touch()
    _run("hostname", NODE)


def _connect(layout: Layout) -> None:
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "address", "add", f"{layout.address}/30", "dev", "eth0")
    _run("ip", "link", "set", "eth0", "up")
    _run("ip", "route", "add", "default", "via", layout.host_address)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


class Supervisor:
    """Keeps commands running, and reaps all processes that are left to the first process."""

    def __init__(self, logs: Path) -> None:
        """Run nothing yet; each command writes to a file of its name in `logs`."""
        self._logs = logs
        self._commands: dict[str, list[str]] = {}
        self._running: dict[int, str] = {}

    def start(self, commands: Mapping[str, list[str]]) -> None:
        """Start these, and again whenever one ends."""
        for name, command in commands.items():
            self._commands[name] = command
            self._spawn(name)

    def tend(self, pause: float) -> None:
        """Let `pause` seconds go by, then reap what has ended and start again what should run."""
        time.sleep(pause)
        while pid := _reap():
            if name := self._running.pop(pid, None):
                with self._log(name).open("a") as log:
                    log.write(f"=== {time.strftime('%H:%M:%S')} ended, and starts again\n")
                self._spawn(name)

    def _spawn(self, name: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        outputs = [(os.POSIX_SPAWN_OPEN, fd, str(self._log(name)), flags, 0o644) for fd in (1, 2)]
        command = self._commands[name]
        # Not subprocess: it reaps children by itself, and then `tend` would not see that a component has ended.
        self._running[os.posix_spawnp(command[0], command, os.environ, file_actions=outputs)] = name

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


def _reap() -> int:
    try:
        return os.waitpid(-1, os.WNOHANG)[0]
    except ChildProcessError:
        return 0


def _run(*command: str | Path) -> None:
    subprocess.run([*map(str, command)], check=True)


if __name__ == "__main__":
    main(Layout(Path(sys.argv[1]), int(sys.argv[2])), Path(sys.argv[3]), Path(sys.argv[4]))
