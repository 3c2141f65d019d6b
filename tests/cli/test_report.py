"""`report`: what is redacted, what an archive may hold, and archives of real services."""

import contextlib
import json
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from epochal.cli.io.metrics import open_session
from epochal.cli.report import collect
from epochal.cli.report.archive import MAX_PART, Archive, safe_name
from epochal.cli.report.collect import Collector
from epochal.cli.report.redaction import REDACTED, Redaction, redact_text
from epochal.errors import UsageError


def unpacked(path: Path) -> dict[str, str]:
    """The parts of an archive by their names."""
    with tarfile.open(path) as archive:
        found = {entry.name.partition("/")[2]: archive.extractfile(entry) for entry in archive.getmembers()}
        return {name: file.read().decode() for name, file in found.items() if file is not None}


# ---- redaction ----


def test_values_are_redacted_by_their_names_wherever_they_are() -> None:
    redaction = Redaction()
    clean = redaction.document("part", {
        "apiKey": "k1", "nested": [{"dbPassword": {"a": 1}}, {"name": "API_TOKEN", "value": "v1"}],
        "env": [{"name": "HARMLESS", "value": "v2"}], "headers": {"x-harmless": "v3"},
        "callback": "https://me:pw@host:8443/hook?key=v4#v5", "note": "Authorization: Bearer abcdefgh1234",
        "key": "kept", "fields": [{"name": "password", "type": "string"}], "token": None, "author": "kept",
    })  # fmt: skip
    assert clean == {
        "apiKey": REDACTED, "nested": [{"dbPassword": REDACTED}, {"name": "API_TOKEN", "value": REDACTED}],
        "env": REDACTED, "headers": REDACTED,
        "callback": f"https://host:8443/hook?{REDACTED}", "note": f"Authorization: {REDACTED}",
        "key": "kept", "fields": [{"name": "password", "type": "string"}], "token": None, "author": "kept",
    }  # fmt: skip
    assert redaction.found == [
        ("part", "apiKey"),
        ("part", "nested.0.dbPassword"),
        ("part", "nested.1.value"),
        ("part", "env"),
        ("part", "headers"),
        ("part", "callback: parts of a URL"),
        ("part", "note: Authorization"),
    ]


@pytest.mark.parametrize(
    ("line", "clean"),
    [
        ("MY_TOKEN=abc next", f"MY_TOKEN={REDACTED} next"),
        ('{"client_secret": "a b", "n": 1}', f'{{"client_secret": {REDACTED}, "n": 1}}'),
        ("Cookie: a=b; c=d", f"Cookie: {REDACTED}; c=d"),
        ("GET /x?access_token=abc&n=1 200", f"GET /x?access_token={REDACTED}&n=1 200"),
        ("sent basic dXNlcjpwYXNz to it", f"sent {REDACTED} to it"),
        ("got eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl", f"got {REDACTED}"),
        ("connected to tcp://10.0.0.1:5555 in 3 s", "connected to tcp://10.0.0.1:5555 in 3 s"),
        ("the token was refused", "the token was refused"),
        ('epochal_publisher_acks_total{segment="0",stream="demo/a"} 3.0',
         'epochal_publisher_acks_total{segment="0",stream="demo/a"} 3.0'),
    ],
)  # fmt: skip
def test_texts_are_redacted(line: str, clean: str) -> None:
    assert redact_text(line)[0] == clean
    assert redact_text(clean)[0] == clean, "twice is as once"


def test_what_is_too_deep_is_left_out() -> None:
    deep: Any = "bottom"
    for _ in range(500):
        deep = [deep]
    assert "bottom" not in str(Redaction().document("part", {"deep": deep}))


def test_a_private_key_goes_whole() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nabc\ndef\n-----END RSA PRIVATE KEY-----"
    assert redact_text(f"before\n{key}\nafter")[0] == f"before\n{REDACTED}\nafter"


@pytest.mark.parametrize("piece", ["token", "eyJ-", "a.b-", "http://", 'secret="', "a:"])
def test_no_text_takes_for_ever(piece: str) -> None:
    redact_text(piece * (2**20 // len(piece)))


# ---- the archive ----


def test_a_part_is_cut_and_a_name_stays_inside(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    with Archive(path) as archive:
        archive.add("streams/../../a b/\x1b", b"x")
        archive.add("long", b"b" + b"x" * MAX_PART)
        archive.add("log", b"x" * MAX_PART + b"e", keep_end=True)
        archive.add("log", b"another")
    assert [(part.name, part.size, part.cut) for part in archive.parts] == [
        ("streams/_/_/a_b/_", 1, False), ("long", MAX_PART, True), ("log", MAX_PART, True), ("log.2", 7, False),
    ]  # fmt: skip
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    parts = unpacked(path)
    assert (parts["long"][0], parts["log"][-1]) == ("b", "e")
    assert safe_name("a" * 300) == "a" * 100


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    with contextlib.suppress(KeyboardInterrupt), Archive(tmp_path / "x.tar.gz") as archive:
        archive.add("part", b"x")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["/dev/null", "/no/such/folder/x.tar.gz", "/"])
def test_a_place_that_cannot_be_written_is_reported(epochal: Any, place: str) -> None:
    with pytest.raises(UsageError, match="choose another"), Archive(Path(place)):
        raise AssertionError
    result = epochal("report", "-o", place)
    assert (result.status, result.out) == (2, "")
    assert "-o FILE" in result.err


# ---- real services ----


def test_a_report_of_a_stream(run: Any, declared: Any, tmp_path: Path) -> None:
    stream, other = declared(encoding="json", segments=2), declared(segments=1)
    record = '{"content": "a-private-record"}'
    assert run("pub", stream, "-t", "3", record, "--key", "a-private-key", "--writer", "w1").status == 0
    path = tmp_path / "help.tar.gz"
    result = run("report", stream, "-o", path)
    assert result.status == 0, result.err
    assert f"wrote {path} (" in result.err
    parts = unpacked(path)
    folder = f"streams/{stream}"
    assert {"doctor.txt", "versions.json", "catalog/metrics.txt", "contents.json", f"{folder}/manifest.yaml"} <= set(
        parts
    )
    assert yaml.safe_load(parts[f"{folder}/manifest.yaml"])["metadata"]["name"] == stream.removeprefix("demo/")
    assert "\nHeld back:" in parts[f"{folder}/describe.txt"]
    assert [each["writer"] for each in json.loads(parts[f"{folder}/writers.json"])] == ["w1"]
    assert "catalog" in parts["doctor.txt"]
    versions = json.loads(parts["versions.json"])
    (publisher,) = json.loads(parts["catalog/publishers.json"])
    assert versions["publishers"] == {publisher["id"]: versions["epochal"]}
    assert versions["catalog"] == versions["epochal"]
    assert versions["protocol"] in ("compiled", "pure Python")
    assert "epochal_publisher_appends_total" in parts[f"publishers/{publisher['id']}/metrics.txt"]
    whole = "".join(parts.values())
    assert "a-private" not in whole
    assert other not in parts["catalog/publishers.json"]
    contents = json.loads(parts["contents.json"])
    assert {part["name"] for part in contents["parts"]} == parts.keys() - {"contents.json"}
    assert contents["notes"] == []
    assert publisher["token"] == REDACTED
    assert {"part": "catalog/publishers.json", "what": "0.token"} in contents["redacted"]
    listed = [line.split()[0] for line in result.out.splitlines()]
    assert listed == ["PART", *(part["name"] for part in contents["parts"]), "contents.json"]


def test_a_part_that_cannot_be_had_is_noted(run: Any, declared: Any, tmp_path: Path) -> None:
    stream = declared(segments=1)
    result = run("report", stream, "demo/nothing-here", "-o", tmp_path / "x.tar.gz", "--data", tmp_path)
    assert result.status == 0
    assert "not taken: demo/nothing-here: there is no stream demo/nothing-here" in result.err
    assert f"not taken: logs: there are none in {tmp_path}/logs" in result.err
    assert f"streams/{stream}/manifest.yaml" in unpacked(tmp_path / "x.tar.gz")


def test_more_streams_than_are_taken(run: Any, declared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        declared(segments=1)
    monkeypatch.setattr(collect, "MAX_STREAMS", 1)
    result = run("report", "-n", "demo", "-o", tmp_path / "x.tar.gz")
    assert result.status == 0
    assert "not taken: streams: 1 of " in result.err
    assert sum(name.endswith("manifest.yaml") for name in unpacked(tmp_path / "x.tar.gz")) == 1


def test_without_a_catalog_there_is_still_what_doctor_finds(
    run: Any, unused_tcp_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"http://me:pw@127.0.0.1:{unused_tcp_port}"
    result = run("report", "--catalog", url, "--timeout", "1")
    assert result.status == 1
    assert "neither the catalog nor a log could be read" in result.err
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("epochal-report-")
    parts = unpacked(path)
    assert parts.keys() == {"doctor.txt", "versions.json", "contents.json"}
    assert "connection refused" in parts["doctor.txt"]
    assert "me:pw" not in "".join(parts.values()) + result.err
    assert run("report", "--catalog", "nonsense").status == 2
    assert list(tmp_path.iterdir()) == [path], "nothing is left of what failed"


def test_the_logs_of_local_mode(run: Any, unused_tcp_port: int, tmp_path: Path) -> None:
    logs = tmp_path / "data" / "logs"
    (logs / "publishers").mkdir(parents=True)
    (logs / "catalog.log").write_text("ready\nsecret=abc\n")
    (logs / "publishers" / "demo.a-0.log.1").write_text("first\n" + "x" * MAX_PART + "\nlast\n")
    (tmp_path / "other").write_text("of somebody else")
    os.symlink(tmp_path / "other", logs / "linked.log")
    url = f"http://127.0.0.1:{unused_tcp_port}"
    result = run("report", "--catalog", url, "--data", tmp_path / "data", "-o", tmp_path / "x.tgz", "--timeout", "1")
    assert result.status == 0, "something was read"
    parts = unpacked(tmp_path / "x.tgz")
    assert parts["logs/catalog.log"] == f"ready\nsecret={REDACTED}\n"
    assert parts["logs/publishers/demo.a-0.log.1"] == "last\n", "the end, from the beginning of a line"
    assert "logs/linked.log" not in parts
    assert "redacted: logs/catalog.log: secret\n" in result.err
    assert "logs/publishers/demo.a-0.log.1  5 B, cut" in result.out


async def test_web_hooks_are_shown_without_credentials_and_positions(tmp_path: Path) -> None:
    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(text='target_info{service_version="9.9"} 1.0\nepochal_publisher_webhooks{a="b"} 1.0\n')

    async def webhooks(request: web.Request) -> web.Response:
        hook = {"subscription": "mine", "callback": "https://me:pw@host/hook?key=1", "position": [1, 17]}
        return web.json_response({"items": [hook] if request.match_info["id"] == "0/1" else "nonsense"})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/v1/segments/{id}/webhooks", webhooks)
    item = {"id": "p", "stream": "demo/a", "segments": {"0/1": 1, "2": 1}, "live": True, "superseded": False}
    async with TestServer(app) as server, open_session() as session:
        with Archive(tmp_path / "x.tar.gz") as archive:
            collector = Collector(archive, 10.0)
            address = str(server.make_url("/")).rstrip("/")
            await collector._publishers(session, [{**item, "addresses": {"http": address}}, {**item, "addresses": {}}])
    parts = unpacked(tmp_path / "x.tar.gz")
    assert json.loads(parts["streams/demo/a/webhooks-0/1.json"]) == [
        {"subscription": "mine", "callback": f"https://host/hook?{REDACTED}"}
    ]
    assert archive.notes == [
        "publishers/p/metrics.txt: the publisher serves no HTTP",
        "streams/demo/a/webhooks-2.json: the publisher's answer is no list of web-hooks",
    ]
