"""`apply` and `delete`: several files, directories, what would happen, what failed, what goes."""

import json
import re
import socket
from pathlib import Path

import pytest

from epochal.cli.manifests import read_manifests
from epochal.errors import ConfigError, ManifestError


def test_a_directory_stands_for_its_manifests(run, manifest, tmp_path: Path) -> None:
    for name in ("one.yaml", "two.yml", "three.json"):
        (tmp_path / name).write_text(manifest(f"dir-{name.split('.')[0]}"))
    (tmp_path / "notes.txt").write_text("not a manifest")
    (tmp_path / "deeper").mkdir()
    dry = run("apply", "-f", tmp_path, "--dry-run")
    names = ["dir-one", "dir-three", "dir-two"]
    assert dry.out == "".join(f"stream demo/{name} created (dry run)\n" for name in names)
    assert run("get", "stream", "demo/dir-one").status == 3
    assert run("apply", "-f", tmp_path).out == "".join(f"stream demo/{name} created\n" for name in names)
    deleted = run("delete", "-f", tmp_path)
    assert deleted.out == "".join(f"stream demo/{name} deleted\n" for name in names)
    assert "demo/dir-one: its history goes, and with it 2 segments" in deleted.err


def test_what_can_never_run_is_refused_before_anything_is_changed(run, manifest, tmp_path: Path) -> None:
    (tmp_path / "fine.yaml").write_text(manifest("fine-beside"))
    publishers = "  publishers: {resources: {limits: {memory: 16Mi}}}"
    (tmp_path / "never.yaml").write_text(re.sub("  publishers: .*", publishers, manifest("never")))
    for more in ([], ["--dry-run"]):
        refused = run("apply", "-f", tmp_path, *more)
        assert refused.status != 0
        assert "Stream demo/never: spec.publishers.resources.limits.memory: no process of Epochal starts with" in (
            refused.err
        )
    assert run("get", "stream", "demo/fine-beside").status == 3


def test_what_is_wrong_names_its_file_and_changes_nothing(manifest, tmp_path: Path) -> None:
    good, wrong = tmp_path / "good.yaml", tmp_path / "wrong.yaml"
    good.write_text(manifest("same"))
    wrong.write_text(manifest("same") + "  segmets: 1\n")
    with pytest.raises(ManifestError, match=r"wrong\.yaml: spec\.segmets"):
        read_manifests([str(good), str(wrong)], None)
    wrong.write_text(manifest("same"))
    with pytest.raises(ManifestError, match=r"wrong\.yaml: metadata\.name: declares demo/same again; .*good\.yaml"):
        read_manifests([str(good), str(wrong)], None)
    wrong.write_bytes(b"\xff")
    with pytest.raises(ManifestError, match="UTF-8"):
        read_manifests([str(wrong)], None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="directory without manifests"):
        read_manifests([str(tmp_path / "empty")], None)


def test_one_that_is_refused_does_not_stop_the_others(run, manifest, declared) -> None:
    stream = declared()
    changed = manifest(stream.removeprefix("demo/"), encoding="json")
    both = run("apply", "-f", "-", stdin=f"{changed}---\n{manifest('beside')}")
    assert (both.status, both.out) == (2, "stream demo/beside created\n")
    assert "1 of 2 manifests failed" in both.err
    assert "spec.payload.encoding: cannot change from msgpack to json" in both.err
    dry = run("apply", "--dry-run", "-f", "-", stdin=f"{changed}---\n{manifest('beside')}  relays: 0\n")
    assert (dry.status, dry.out.startswith("stream demo/beside ")) == (2, True)
    assert "spec.payload.encoding: cannot change from msgpack to json" in dry.err
    assert run("delete", "stream", "demo/beside").status == 0


def test_a_delete_can_wait_for_the_publishers(run, manifest) -> None:
    assert run("apply", "-f", "-", stdin=manifest("goes", segments=1)).status == 0
    assert run("pub", "demo/goes", "-t", "1", "1").status == 0
    (publisher,) = json.loads(run("get", "publishers", "demo/goes", "-o", "json").out)["items"]
    port = int(publisher["addresses"]["http"].rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port)).close()
    gone = run("delete", "stream/demo/goes", "--wait")
    assert (gone.status, gone.out) == (0, "stream demo/goes deleted\n")
    assert "1 segment, 1 publisher" in gone.err
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert "publisher/demo.goes-0" not in run("get", "publishers", "-o", "name").out


RELAY = (
    "apiVersion: epochal.dev/v1alpha1\nkind: Relay\nmetadata: {name: near, namespace: demo}\nspec: {stream: flights}\n"
)


def test_a_relay_has_no_place_at_the_catalog_and_nothing_is_changed(run, manifest) -> None:
    refused = run("apply", "-f", "-", stdin=f"{manifest('relayed')}---\n{RELAY}")
    assert (refused.status, refused.out) == (2, "")
    assert "kind: Relay demo/near can be declared on a cluster only" in refused.err
    assert "spec.relays in the manifest of stream flights" in refused.err
    assert run("get", "stream", "demo/relayed").status == 3
    for command in (["delete", "-f", "-"], ["delete", "relay", "demo/near"]):
        refused = run(*command, stdin=RELAY)
        assert (refused.status, refused.out) == (2, "")
        assert "keeps no Relays" in refused.err


def test_what_is_no_kind_of_manifest_is_reported(manifest, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(RELAY.replace("Relay", "Realy"))
    with pytest.raises(ManifestError, match="did you mean 'Relay'"):
        read_manifests([str(wrong)], None)
    wrong.write_text(RELAY.replace("stream: flights", "streem: flights"))
    with pytest.raises(ManifestError, match=r"spec\.streem: is not a field; did you mean 'stream'"):
        read_manifests([str(wrong)], None)
    wrong.write_text(f"{RELAY}---\n{RELAY}---\n{manifest('near')}")
    with pytest.raises(ManifestError, match="declares demo/near again; document 1 does already"):
        read_manifests([str(wrong)], None)
