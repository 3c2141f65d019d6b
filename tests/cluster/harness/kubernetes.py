"""A Kubernetes that tests talk to, of any kind: an API server alone, our node, or a cluster that the user names.

A test that needs only this runs against all of them.
"""

import json
import os
import re
import secrets
import shlex
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import yaml
from tests.cluster.harness import building
from tests.cluster.harness.audit import Call, calls
from tests.cluster.harness.certificates import write_kubeconfig
from tests.patience import PATIENCE

T = TypeVar("T")
Manifest = Mapping[str, Any]


class KubectlError(Exception):
    """kubectl or helm ended with an error; the message is the command and what it said."""


class Kubernetes:
    """The cluster of one kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        """Talk as the user of this kubeconfig; nothing is sent yet. `logs` is where its components write, if known."""
        self.kubeconfig = kubeconfig
        self.logs: Path | None = None
        self.audit_log: Path | None = None

    @cached_property
    def url(self) -> str:
        """Where the API server listens, like https://127.0.0.1:6443."""
        return str(self._context["cluster"]["server"])

    @property
    def address(self) -> tuple[str, int]:
        """The API server's host and port, for a test that puts a proxy in front of it."""
        parts = urlsplit(self.url)
        return str(parts.hostname), parts.port or 443

    @cached_property
    def _context(self) -> dict[str, Any]:
        document = yaml.safe_load(self.kubeconfig.read_text())
        wanted = next(item["context"] for item in document["contexts"] if item["name"] == document["current-context"])
        cluster = next(item["cluster"] for item in document["clusters"] if item["name"] == wanted["cluster"])
        return {"cluster": cluster}

    def environment(self) -> dict[str, str]:
        """The variables with which a program talks to this cluster, and finds helm and kubectl."""
        tools = building.kubectl().parent
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": f"{tools}:{os.environ['PATH']}"}

    def kubectl(self, *arguments: str | Path, stdin: str | None = None, timeout: float = PATIENCE * 2) -> str:
        """Run the real kubectl and return what it prints.

        Raises:
            KubectlError: It failed.
            subprocess.TimeoutExpired: It took longer than `timeout` seconds.
        """
        return self._run(building.kubectl(), arguments, stdin, timeout)

    def helm(self, *arguments: str | Path, timeout: float = PATIENCE * 3) -> str:
        """Run the real helm and return what it prints; raises like `kubectl`."""
        return self._run(building.helm(), arguments, None, timeout)

    def apply(self, *manifests: Manifest | str, namespace: str | None = None) -> str:
        """Apply manifests, as documents or as YAML text."""
        text = "\n---\n".join(each if isinstance(each, str) else json.dumps(each) for each in manifests)
        return self.kubectl("apply", *_namespaced(namespace), "-f", "-", stdin=text)

    def get(self, *arguments: str, namespace: str | None = None) -> Any:
        """The output of `kubectl get ... -o json`, as a document."""
        return json.loads(self.kubectl("get", *_namespaced(namespace), *arguments, "-o", "json"))

    def find(self, *arguments: str, namespace: str | None = None) -> Any | None:
        """One object as a document, or None where there is none."""
        said = self.kubectl("get", *_namespaced(namespace), *arguments, "-o", "json", "--ignore-not-found")
        return json.loads(said) if said.strip() else None

    def make_namespace(self, labels: Mapping[str, str] | None = None) -> str:
        """Make a fresh namespace, in which pods are let in when this returns, and return its name."""
        name = f"test-{secrets.token_hex(4)}"
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels or {})}})
        eventually(lambda: self.find("serviceaccount", "default", namespace=name))  # no pod is let in before
        return name

    def define(self, definition: str) -> None:
        """Apply CustomResourceDefinitions, as YAML text, and wait until the server knows their kinds."""
        self.kubectl("apply", "--server-side", "-f", "-", stdin=definition)
        for document in yaml.safe_load_all(definition):
            what, kind = f"crd/{document['metadata']['name']}", document["spec"]["names"]["kind"]
            # At first its conditions are null, which is an error for kubectl. With the names, it has conditions.
            self.wait(what, f"jsonpath={{.status.acceptedNames.kind}}={kind}")
            self.wait(what, "condition=Established")

    def wait(self, what: str, condition: str, namespace: str | None = None, timeout: float = PATIENCE) -> None:
        """Wait as `kubectl wait --for=CONDITION WHAT` does, at most `timeout` seconds."""
        self.kubectl(
            *("wait", *_namespaced(namespace), what, f"--for={condition}", f"--timeout={timeout:.0f}s"),
            timeout=timeout + 10,
        )

    def run_as_service_account(self, namespace: str, name: str, path: Path, seconds: int = 3600) -> "Kubernetes":
        """The same cluster seen by a service account, which must be there; its kubeconfig is written to `path`."""
        token = self.kubectl("create", "token", "-n", namespace, name, f"--duration={seconds}s").strip()
        return Kubernetes(write_kubeconfig(path, self._context["cluster"], {"token": token}, namespace))

    def calls(self) -> list[Call]:
        """The calls to the API server since it started, without those of Kubernetes' own components.

        A watch is among them once it has ended.

        Raises:
            NotImplementedError: The cluster is not ours.
        """
        if self.audit_log is None:
            raise NotImplementedError("only an API server of ours has an audit log that can be read")
        return list(calls(self.audit_log))

    @contextmanager
    def port_forward(self, target: str, port: int, namespace: str | None = None) -> Iterator[int]:
        """Forward a port of 127.0.0.1 to a port of a pod or service, for the time of a `with` block.

        Args:
            target: Like pod/flights-0 or service/epochal-catalog.
            port: The port there.
            namespace: Where the target is.

        Yields:
            The port here.
        """
        command = [str(building.kubectl()), "port-forward", *_namespaced(namespace), target, f":{port}"]
        with subprocess.Popen(
            command, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                assert process.stdout is not None
                said = process.stdout.readline()
                if not (found := re.match(r"Forwarding from 127\.0\.0\.1:(\d+)", said)):
                    raise KubectlError(f"kubectl port-forward {target} :{port}\n{said}{process.stdout.read()}")
                yield int(found[1])
            finally:
                process.terminate()

    def import_image(self, archive: Path) -> list[str]:
        """Put the images of a docker-archive where pods find them; returns their names."""
        raise NotImplementedError(f"nothing runs pods here, {archive} cannot be imported")

    def _run(self, program: Path, arguments: tuple[str | Path, ...], stdin: str | None, timeout: float) -> str:
        command = [str(program), *map(str, arguments)]
        done = subprocess.run(
            command, input=stdin, env=self.environment(), capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode:
            raise KubectlError(f"{' '.join([program.name, *command[1:]])}\n{done.stdout}{done.stderr}".rstrip())
        return done.stdout


class GivenCluster(Kubernetes):
    """A cluster that the user names by KUBECONFIG."""

    def import_image(self, archive: Path) -> list[str]:
        """Run the command of CLUSTER_IMPORT on the archive, e.g. "kind load image-archive"; without one, do nothing.

        Then the images must be there already, under their names.
        """
        if command := os.environ.get("CLUSTER_IMPORT"):
            subprocess.run([*shlex.split(command), str(archive)], check=True, timeout=PATIENCE * 3)
        return image_names(archive)


def image_names(archive: Path) -> list[str]:
    """The names of the images in a docker-archive."""
    with tarfile.open(archive) as tar:
        content = tar.extractfile("manifest.json")
        assert content is not None, f"{archive} is no docker-archive"
        return [name for image in json.load(content) for name in image["RepoTags"]]


def eventually(look: Callable[[], T | None], timeout: float = PATIENCE, every: float = 0.2) -> T:
    """The first value of `look()` that is not None, False or empty; it is called every `every` seconds.

    Raises:
        TimeoutError: There was none for `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{getattr(look, '__name__', 'that')} gave nothing for {timeout:.0f} s, last {found!r}")
        time.sleep(every)
    return found


def _namespaced(namespace: str | None) -> list[str]:
    return [] if namespace is None else ["--namespace", namespace]
