"""Images of one static program each, as archives: a pause container and a DNS server need nothing else.

They are only for the node, and need no builder; Epochal's images are built from Dockerfiles.
"""

import hashlib
import io
import json
import tarfile
from pathlib import Path

PAUSE = "cluster.epochal.dev/pause:dev"
COREDNS = "cluster.epochal.dev/coredns:dev"


def archive_of(program: Path, name: str, path: Path) -> Path:
    """Write a docker-archive of an image that holds this one program and runs it as its entry point."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(program, program.name, filter=_owned_by_root)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"]},
        "history": [{"created_by": "tests/cluster"}],
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        _add(tar, "layer.tar", layer.getvalue())
        _add(tar, "config.json", json.dumps(config).encode())
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return path


def _owned_by_root(item: tarfile.TarInfo) -> tarfile.TarInfo:
    item.uid = item.gid = 0
    item.uname = item.gname = "root"
    item.mode = 0o755
    return item


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    item = tarfile.TarInfo(name)
    item.size = len(content)
    tar.addfile(item, io.BytesIO(content))
