"""The bill of materials of an image, as CycloneDX 1.6 JSON.

Run inside the image as `python3 sbom.py NAME VERSION DIRECTORY...`: prints every Debian package of its base and every
Python distribution that is installed in the directories, each with version, licence and package URL.

Builders of images differ in what they record, if they record anything; this program reads what is really installed.
It needs the standard library only.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

DPKG = Path("/var/lib/dpkg/status")
OS_RELEASE = Path("/etc/os-release")


def python_components(directories: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One component for each distribution in `directories`."""
    for found in distributions(path=list(directories)):
        name, version = found.metadata["Name"], found.version
        purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
        yield component(name, version, purl, _license(found))


def debian_components(status: str, distribution: str) -> Iterator[dict[str, Any]]:
    """One component for each package that the text of dpkg's status file says is installed."""
    for paragraph in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            purl = f"pkg:deb/{distribution}/{name}@{version}?arch={fields['Architecture']}"
            yield component(name, version, purl, "")


def component(name: str, version: str, purl: str, license_: str) -> dict[str, Any]:
    """One entry; `license_` is empty where none is said."""
    entry: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if license_:
        entry["licenses"] = [{"license": {"name": license_}}]
    return entry


def document(name: str, version: str, components: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The whole document, in an order that depends only on its content."""
    each = {entry["bom-ref"]: entry for entry in components}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": name, "name": name, "version": version}},
        "components": [each[ref] for ref in sorted(each)],
    }


def _license(found: Distribution) -> str:
    metadata = found.metadata
    said = next((metadata[field] for field in ("License-Expression", "License") if field in metadata), "")
    if said and "\n" not in said:
        return said
    classified = [line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or [] if "License" in line]
    return classified[0] if classified else ""


def main(arguments: Sequence[str]) -> int:
    """Entry point."""
    name, version, *directories = arguments
    found = list(python_components(directories))
    if DPKG.exists():
        release = dict(line.split("=", 1) for line in OS_RELEASE.read_text().splitlines() if "=" in line)
        found += debian_components(DPKG.read_text(), release.get("ID", "debian"))
    print(json.dumps(document(name, version, found), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
