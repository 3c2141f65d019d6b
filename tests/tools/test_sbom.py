"""The bill of materials names what is installed: of Debian, and of Python."""

import json
import sysconfig

import sbom

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9
Description: GNU C Library
 with: a line that looks like a field

Package: perl
Status: deinstall ok config-files
Architecture: amd64
Version: 5.36
"""


def test_debian_packages_that_are_installed_are_named_and_others_are_not():
    assert list(sbom.debian_components(STATUS, "debian")) == [
        {
            "type": "library",
            "bom-ref": "pkg:deb/debian/libc6@2.36-9?arch=amd64",
            "name": "libc6",
            "version": "2.36-9",
            "purl": "pkg:deb/debian/libc6@2.36-9?arch=amd64",
        }
    ]


def test_python_distributions_come_with_version_and_licence():
    found = {entry["name"]: entry for entry in sbom.python_components([sysconfig.get_path("purelib")])}
    pyzmq = found["pyzmq"]
    assert pyzmq["purl"] == f"pkg:pypi/pyzmq@{pyzmq['version']}"
    assert pyzmq["licenses"][0]["license"]["name"]


def test_the_document_does_not_depend_on_the_order_of_what_is_found():
    one, two = (sbom.component(name, "1", f"pkg:pypi/{name}@1", "") for name in ("a", "b"))
    document = sbom.document("epochal-x", "dev", [two, one])
    assert document == sbom.document("epochal-x", "dev", [one, two])
    assert document["bomFormat"] == "CycloneDX"
    assert [entry["name"] for entry in document["components"]] == ["a", "b"]


def test_it_prints_a_document(capsys):
    assert sbom.main(["epochal-x", "1.0", sysconfig.get_path("purelib")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["metadata"]["component"]["name"] == "epochal-x"
