"""What a kubeconfig says, and what is told when it says nothing that can be used; no cluster is asked."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from epochal.errors import ClusterError, ConfigError
from epochal.kube import Choice, Cluster, context_namespace

SERVER = {"server": "http://127.0.0.1:1"}


def config(path: Path, *, user: dict[str, Any] | None = None, current: str = "here", **contexts: Any) -> Path:
    """A kubeconfig with a context for each argument, whose value is its namespace."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": SERVER}],
        "users": [{"name": "user", "user": user or {"token": "secret"}}],
        "contexts": [
            {"name": name, "context": {"cluster": "cluster", "user": "user", "namespace": namespace}}
            for name, namespace in contexts.items()
        ],
        "current-context": current,
    }
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(autouse=True)
def _no_other_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


async def test_the_chosen_context_says_where_and_who(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config(tmp_path / "config", here="demo", there=None)
    async with Cluster(Choice(kubeconfig=str(path))) as cluster:
        access = cluster.access
        assert (access.server, access.name, access.namespace) == ("http://127.0.0.1:1", "here", "demo")
        assert await access.headers() == {"Authorization": "Bearer secret"}
        assert not access.inside
    monkeypatch.setenv("KUBECONFIG", str(path))
    async with Cluster(Choice("there")) as cluster:
        assert (cluster.access.name, cluster.access.namespace) == ("there", None)
    assert context_namespace(Choice()) == "demo"
    assert context_namespace(Choice("there")) is None
    assert context_namespace(Choice("nowhere")) is None


async def test_several_files_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [config(tmp_path / "a", here="a"), tmp_path / "missing", config(tmp_path / "b", there="b", current="there")]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
    assert context_namespace(Choice("here")) == "a"
    assert context_namespace(Choice("there")) == "b"
    with pytest.raises(ConfigError, match=r"no context 'x' in .* \(there are: here, there\)"):
        async with Cluster(Choice("x")):
            pass


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (None, "no kubeconfig: there is no .*config; name one with KUBECONFIG"),
        ("{", "the kubeconfig .*config cannot be used: while parsing"),
        ("", "the kubeconfig .*config cannot be used"),
        ("[]", "the kubeconfig .*config cannot be used"),
        ("{contexts: [], clusters: []}", "the kubeconfig .*config cannot be used.*current-context"),
        ("{contexts: [{name: a, context: {cluster: b}}], clusters: [], current-context: a}", "cannot be used.*name b"),
    ],
)
async def test_what_is_no_kubeconfig_is_reported(tmp_path: Path, text: str | None, match: str) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    assert context_namespace(Choice(kubeconfig=str(path))) is None
    with pytest.raises(ConfigError, match=match):
        async with Cluster(Choice(kubeconfig=str(path))):
            pass


async def test_certificates_that_are_not_there_are_reported(tmp_path: Path) -> None:
    document = yaml.safe_load(config(tmp_path / "config", here=None).read_text())
    document["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:1", "certificate-authority": "nothing.crt"}
    (tmp_path / "config").write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match=r"nothing\.crt"):
        async with Cluster(Choice(kubeconfig=str(tmp_path / "config"))):
            pass


@pytest.mark.parametrize(
    ("command", "match"),
    [
        (["false"], "cannot log in: exec: process returned 1"),
        (["sh", "-c", "echo no ticket >&2; exit 3"], "no ticket"),
        (["echo", "nonsense"], "failed to decode"),
        (["/no/such/plugin"], "/no/such/plugin"),
    ],
)
async def test_a_plug_in_that_does_not_log_in_is_reported(tmp_path: Path, command: list[str], match: str) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": command[0], "args": command[1:]}
    path = config(tmp_path / "config", user={"exec": plugin}, here=None)
    with pytest.raises(ClusterError, match=match):
        async with Cluster(Choice(kubeconfig=str(path))):
            pass


async def test_addresses_of_elsewhere_are_left_alone(tmp_path: Path) -> None:
    async with Cluster(Choice(kubeconfig=str(config(tmp_path / "config", here=None)))) as cluster:
        assert await cluster.reach("tcp://flights.example.com:30001") == "tcp://flights.example.com:30001"
        first, again, other = await asyncio.gather(
            *(cluster.reach(f"tcp://flights-{n}.flights.demo.svc:8701") for n in (0, 0, 1))
        )
        assert first == again != other
        assert first.startswith("tcp://127.0.0.1:")


def test_the_library_of_kubernetes_is_loaded_for_a_cluster_only() -> None:
    program = (
        "import sys, epochal.cli.main, epochal.kube\n"
        "import epochal.cli.commands.apply, epochal.cli.commands.doctor, epochal.cli.commands.get\n"
        "sys.exit('kubernetes' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
