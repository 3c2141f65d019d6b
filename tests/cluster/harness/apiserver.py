"""A Kubernetes API without nodes: etcd and the API server, ready in seconds, without root.

The API answers an operator as on any cluster, but pods are objects that nothing runs. Without the controller manager
there is no garbage collection either: children outlive their owners, and a namespace that is deleted stays
`Terminating`. With it both work; pods stay pending, because there is no scheduler and no node.
"""

import json
import shutil
import ssl
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Self

from tests.cluster.harness import audit, building
from tests.cluster.harness.certificates import Authority
from tests.cluster.harness.kubernetes import Kubernetes
from tests.cluster.harness.places import CACHE, LOGS
from tests.cluster.harness.programs import NotReadyError, Program, end, running_with, started_at
from tests.patience import PATIENCE
from tests.ports import free_port

SERVICES = "10.96.0.0/16"
_PROGRAMS = building.programs("api")
"""The programs that an API server needs on the machine, and the Debian package of each."""
AUDIT = "audit.jsonl"
_STATE = CACHE / "api.json"


class ApiServer(Kubernetes):
    """One etcd, one API server and perhaps a controller manager, with a directory of their own."""

    def __init__(self, directory: Path, *, controllers: bool = False, bound: bool = True) -> None:
        """Lay out the directory and choose free ports; `start` starts.

        Args:
            directory: Keys, data and the kubeconfig; removed by `stop`.
            controllers: Whether the controller manager runs too: garbage collection, end of namespaces, budgets.
            bound: Whether all die with the thread that starts them.
        """
        building.require(_PROGRAMS)
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory / "kubeconfig")
        self.directory = directory
        self.audit_log = directory / AUDIT
        self.logs = logs = LOGS / directory.name
        self.authority = Authority(directory / "keys")
        self._port, self._etcd_port, peer = free_port(), free_port(), free_port()
        self.authority.kubeconfig(self.kubeconfig, f"https://127.0.0.1:{self._port}", "admin", ("system:masters",))
        commands: dict[str, Sequence[str | Path]] = {"etcd": self._etcd(peer), "apiserver": self._apiserver()}
        if controllers:
            commands["controller-manager"] = self._controller_manager()
        self.programs = [
            Program(name, command, logs / f"{name}.log", bound=bound) for name, command in commands.items()
        ]

    def start(self) -> Self:
        """Start everything and return when the API is ready; on failure nothing is left running.

        Raises:
            NotReadyError: Something ended by itself or was not ready in time.
        """
        try:
            for program in self.programs:
                program.start()
                if program.name == "apiserver":
                    program.wait_until(self._ready, PATIENCE * 2)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop everything and remove the directory; the logs stay."""
        for program in reversed(self.programs):
            program.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _ready(self) -> bool:
        etcd = self.programs[0]
        if not etcd.running:
            raise NotReadyError(f"etcd ended by itself\n{etcd.tail()}")
        return ready(self.url, self.authority.certificate)

    def _etcd(self, peer: int) -> list[str]:
        return etcd(self.directory / "etcd", self._etcd_port, peer)

    def _apiserver(self) -> list[str | Path]:
        hosts = ("127.0.0.1", "localhost", "kubernetes.default.svc")
        certificate, key = self.authority.issue("kube-apiserver", hosts=hosts)
        return [
            *(building.kube(), "apiserver", "--bind-address=127.0.0.1", f"--secure-port={self._port}"),
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--endpoint-reconciler-type=none",  # Endpoints may hold no loopback address
            "--disable-admission-plugins=ServiceAccount",  # else a pod needs an account that nothing creates
            *api_flags(self.directory, certificate, key),
        ]

    def _controller_manager(self) -> list[str | Path]:
        user, groups = "system:kube-controller-manager", ("system:masters",)
        kubeconfig = self.authority.kubeconfig(self.directory / "controllers.kubeconfig", self.url, user, groups)
        return [
            *(building.kube(), "controller-manager", "--bind-address=127.0.0.1", f"--secure-port={free_port()}"),
            f"--kubeconfig={kubeconfig}",
            f"--service-account-private-key-file={self.authority.tokens}",
            f"--root-ca-file={self.authority.certificate}",
            "--leader-elect=false",
        ]


def etcd(data: Path, port: int, peer: int) -> list[str]:
    """The command line of an etcd on loopback; `peer` is the port for other members (there are none)."""
    url, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    return [
        *("etcd", "--data-dir", str(data), "--logger=zap", "--log-level=warn"),
        *("--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peers),
        *("--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"),
    ]


def api_flags(directory: Path, certificate: Path, key: Path) -> list[str]:
    """The flags of every API server of ours: whom it trusts, that roles decide the rights, and what it audits.

    Its keys are in `directory`, where it writes its audit log.
    """
    keys, policy = directory / "keys", directory / "audit-policy.json"
    policy.write_text(json.dumps(audit.POLICY))
    return [
        *(f"--audit-policy-file={policy}", f"--audit-log-path={directory}/{AUDIT}", "--audit-log-maxsize=1000"),
        *(f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}", f"--client-ca-file={keys}/ca.crt"),
        "--service-account-issuer=https://kubernetes.default.svc",
        *(f"--service-account-key-file={keys}/tokens.pub", f"--service-account-signing-key-file={keys}/tokens.key"),
        f"--service-cluster-ip-range={SERVICES}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
    ]


def ready(url: str, authority: Path) -> bool:
    """Whether the API server at `url` says that it is ready."""
    trust = ssl.create_default_context(cafile=str(authority))
    try:
        # load: it is asked again
        with urllib.request.urlopen(f"{url}/readyz", context=trust, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def api_server(*, controllers: bool = False) -> Iterator[ApiServer]:
    """An API server for the time of a `with` block; any number may run at once.

    Its logs go with it, unless it could not start.
    """
    (CACHE / "api").mkdir(parents=True, exist_ok=True)
    server = ApiServer(Path(tempfile.mkdtemp(prefix="api-", dir=CACHE / "api")), controllers=controllers).start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(LOGS / server.directory.name, ignore_errors=True)


def up(*, controllers: bool = False) -> Kubernetes:
    """An API server that stays when this process ends; the running one, if there is one already."""
    if running := _running():
        return running
    down()
    server = ApiServer(CACHE / "api" / "standing", controllers=controllers, bound=False).start()
    processes = {program.name: (program.pid, started_at(program.pid)) for program in server.programs}
    _STATE.write_text(json.dumps(processes))
    return server


def down() -> None:
    """End what `up` started, if it did, and remove its directory."""
    standing = CACHE / "api" / "standing"
    # Not those of the state: a start that was cut off has written none.
    ours = running_with(
        lambda words: Path(words[0]).name in ("etcd", "kube") and any(f"{standing}/" in word for word in words)
    )
    for pid, start in ours.items():
        end(pid, start, SIGKILL)  # the data goes too
    _STATE.unlink(missing_ok=True)
    shutil.rmtree(standing, ignore_errors=True)


def _running() -> Kubernetes | None:
    if not _STATE.exists():
        return None
    processes = json.loads(_STATE.read_text()).values()
    alive = all(started_at(pid) == start for pid, start in processes)
    return Kubernetes(CACHE / "api" / "standing" / "kubeconfig") if alive else None
