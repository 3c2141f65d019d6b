"""`doctor`: each judgement on its own, and the whole against a real local mode."""

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.patience import PATIENCE

from epochal.catalog_api.answers import StreamInfo
from epochal.cli.doctor import checks, examination, probes
from epochal.cli.doctor.checks import Finding, Verdict, fail, ok, print_findings, summary, warn
from epochal.cli.doctor.examination import data_directory, examine
from epochal.cli.io.documents import Documents
from epochal.cli.listed_kinds import PUBLISHERS
from epochal.local import DEFAULT_DATA, LocalMode


def verdict(found: Finding | list[Finding]) -> str:
    return " ".join(str(finding.verdict) for finding in ([found] if isinstance(found, Finding) else found))


def test_a_well_realm_is_well(run, declared, catalog: str) -> None:
    stream = declared(segments=1)
    assert run("pub", stream, "-t", "1", "1").status == 0
    result = run("doctor", "-o", "json", "--timeout", "60")
    document = json.loads(result.out)
    assert result.status == 0, document
    seen = {finding["check"]: finding["verdict"] for finding in document["findings"]}
    assert {seen[check] for check in ("python", "libzmq", "catalog", "version", "clock", "ports")} == {"ok"}
    text = run("doctor")
    assert text.status == 0
    assert f"\nok    catalog      {catalog} answers in " in text.out


def test_without_a_catalog_it_fails_soon(run, unused_tcp_port: int) -> None:
    result = run("doctor", "--catalog", f"http://127.0.0.1:{unused_tcp_port}")
    assert result.status == 1
    assert "cannot be reached: connection refused\n" in result.out
    assert "-> start one with `epochal up`" in result.out
    assert result.err.endswith("1 fail\n")


async def test_what_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert "within 0.3 s" in str(await probes.reach(f"tcp://127.0.0.1:{port}", "events", 0.3))
        assert await probes.reach(f"http://127.0.0.1:{port}", "http", 0.3) == "no answer within 0.3 s"
        assert await probes.greet(f"tcp://127.0.0.1:{port}", "uid", "0", 0.3) == "no welcome within 0.3 s"
        with pytest.raises(TimeoutError):
            await probes.look_at_catalog(f"http://127.0.0.1:{port}", 0.3)


async def test_what_is_no_publisher_is_reported(unused_tcp_port: int) -> None:
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(PATIENCE):
        assert "not as a publisher" in str(await probes.reach(f"tcp://127.0.0.1:{port}", "ingest", 5.0))
        assert "refused" in str(await probes.reach(f"tcp://127.0.0.1:{unused_tcp_port}", "requests", 5.0)).lower()
        assert "is no address" in str(await probes.reach("nonsense", "events", 1.0))
    server.close()


async def test_a_segment_that_moved_is_reported(services) -> None:
    stream = await services.stream()
    async with Documents(services.url, patience=0.0) as documents:
        item = await documents.stream(*stream.split("/"))
    requests = item["segments"][0]["publisher"]["addresses"]["requests"]
    assert await probes.greet(requests, item["uid"], "0", 10.0) is None
    assert "refuses" in str(await probes.greet(requests, item["uid"], "7", 10.0))
    assert "refuses" in str(await probes.greet(requests, "another", "0", 10.0))


async def test_a_publisher_that_left_while_it_was_looked_at_is_not_missed(services, unused_tcp_port: int) -> None:
    stream = await services.stream()
    async with Documents(services.url, patience=0.0) as documents:
        here = next(item for item in await documents.all(PUBLISHERS.path) if item["stream"] == stream)
    dead = {"events": f"tcp://127.0.0.1:{unused_tcp_port}"}
    left = {**here, "id": "left", "addresses": dead}
    (found,) = await examination._ports(PUBLISHERS, [here, left], 10.0, services.url, {})
    assert (found.verdict, found.seen) == (Verdict.OK, f"all {len(here['addresses'])} ports of 1 publisher answer")
    assert await examination._ports(PUBLISHERS, [left], 10.0, services.url, {}) == []
    nobody = f"http://127.0.0.1:{unused_tcp_port}"
    assert verdict(await examination._ports(PUBLISHERS, [here, left], 10.0, nobody, {})) == "fail", (
        "the catalog does not say that it left"
    )


def test_each_judgement() -> None:
    assert verdict([checks.check_python((3, 10, 1)), checks.check_python((3, 13, 0))]) == "fail ok"
    assert verdict([checks.check_libzmq((4, 3, 4)), checks.check_libzmq((4, 3, 5))]) == "fail ok"
    assert verdict([checks.check_java(None, None), checks.check_java(11, "4"), checks.check_java(17, None)]) == (
        "warn warn warn"
    )
    assert verdict(checks.check_java(21, "4.3.0")) == "ok"
    assert verdict([checks.check_files(256, 4096, 0), checks.check_files(2048, 4096, 500)]) == "fail warn"
    assert "ulimit -n 4096" in checks.check_files(256, 4096, 0).advice
    assert verdict([checks.check_versions("1", "1"), checks.check_versions("1", "2")]) == "ok warn"
    assert verdict([checks.check_clock(None), checks.check_clock(1.0), checks.check_clock(-60.0)]) == "warn ok warn"
    assert "60 s ahead of the catalog's" in checks.check_clock(-60.0).seen
    assert verdict([checks.check_latency("u", 0.01), checks.check_latency("u", 2.0)]) == "ok warn"


OWNER = {"id": "p", "token": 1, "verified": True, "addresses": {}, "since": ""}


def lease(**fields: Any) -> dict[str, Any]:
    return {"id": "p", "stream": "a/b", "live": True, "verified": True, "superseded": False, **fields}


def test_leases() -> None:
    assert verdict(checks.check_leases([lease(), lease(verified=False), lease(live=False)])) == "warn warn ok"
    assert checks.check_leases([lease(superseded=True)]) == []


def segment(name: str = "0", publisher: Any = OWNER, **counters: int) -> dict[str, Any]:
    return {"id": name, "lo": "0", "hi": "1", "state": "open", "incarnation": 1, "publisher": publisher,
            "counters": {"channels": 64, **counters}}  # fmt: skip


def stream(kind: str = "writer", seconds: float = 1.0, silent: float | None = 0.1, **fields: Any) -> StreamInfo:
    held = {"segment": "0", "time": 4, "kind": kind, "writer": "w1", "seconds": seconds, "silent": silent}
    of_an_earlier_version = {**segment(), "counters": None}
    return StreamInfo.from_json({
        "namespace": "a", "name": "b", "uid": "u", "generation": 1, "phase": "Ready", "manifest": {},
        "segments": [of_an_earlier_version], "writers": ["w1"], "held_back": [held], **fields,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("item", "found"),
    [
        (stream(), "ok"),
        (stream(seconds=100), "warn"),
        (stream(seconds=20, silent=15), "warn"),
        (stream("parked", 9000, None), "ok"),
        (stream("parked", 9000, None, segments=[segment(open_epochs=1)]), "warn"),
        (stream("parked", 9, None, segments=[segment(open_epochs=1)]), "ok"),
        (stream("opening", 9000, None), "warn"),
        (stream("opening", 9000, None, writers=[]), "ok"),
        (stream("returning", 20), "warn"),
        (stream("finishing", 100, None), "warn"),
        (stream("lost", 1, 40), "warn"),
        (stream(segments=[segment(coarse=0)]), "ok"),
        (stream(segments=[segment(coarse=2)]), "warn"),
        (stream(seconds=100, segments=[segment(coarse=2)]), "warn warn"),
        (stream("something new", 100, None), "ok"),
        (stream(segments=[segment(publisher=None)]), "fail"),
        (stream(segments=[segment(publisher=None)], phase="Complete"), "ok"),
        (stream(segments=[segment(publisher=None), segment("1", disk_full=28)]), "fail fail"),
        (stream(segments=[segment(waiting_bytes=9, waiting_seconds=7)]), "warn"),
    ],
)
def test_streams(item: StreamInfo, found: str) -> None:
    assert verdict(checks.check_streams([item])) == found
    assert checks.check_streams([item, stream(name="c")])[-1].seen.startswith("2 of 2" if found == "ok" else "1 of 2")


def test_records_that_wait_where_no_writer_is_left_are_named_with_what_to_do() -> None:
    segments = [segment(open_epochs=1), segment("1", open_epochs=1)]
    (found, _) = checks.check_streams([stream("parked", 90, None, segments=segments), stream(name="c")])
    assert found.seen == (
        "a/b: records of 2 epochs wait, and no one is left to complete them: segment 0 is at 4: it has had"
        " no writer for 1m30s; the next that opens goes on from here"
    )
    assert found.advice == "open a writer that advances, such as: epochal pub a/b --advance T"


def test_a_stream_whose_channels_are_taken_is_named_with_what_to_do() -> None:
    segments = [segment(str(number), coarse=coarse) for number, coarse in enumerate((0, 1, 1200))]
    (found, _) = checks.check_streams([stream(segments=segments), stream(name="c")])
    assert found.seen == (
        "a/b: all 64 channels of segment 2 are taken, and 1,200 subscribers get more than they want; so it is at"
        " 1 more segment"
    )
    assert "EPOCHAL_PUBLISHER_MAX_CHANNELS" in found.advice


def test_a_lost_writer_that_is_waited_for_is_named_with_both_ways_out() -> None:
    held = {"segment": "0", "time": 4, "kind": "lost", "writer": "w 1", "seconds": 90, "silent": 40}
    (finding, _) = checks.check_streams([stream(held_back=[held]), stream(name="c")])
    assert finding.seen == "a/b: segment 0 is at 4: it has waited for 1m30s for lost writer w 1"
    assert finding.advice == "start w 1 again under the same id, or: epochal release a/b 'w 1'"


def test_a_stream_that_cannot_be_read_fails_and_the_others_are_judged() -> None:
    listed = [{"namespace": "a", "name": "new", "segments": "many"}, stream(seconds=100).to_json()]
    streams, (unread,) = examination._read_streams(listed)
    assert (unread.verdict, unread.seen.split(":")[0]) == (Verdict.FAIL, "a/new")
    assert verdict(checks.check_streams(streams)) == "warn"


def test_the_data_directory(tmp_path: Path) -> None:
    assert verdict(examination._directory(probes.look_at_directory(tmp_path / "none"))) == "warn"
    assert "not in use" in examination._directory(probes.look_at_directory(tmp_path)).seen
    (tmp_path / "lock").write_text("1\n")
    assert "in use by process 1" in examination._directory(probes.look_at_directory(tmp_path)).seen
    full = probes.DirectorySeen(tmp_path, True, True, 1 << 20, None)
    assert verdict(examination._directory(full)) == "warn"
    assert verdict(examination._directory(probes.DirectorySeen(tmp_path, True, False, 1 << 40, None))) == "fail"


async def test_beside_two_local_modes_the_directory_of_the_one_that_is_asked_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here" / DEFAULT_DATA, tmp_path / "there"
    async with LocalMode(here) as first, LocalMode(there) as second:
        monkeypatch.chdir(here.parent)
        used = f"in use by process {os.getpid()}"
        for local, data in ((second, there), (first, here)):
            (found,) = await looked(local.url)
            assert (found.verdict, found.seen.split(",")[0]) == (Verdict.OK, f"{data}: {used}")
            assert await data_directory(local.url, PATIENCE) == data, "of the report's logs too"
        (found,) = await looked(second.url, here)
        assert found.seen.startswith(f"{here}: {used}"), "the one that was given goes first"


async def test_where_the_catalog_names_no_directory_none_is_judged(
    services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    (tmp_path / DEFAULT_DATA).mkdir()
    monkeypatch.chdir(tmp_path)
    async with aiohttp.ClientSession(services.url) as session, session.get("/v1/streams/$catalog") as response:
        answer = await response.json()
    assert answer.pop("data")  # as a cluster's catalog answers

    async def answers(request: web.Request) -> web.Response:
        return web.json_response(answer) if "catalog" in request.path else web.json_response({"items": []})

    app = web.Application()
    app.router.add_get("/{path:.*}", answers)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        (found,) = await looked(url)
        assert found == ok("data", "the catalog names no data directory, so none is looked at")
        assert await data_directory(url, PATIENCE) is None
        answer["data"] = str(tmp_path / DEFAULT_DATA)  # as through a tunnel to another machine with such a directory
        (found,) = await looked(url)
        assert found.verdict is Verdict.WARN
        assert "the catalog names it, but no process of this machine uses it" in found.seen
    assert await looked(f"http://127.0.0.1:{unused_tcp_port}") == [], "no catalog answers, and it is not the usual one"


async def looked(url: str, data: Path | None = None) -> list[Finding]:
    return [each for each in await examine(url, data, PATIENCE) if each.check == "data"]


def test_findings_say_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [ok("a", "fine"), warn("b", "odd\x1b", "look"), fail("c", "broken", "mend")]
    print_findings(findings)
    assert capsys.readouterr().out.splitlines() == [
        "ok    a            fine",
        "warn  b            odd\\x1b",
        "                   -> look",
        "fail  c            broken",
        "                   -> mend",
    ]
    assert summary(findings) == "1 ok, 1 warn, 1 fail"
    assert summary(findings[:1]) == "all 1 checks are well"
    assert findings[0].to_json() == {"check": "a", "verdict": str(Verdict.OK), "seen": "fine", "advice": ""}
