"""The keys and certificates of a throw-away cluster, made by openssl in a fraction of a second.

In a cluster only the names in these certificates decide who a caller is.
"""

import base64
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

_DAYS = "30"
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Authority:
    """A certificate authority in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        """Make the authority's key and the key that signs the tokens of service accounts."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.certificate = directory / "ca.crt"
        self._key = directory / "ca.key"
        self.tokens = directory / "tokens.key"
        self.tokens_public = directory / "tokens.pub"
        _openssl(
            "req",
            "-x509",
            *_KEY,
            "-subj",
            "/CN=throw-away",
            "-days",
            _DAYS,
            "-keyout",
            self._key,
            "-out",
            self.certificate,
        )
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.tokens)
        _openssl("ec", "-in", self.tokens, "-pubout", "-out", self.tokens_public)

    def issue(self, name: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> tuple[Path, Path]:
        """A certificate and its key for a user, or for a server if it has hosts.

        Args:
            name: The common name: the user whom Kubernetes sees.
            groups: The user's groups.
            hosts: Names and addresses that a server with it is reached at.
        """
        file = name.replace(":", "-").replace("/", "-")
        certificate, key = self.directory / f"{file}.crt", self.directory / f"{file}.key"
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={name}"
        usage = ["-addext", "extendedKeyUsage=clientAuth,serverAuth"]
        if hosts:
            kinds = (("IP" if host.replace(".", "").isdigit() else "DNS", host) for host in hosts)
            usage += ["-addext", "subjectAltName=" + ",".join(f"{kind}:{host}" for kind, host in kinds)]
        _openssl(
            *("req", "-x509", *_KEY, "-subj", subject, *usage, "-addext", "basicConstraints=critical,CA:FALSE"),
            *("-CA", self.certificate, "-CAkey", self._key, "-days", _DAYS, "-keyout", key, "-out", certificate),
        )
        return certificate, key

    def kubeconfig(self, path: Path, server: str, name: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig, complete in itself, with which `name` talks to `server`."""
        certificate, key = self.issue(name, groups)
        return write_kubeconfig(
            path,
            {"server": server, "certificate-authority-data": _data(self.certificate)},
            {"client-certificate-data": _data(certificate), "client-key-data": _data(key)},
        )


def write_kubeconfig(path: Path, cluster: dict[str, str], user: dict[str, str], namespace: str = "default") -> Path:
    """Write a kubeconfig with one context, readable by its owner only."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "throw-away", "cluster": cluster}],
        "users": [{"name": "user", "user": user}],
        "contexts": [
            {"name": "throw-away", "context": {"cluster": "throw-away", "user": "user", "namespace": namespace}}
        ],
        "current-context": "throw-away",
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document))
    return path


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
