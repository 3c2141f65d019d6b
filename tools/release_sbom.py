"""The bill of materials of a release, as CycloneDX 1.6 JSON, made from requirements.lock.

It names what the library and its extras need, with the versions that were tested and the hashes of their files. What is
for development only is left out. The images have their own, of what is really installed in them (`sbom.py`).
"""

import hashlib
import re
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import cyclonedx.model.bom
import cyclonedx.model.component
import cyclonedx.model.license
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from component_lock import needed, normal, parents, requirements, roots_of

model: Any = cyclonedx.model
"""Of any type, because the decorators of its classes hide their parameters from type checkers."""
_PINNED = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^ ;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def document(root: Path, epoch: int) -> str:
    """The document of the tree at `root`; the same for the same lock, version and `epoch` (seconds since 1970)."""
    lock = (root / "requirements.lock").read_text()
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    entries = requirements(lock)
    roots = {normal(name) for extra in ("core", *project["optional-dependencies"]) for name in roots_of(project, extra)}
    roots -= {normal(project["name"])}  # extras name each other by it
    own = _own(project)
    bom = model.bom.Bom(serial_number=uuid5(NAMESPACE_URL, f"{own.purl}#{hashlib.sha256(lock.encode()).hexdigest()}"))
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.metadata.component = own
    # A package may be locked in several versions, for different systems.
    found = {name: list(_components(entries[name])) for name in needed(entries, roots)}
    for components in found.values():
        bom.components.update(components)
    needs: dict[str, list[Any]] = {name: [] for name in found}
    for name, components in found.items():
        for parent in set(parents(entries[name])) & found.keys():
            needs[parent] += components
    bom.register_dependency(own, [each for name in roots for each in found[name]])
    for name, components in found.items():
        for component in components:
            bom.register_dependency(component, needs[name])
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1) + "\n"


def _own(project: dict[str, Any]) -> Any:
    purl = PackageURL("pypi", name=project["name"], version=project["version"])
    return model.component.Component(
        name=project["name"], version=project["version"], type=model.component.ComponentType.APPLICATION, purl=purl,
        bom_ref=str(purl), description=project["description"],
        licenses=[model.license.LicenseExpression(project["license"])],
    )  # fmt: skip


def _components(entry: str) -> Iterator[Any]:
    pinned = list(_PINNED.finditer(entry))
    for at, found in enumerate(pinned):
        text = entry[found.end() : pinned[at + 1].start() if at + 1 < len(pinned) else None]
        purl = PackageURL("pypi", name=normal(found["name"]), version=found["version"])
        files = model.ExternalReference(
            type=model.ExternalReferenceType.DISTRIBUTION,
            url=model.XsUri(f"https://pypi.org/project/{purl.name}/{purl.version}/"),
            comment="the hashes are those of its files",
            hashes=[model.HashType(alg=model.HashAlgorithm.SHA_256, content=value) for value in _HASH.findall(text)],
        )
        yield model.component.Component(
            name=found["name"], version=found["version"], purl=purl, bom_ref=str(purl), external_references=[files]
        )
