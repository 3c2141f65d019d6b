"""An image with a shell and small servers and clients, for tests of the cluster itself; made as Epochal's images are.

Separate from those because it takes seconds: tests of the node need not wait until Python is installed in an image.
"""

import hashlib
import subprocess
from pathlib import Path

from tests.cluster.harness.places import CACHE

BUSYBOX = "cluster.epochal.dev/busybox:dev"
_SUITE = "bookworm"


def busybox_image() -> Path:
    """A docker-archive of BUSYBOX, made at the first call: needs root, mmdebstrap, buildah and Debian's packages."""
    directory = CACHE / "images"
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    archive, base = directory / f"busybox-{recipe}.tar", directory / "busybox-base.tar"
    if archive.exists():
        return archive
    directory.mkdir(parents=True, exist_ok=True)
    _run("mmdebstrap", "--quiet", "--variant=extract", "--include=busybox", _SUITE, base)
    (directory / "busybox.new").unlink(missing_ok=True)
    container = _buildah("from", "scratch")
    try:
        _buildah("add", "--quiet", container, base)
        _buildah("run", "--isolation=chroot", container, "/bin/busybox", "--install", "-s", "/bin")
        _buildah("config", "--user=65534:65534", "--entrypoint=[]", "--cmd=/bin/sh", container)
        _buildah("commit", "--quiet", container, BUSYBOX)
        _buildah("push", "--quiet", BUSYBOX, f"docker-archive:{directory}/busybox.new:{BUSYBOX}")
    finally:
        _buildah("rm", container)
    return (directory / "busybox.new").rename(archive)


def _buildah(*arguments: str | Path) -> str:
    storage = CACHE / "images"
    places = (f"--root={storage}/storage", f"--runroot={storage}/run", "--storage-driver=vfs")
    return _run("buildah", *places, *arguments).strip()


def _run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout
