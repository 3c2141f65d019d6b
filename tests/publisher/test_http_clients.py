"""The clients of docs/http.md, in a browser and in jq: each epoch once and whole, beside the client of this library."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.browser import Site, needs_chromium
from tests.patience import PATIENCE

import epochal

CLIENTS = Path(__file__).parents[2] / "examples" / "http"
PAGE = """<!doctype html><title>epochs</title><script type="module">
import {follow} from "/epochs.js"
const addresses = async () => (await fetch("/addresses")).json()
const one = since => new Promise(resolve => {
  const found = {epochs: [], aborted: []}
  follow({segments: ["0", "1"], addresses, since,
    onEpoch: (time, batches) => found.epochs.push([time, batches.flatMap(batch => batch.records)]),
    onAborted: time => found.aborted.push(time),
    onComplete: () => resolve(found), onError: problem => resolve({problem})})
})
const [start, now] = await Promise.all([one("start"), one("now")])
await fetch("/found", {method: "POST", body: JSON.stringify({start, now})})
</script>"""


async def epochs_of(client: epochal.Client, stream: str) -> dict[str, list[Any]]:
    """What this library's subscriber is given from the start."""
    found: dict[str, list[Any]] = {"epochs": [], "aborted": []}
    async with client.subscribe(stream, since="start") as sub:
        async for epoch in sub.epochs():
            if isinstance(epoch, epochal.Epoch):
                found["epochs"].append([list(epoch.time), list(epoch.records())])
            else:
                found["aborted"].append(list(epoch.time))
    return found


def alike(found: dict[str, Any]) -> dict[str, Any]:
    """Within an epoch the order of segments, and between incomparable epochs that of the two, is free."""
    return {
        "epochs": sorted([time, sorted(records)] for time, records in found["epochs"]),
        "aborted": sorted(found["aborted"]),
    }


async def publish_first(w1: epochal.Writer) -> None:
    await w1.append((0, 0), ["before"], key=b"a")


async def publish_rest(w1: epochal.Writer, w2: epochal.Writer, lose_publisher: Any) -> None:
    keys = [b"a", b"b", b"c", b"d"]  # of both segments
    await w1.append((0, 0), ["under way at the join"], key=b"b")
    for writer in (w1, w2):
        await writer.advance((1, 0))
    for key in keys:
        await w1.append((1, 0), [f"w1 {key.decode()}"], key=key)
        await w2.append((1, 1), [f"w2 {key.decode()}"], key=key)
    await w2.append((2, 0), ["aborted"], key=b"a")
    await w2.abort((2, 0))
    await w1.append((3, 0), ["before the crash"], key=b"a")
    await lose_publisher()
    await w2.append((3, 0), ["after the crash"], key=b"b")
    await w1.finish()
    await w2.finish()


STORED: dict[str, Any] = {
    "time": {"shape": "(int, int)"}, "payload": {"encoding": "json"}, "history": {"storage": {"size": "1Gi"}},
    "progress": {"writerTimeout": "10m"}, "segments": 2,
}  # fmt: skip


@pytest.mark.long
@needs_chromium
@pytest.mark.rule("Q5")
async def test_a_page_is_given_each_epoch_once_and_whole(
    declare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def addresses(request: web.Request) -> web.StreamResponse:
        return web.json_response(dict.fromkeys("01", running[-1].addresses["http"]))

    site = Site({"/page.html": PAGE, "/epochs.js": (CLIENTS / "epochs.js").read_text()}, addresses)
    stream, running = declare(**STORED), list[Any]()

    async def lose_publisher() -> None:
        running[-1].stop()  # with -9
        running.append(stream.start("0,1", data=tmp_path))

    async with site.served() as origin:
        monkeypatch.setenv("EPOCHAL_PUBLISHER_CORS_ORIGINS", origin)
        running.append(stream.start("0,1", data=tmp_path))
        try:
            async with (
                epochal.connect(stream.catalog) as client,
                client.writer(stream.name, "w1") as w1,
                client.writer(stream.name, "w2") as w2,
            ):
                await publish_first(w1)
                async with site.visited("/page.html", tmp_path / "profile"):
                    while running[-1].metric("http_readers") != 4:  # noqa: ASYNC110  # two readers of two segments
                        await asyncio.sleep(0.05)
                    await publish_rest(w1, w2, lose_publisher)
                    async with asyncio.timeout(PATIENCE):
                        found = await site.found
                expected = alike(await epochs_of(client, stream.name))
        finally:
            running[-1].stop()
    assert [time for time, _ in expected["epochs"]] == [[0, 0], [1, 0], [1, 1], [3, 0]]
    assert alike(found["start"]) == expected
    assert alike(found["now"]) == {**expected, "epochs": expected["epochs"][1:]}, "the first was under way at the join"


WATCH = """<script type="module">
const complete = () => document.getElementById("state").textContent === "the stream is complete"
while (!complete()) await new Promise(next => setTimeout(next, 50))
const rows = [...document.querySelectorAll("#hours tr")].map(row => [...row.cells].map(cell => cell.textContent))
await fetch("/found", {method: "POST", body: JSON.stringify(rows)})
</script>"""


@pytest.mark.long
@needs_chromium
@pytest.mark.rule("Q5")
async def test_the_dashboard_shows_each_hour_once_it_is_complete(
    declare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (CLIENTS / "dashboard.html").read_text().replace("</html>", WATCH + "</html>")
    site = Site({"/dashboard.html": page, "/epochs.js": (CLIENTS / "epochs.js").read_text()})
    stream = declare(payload={"encoding": "json"}, segments=2)
    async with site.served() as origin:
        monkeypatch.setenv("EPOCHAL_PUBLISHER_CORS_ORIGINS", origin)
        running = stream.start("0,1")
        try:
            async with epochal.connect(stream.catalog) as client, client.writer(stream.name) as writer:
                asked = f"?segments=0,1&publisher={running.addresses['http']}"
                async with site.visited("/dashboard.html" + asked, tmp_path / "profile"):
                    for key in (b"a", b"b", b"c", b"d"):
                        await writer.append(7, [{"delay": 10}, {"delay": 20}], key=key)
                    await writer.advance(8)
                    await writer.append(8, [{"delay": 1}])
                    await writer.abort(8)
                    await writer.append(9, [{"delay": -4}])
                    await writer.finish()
                    async with asyncio.timeout(PATIENCE):
                        found = await site.found
        finally:
            running.stop()
    assert sorted(found) == [["7", "8", "15.0", ""], ["8", "", "", "aborted"], ["9", "1", "-4.0", ""]]


@pytest.mark.long
@needs_chromium
async def test_a_page_of_another_origin_reads_nothing(
    declare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def addresses(request: web.Request) -> web.StreamResponse:
        return web.json_response({"0": running.addresses["http"]})

    script = """<script type="module">
    const address = (await (await fetch("/addresses")).json())["0"]
    const found = await fetch(address + "/v1/segments/0/events").then(() => "read", () => "blocked")
    await fetch("/found", {method: "POST", body: JSON.stringify(found)})</script>"""
    site = Site({"/page.html": script}, addresses)
    monkeypatch.setenv("EPOCHAL_PUBLISHER_CORS_ORIGINS", "https://other.example")
    running = declare().start()
    try:
        async with site.served(), site.visited("/page.html", tmp_path / "profile"), asyncio.timeout(PATIENCE):
            assert await site.found == "blocked"
    finally:
        running.stop()


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
async def test_jq_makes_the_same_epochs_of_what_curl_gets(declare: Any, tmp_path: Path) -> None:
    stream = declare(**STORED)
    running = [stream.start("0,1", data=tmp_path)]

    async def lose_publisher() -> None:
        running[-1].stop()
        running.append(stream.start("0,1", data=tmp_path))

    try:
        async with (
            epochal.connect(stream.catalog) as client,
            client.writer(stream.name, "w1") as w1,
            client.writer(stream.name, "w2") as w2,
        ):
            await publish_first(w1)
            await publish_rest(w1, w2, lose_publisher)
            expected = alike(await epochs_of(client, stream.name))
        files = []
        for segment in "01":
            status, lines = running[-1].get(f"/v1/segments/{segment}/events?since=start&limit=10000")
            assert status == 200
            files.append(tmp_path / f"segment-{segment}.jsonl")
            files[-1].write_text(lines)
        command: list[Any] = ["jq", "-n", "-c", "-f", CLIENTS / "epochs.jq", *files]
        printed = await asyncio.to_thread(lambda: subprocess.check_output(command, timeout=PATIENCE, text=True))
    finally:
        running[-1].stop()
    found = [[epoch["time"], sorted(epoch["records"])] for epoch in map(json.loads, printed.splitlines())]
    assert found == expected["epochs"]
