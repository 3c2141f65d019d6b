"""Make the files of a release in dist/: `python tools/dist.py`, or `make dist`.

The wheel, the source distribution, the chart, the images as OCI archives, the bill of materials, and SHA256SUMS. The
same commit gives the same bytes, with the locked packages and the same Python: all times in the files are that of the
commit (SOURCE_DATE_EPOCH, if it is set). For images that holds as long as Debian's packages in their base are the same.
"""

import argparse
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import release_sbom
from set_version import ROOT, version

HELM = ROOT / ".cache" / "tools" / "helm"
SUMS = "SHA256SUMS"
IMAGES = "images.txt"


class DistError(Exception):
    """A release cannot be made; the message says why, and what to do."""


def make(target: Path, *, images: bool, dirty: bool = False) -> list[Path]:
    """Make all files in `target`, in place of what is there; returns them. Raises `DistError`."""
    if not dirty and _git("status", "--porcelain"):
        raise DistError("the tree is not as committed, and a release is made from a commit: commit, or give --dirty")
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct"))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "TAG": version()}
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as directory:
        made = Path(directory) / "made"
        made.mkdir()
        _python(made, environment)
        _chart(made, epoch)
        if images:
            _images(made, epoch, environment)
        (made / f"epochal-{version()}.cdx.json").write_text(release_sbom.document(ROOT, epoch))
        files = sorted(made.iterdir())
        (made / SUMS).write_text("".join(f"{_sha256(file)}  {file.name}\n" for file in files))
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    return sorted(target.iterdir())


def _python(made: Path, environment: Mapping[str, str]) -> None:
    """The source distribution, and the wheel that it builds: so it has all that a build needs."""
    _run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(made)], ROOT, environment)
    with TemporaryDirectory() as directory:
        with tarfile.open(made / f"epochal-{version()}.tar.gz") as archive:
            archive.extractall(directory, filter="data")
        unpacked = Path(directory) / f"epochal-{version()}"
        _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made)], unpacked, environment)


def _chart(made: Path, epoch: int) -> None:
    helm = str(HELM) if HELM.exists() else shutil.which("helm")
    if helm is None:
        raise DistError("needs helm: run tools/get-kube-tools")
    with TemporaryDirectory() as directory:
        _run([helm, "package", str(ROOT / "charts" / "epochal"), "-d", directory], ROOT)
        (package,) = Path(directory).iterdir()
        with (made / package.name).open("wb") as file, gzip.GzipFile("", "wb", 9, file, epoch) as packed:
            normalise(package, packed, epoch)


def _images(made: Path, epoch: int, environment: Mapping[str, str]) -> None:
    """OCI archives, and in `IMAGES` each with the digest by which a registry will know it."""
    with TemporaryDirectory(dir=made.parent) as directory:
        _run([str(ROOT / "tools" / "images")], ROOT, {**environment, "OCI": directory}, shows=True)
        lines = []
        for archive in sorted(Path(directory).iterdir()):
            lines.append(f"{archive.name.removesuffix('.oci.tar')} {digest(archive)}\n")
            with (made / archive.name).open("wb") as file:
                normalise(archive, file, epoch)
            archive.unlink()
    (made / IMAGES).write_text("".join(lines))


def digest(archive: Path) -> str:
    """The digest of the one image of an OCI archive."""
    with tarfile.open(archive) as files:
        index = files.extractfile("index.json")
        assert index is not None
        (manifest,) = json.load(index)["manifests"]
    found = manifest["digest"]
    assert isinstance(found, str)
    return found


def normalise(archive: Path, target: IO[bytes] | gzip.GzipFile, epoch: int) -> None:
    """Write the files of a tar into `target` as another tar, which depends on nothing but them and `epoch`."""
    with tarfile.open(archive) as source, tarfile.open(fileobj=target, mode="w|", format=tarfile.GNU_FORMAT) as written:
        for member in sorted(source.getmembers(), key=lambda each: each.name):
            if not member.isfile():
                continue
            plain = tarfile.TarInfo(member.name)
            plain.size, plain.mtime, plain.mode = member.size, epoch, 0o755 if member.mode & 0o100 else 0o644
            written.addfile(plain, source.extractfile(member))


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DistError(f"needs a clone with git: {done.stderr.strip()}")
    return done.stdout.strip()


def _run(
    command: Sequence[str], where: Path, environment: Mapping[str, str] | None = None, *, shows: bool = False
) -> None:
    """`shows`: what it prints is printed, because it takes minutes."""
    done = subprocess.run(command, cwd=where, env=environment, capture_output=not shows, text=True, check=False)
    if done.returncode:
        raise DistError(f"{' '.join(command)} failed:\n{done.stdout or ''}{done.stderr or ''}")


def main(arguments: Sequence[str]) -> int:
    """Entry point; the exit status is 1 where no release was made."""
    parser = argparse.ArgumentParser(description="Make the files of a release.")
    parser.add_argument("--no-images", action="store_true", help="leave the images out: no root, no buildah")
    parser.add_argument("--dirty", action="store_true", help="also from a tree that is not as committed, to try it")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="the directory; what is in it is replaced")
    given = parser.parse_args(arguments)
    if not given.no_images:
        lacks = [str(ROOT / "tools" / "require"), "make dist (DIST_ARGS=--no-images leaves the images out)", "images"]
        if subprocess.run(lacks, check=False).returncode:
            return 1
    try:
        files = make(given.to.resolve(), images=not given.no_images, dirty=given.dirty)
    except DistError as error:
        print(f"dist.py: {error}", file=sys.stderr)
        return 1
    for file in files:
        print(f"{file.stat().st_size:>12,}  {file.name}")
    if given.no_images:
        print("WITHOUT IMAGES: these are not all files of a release")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
