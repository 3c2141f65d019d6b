"""Local mode with the real services: what is declared runs, what dies comes back, nothing is left behind."""

import asyncio
import os
import re
import shutil
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.processes import runs, until_ended

import epochal
from epochal.catalog_api.answers import StreamInfo
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import ConfigError, ManifestError, Unavailable
from epochal.local import LocalMode, LocalSettings
from epochal.local.child import console_script

QUICK = LocalSettings(poll_interval=0.05)
SHORT = 0.7
"""Seconds in which a small process is ready, or has been killed."""
DEDICATED = {"dedicated": True}
ONE_SHARED = replace(QUICK, shared_processes=1)
STORED: dict[str, Any] = {"history": {"storage": {"size": "1Gi"}}}


def manifest(name: str = "flights", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "epochal.dev/v1alpha1",
        "kind": "Stream",
        "metadata": {"name": name, "namespace": "demo"},
        "spec": {"time": {"shape": "int"}, "payload": {"encoding": "msgpack"}, **spec},
    }


async def until_served(client: CatalogClient, incarnation: int = 1) -> StreamInfo:
    """The stream once all of its segments have a publisher of at least this incarnation that has reported."""
    async with asyncio.timeout(PATIENCE):
        while True:
            stream = await client.lookup("demo", "flights", wait=PATIENCE)
            if all(item.incarnation >= incarnation and item.lower is not None for item in stream.segments):
                return stream
            await asyncio.sleep(0.05)


async def test_dedicated_publishers_come_and_go_with_streams() -> None:
    async with LocalMode(settings=QUICK) as local, CatalogClient(local.url) as client:
        await client.apply(manifest(segments=3, publishers={"segmentsPerPod": 2, **DEDICATED}), "demo", "flights")
        stream = await until_served(client)
        owners = [segment.publisher.id for segment in stream.segments if segment.publisher is not None]
        assert owners == ["demo.flights-0", "demo.flights-0", "demo.flights-1"]
        pids = local.processes
        assert pids.keys() == {"catalog", "demo.flights-0", "demo.flights-1"}
        await client.delete("demo", "flights")
        await until_ended(pids["demo.flights-0"], pids["demo.flights-1"])
        assert runs(pids["catalog"])
        await client.apply(manifest(publishers=DEDICATED), "demo", "flights")
        assert (await until_served(client)).uid != stream.uid
        data, pids = local.data, local.processes
    assert not any(map(runs, pids.values()))
    assert not data.exists(), "a directory of its own is removed"


async def test_one_publisher_serves_a_stream_where_it_is_not_said_how_many_segments_one_serves(tmp_path: Path) -> None:
    apart = manifest("apart", segments=3, publishers={"segmentsPerPod": 1, **DEDICATED})
    names = {"demo.apart-0", "demo.apart-1", "demo.apart-2", "demo.flights-0", "catalog"}
    async with LocalMode(tmp_path, settings=QUICK) as local, CatalogClient(local.url) as client:
        await client.apply(apart, "demo", "apart")
        await client.apply(manifest(segments=20, publishers=DEDICATED), "demo", "flights")
        stream = await until_served(client)
        assert [segment.publisher and segment.publisher.id for segment in stream.segments] == ["demo.flights-0"] * 20
        await client.lookup("demo", "apart", wait=PATIENCE)
        assert local.processes.keys() == names
    async with LocalMode(tmp_path, settings=QUICK) as local:
        assert local.processes.keys() == names, "as it was stored"


async def test_a_publisher_of_many_segments_has_more_time_to_read_their_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before it is ready it would read them from the start, and so for ever."""
    slow = f"import time, sys; time.sleep({3 * SHORT}); print('ready x', flush=True); sys.stdin.read()"
    monkeypatch.setattr(LocalMode, "_publisher_command", lambda *_: [sys.executable, "-S", "-c", slow])
    async with LocalMode(settings=QUICK) as local, CatalogClient(local.url) as client:
        local.settings = replace(QUICK, start_timeout=SHORT)  # the catalog is there
        await client.apply(manifest("one", publishers=DEDICATED), "demo", "one")
        await client.apply(manifest(segments=20, publishers=DEDICATED), "demo", "flights")
        async with asyncio.timeout(PATIENCE):
            while local._publishers.keys() != {"demo.one-0", "demo.flights-0"}:  # noqa: ASYNC110 - it looks by itself
                await asyncio.sleep(0.02)
            _, one = local._publishers["demo.one-0"]
            _, many = local._publishers["demo.flights-0"]
            await many.was_ready.wait()
            while not one.restarts:  # noqa: ASYNC110 - nothing tells of a restart
                await asyncio.sleep(0.02)
        assert (one.was_ready.is_set(), many.restarts) == (False, 0)


async def test_a_running_stream_goes_on_when_its_segments_are_divided_over_other_publishers(tmp_path: Path) -> None:
    spec: dict[str, Any] = {"segments": 3, **STORED}
    layouts: list[dict[str, Any]] = [{}, {"segmentsPerPod": 1}, {"segmentsPerPod": 2, **DEDICATED}, {}]
    expected = [(time, list(range(30))) for time in range(10 * len(layouts))]
    async with (
        LocalMode(tmp_path, settings=QUICK) as local,
        CatalogClient(local.url) as catalog,
        epochal.connect(local.url) as client,
        asyncio.timeout(PATIENCE * 2),
    ):
        await catalog.apply(manifest(**spec), "demo", "flights")
        async with client.subscribe("demo/flights") as live, client.writer("demo/flights", "w") as writer:
            await live.ready.wait()
            reading = asyncio.create_task(read(live))
            for part, layout in enumerate(layouts):
                for time in range(10 * part, 10 * part + 10):
                    for number in range(30):
                        writer.append_nowait(time, [number], key=b"%d" % number)
                        if (time, number) == (10 * part + 5, 15):  # within an epoch
                            await catalog.apply(manifest(**spec, publishers=layout), "demo", "flights")
                    await writer.advance(time + 1)
                size = layout.get("segmentsPerPod", 3)
                await until_laid_out(catalog, [f"demo.flights-{index // size}" for index in range(3)])
                with pytest.raises(ManifestError, match=r"spec\.segments: cannot change"):
                    await catalog.apply(manifest(**{**spec, "segments": 6}), "demo", "flights")
            await writer.finish()
            assert await reading == expected
        assert {name.rstrip("0123456789") for name in local.processes} == {"catalog", "shared-"}
        async with client.subscribe("demo/flights", since="start") as late:
            assert await read(late) == expected, "all of it is on the disk"


async def read(subscription: epochal.Subscription) -> list[tuple[Any, list[Any] | None]]:
    """All epochs to the end of the stream; None for the records of one that was aborted."""
    return [
        (epoch.time, sorted(epoch.records()) if isinstance(epoch, epochal.Epoch) else None)
        async for epoch in subscription.epochs()
    ]


async def until_laid_out(client: CatalogClient, owners: list[str]) -> None:
    """Until the segments have these publishers."""
    while [item.publisher and item.publisher.id for item in (await until_served(client)).segments] != owners:  # noqa: ASYNC110 - a lookup waits for no certain publisher
        await asyncio.sleep(0.05)


async def test_a_publisher_that_dies_is_replaced() -> None:
    async with LocalMode(settings=QUICK) as local, CatalogClient(local.url) as client:
        await client.apply(manifest(publishers=DEDICATED), "demo", "flights")
        before = await until_served(client)
        killed = local.processes["demo.flights-0"]
        os.kill(killed, signal.SIGKILL)
        after = await until_served(client, before.segments[0].incarnation + 1)
        assert after.segments[0].publisher != before.segments[0].publisher
        assert local.processes["demo.flights-0"] != killed


async def test_a_catalog_that_dies_is_replaced_and_publishers_go_on(tmp_path: Path) -> None:
    async with LocalMode(tmp_path, port=free_port(), settings=QUICK) as local, CatalogClient(local.url) as client:
        await client.apply(manifest(), "demo", "flights")
        before = await until_served(client)
        pids = local.processes
        os.kill(pids["catalog"], signal.SIGKILL)
        await until_ended(pids["catalog"])
        after = await until_served(client)
        assert after.uid == before.uid
        assert after.segments[0].incarnation == before.segments[0].incarnation, "the same publisher serves on"
        assert local.processes["shared-0"] == pids["shared-0"]
        assert local.processes["catalog"] != pids["catalog"]


async def test_streams_are_there_again_the_next_time(tmp_path: Path) -> None:
    async with LocalMode(tmp_path, settings=QUICK) as local, CatalogClient(local.url) as client:
        await client.apply(manifest(), "demo", "flights")
        first = await until_served(client)
    assert not (tmp_path / "lock").exists()
    async with LocalMode(tmp_path, settings=QUICK) as local, CatalogClient(local.url) as client:
        assert local.processes.keys() == {"catalog", "shared-0"}, "ready means that they are up"
        second = await until_served(client, first.segments[0].incarnation + 1)
        assert second.uid == first.uid


async def test_a_directory_in_use_is_refused_at_once(tmp_path: Path) -> None:
    async with LocalMode(tmp_path, settings=QUICK) as local:
        with pytest.raises(ConfigError, match=f"in use by another `epochal up` .process {os.getpid()}"):
            await LocalMode(tmp_path).__aenter__()
        assert runs(local.processes["catalog"])


async def test_a_port_in_use_is_refused_at_once(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match=r"in use.*--port"),
    ):
        await LocalMode(tmp_path, port=taken.getsockname()[1]).__aenter__()
    assert not (tmp_path / "lock").exists()


async def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        await LocalMode(tmp_path / "file" / "x").__aenter__()


async def test_a_catalog_that_cannot_start_is_reported_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "catalog").touch()  # where its directory should be
    with pytest.raises(Unavailable, match=r"catalog\.log.*\n.*data directory") as raised:
        await LocalMode(tmp_path, settings=LocalSettings(start_timeout=600.0)).__aenter__()
    assert "the catalog does not start" in str(raised.value)
    assert not (tmp_path / "lock").exists()


async def test_the_logs_of_a_deleted_stream_are_removed_and_only_those(tmp_path: Path) -> None:
    async with LocalMode(data=tmp_path, settings=QUICK) as local, CatalogClient(local.url) as catalog:
        uids = {}
        for name in ("goes", "stays"):
            await catalog.apply(manifest(name, **STORED), "demo", name)
            uids[name] = (await catalog.lookup("demo", name, wait=PATIENCE)).uid
        assert {path.name for path in (tmp_path / "streams").iterdir() if path.is_dir()} == set(uids.values())
        await catalog.delete("demo", "goes")
        async with asyncio.timeout(PATIENCE):
            while (tmp_path / "streams" / uids["goes"]).exists():  # noqa: ASYNC110 - a directory announces nothing
                await asyncio.sleep(0.02)
    assert [path.name for path in (tmp_path / "streams").iterdir() if path.is_dir()] == [uids["stays"]]


async def until_here(client: CatalogClient, data: Path) -> Path:
    """A stream with storage; returns the directory of its logs."""
    await client.apply(manifest(**STORED), "demo", "flights")
    return data / "streams" / (await until_served(client)).uid


async def test_the_logs_of_a_stream_deleted_just_before_the_end_go_at_the_next_start(tmp_path: Path) -> None:
    async with LocalMode(tmp_path, settings=QUICK) as local, CatalogClient(local.url) as client:
        logs = await until_here(client, tmp_path)
    blind = LocalSettings(poll_interval=3600.0)
    async with LocalMode(tmp_path, settings=blind) as local, CatalogClient(local.url) as client:
        await client.delete("demo", "flights")
    assert logs.exists()
    async with LocalMode(tmp_path, settings=QUICK), asyncio.timeout(PATIENCE):
        while logs.exists():  # noqa: ASYNC110 - a directory announces nothing
            await asyncio.sleep(0.02)


async def test_a_catalog_that_lost_its_database_removes_nothing(tmp_path: Path) -> None:
    async with LocalMode(tmp_path, port=free_port(), settings=QUICK) as local, CatalogClient(local.url) as client:
        logs = await until_here(client, tmp_path)
        before = local.processes
        os.kill(before["catalog"], signal.SIGSTOP)  # so that nobody sees the file go
        for path in (tmp_path / "catalog").glob("catalog.sqlite*"):
            path.unlink()
        os.kill(before["catalog"], signal.SIGKILL)
        await until_forgotten(local, "demo.flights-0")
        assert (await client.listing()).streams == ()
        new = manifest("other", **STORED)
        await client.apply(new, "demo", "other")
        other = tmp_path / "streams" / (await client.lookup("demo", "other", wait=PATIENCE)).uid
        await client.delete("demo", "other")
        async with asyncio.timeout(PATIENCE):
            while other.exists():  # noqa: ASYNC110 - a directory announces nothing
                await asyncio.sleep(0.02)
        assert any(logs.rglob("*.log")), "what the new catalog never knew stays"


async def until_forgotten(local: LocalMode, publisher: str) -> None:
    """Until nothing of a publisher is left."""
    async with asyncio.timeout(PATIENCE):
        while publisher in local._publishers or local._stopping:  # noqa: ASYNC110 - it looks by itself
            await asyncio.sleep(0.01)


async def until_relayed(client: CatalogClient, count: int) -> set[str]:
    """The ids of a stream's relays once so many are ready, and no others are listed."""
    async with asyncio.timeout(PATIENCE):
        while True:
            relays = await client.relays("demo", "flights")
            if len(relays) == count and all(relay.state == "ready" for relay in relays):
                assert {relay.name for relay in relays} <= {"flights"}
                return {relay.id for relay in relays}
            await asyncio.sleep(0.05)


async def until_running(local: LocalMode, *names: str) -> dict[str, int]:
    """The processes once they are these: a quick one is ready before the loop that started it has taken note of it."""
    async with asyncio.timeout(PATIENCE):
        while local.processes.keys() != set(names):  # noqa: ASYNC110 - it announces no process
            await asyncio.sleep(0.01)
    return local.processes


async def test_relays_run_as_the_stream_says_come_back_and_go_with_it() -> None:
    async with LocalMode(port=free_port(), settings=QUICK) as local, CatalogClient(local.url) as client:
        await client.apply(manifest(relays=2, publishers=DEDICATED), "demo", "flights")
        first = await until_relayed(client, 2)
        pids = await until_running(local, "catalog", "demo.flights-0", "demo.flights.relay-0", "demo.flights.relay-1")
        os.kill(pids["demo.flights.relay-1"], signal.SIGKILL)
        async with asyncio.timeout(PATIENCE):
            while (await until_relayed(client, 2)) == first:  # noqa: ASYNC110 - the catalog tells it when asked
                await asyncio.sleep(0.05)
        async with (
            epochal.connect(local.url) as clients,
            clients.writer("demo/flights", writer_id="w") as writer,
            clients.subscribe("demo/flights", via="relay:flights") as reader,
        ):
            async with asyncio.timeout(PATIENCE):
                await reader.ready.wait()
                await writer.append(1, [{"a": 1}])
                await writer.advance(2)
                assert (await anext(reader.epochs())).time == 1
            assert set(reader.via.values()) == {"relay:flights"}
        kept = local.processes["demo.flights-0"]
        await client.apply(manifest(relays=1, publishers=DEDICATED), "demo", "flights")
        await until_relayed(client, 1)
        assert local.processes["demo.flights-0"] == kept == pids["demo.flights-0"], "its publisher goes on"
        await client.delete("demo", "flights")
        last = local.processes
        # They also end by themselves when they hear of it, and may be started once more before the next look.
        await until_running(local, "catalog")
        await until_ended(*(pid for name, pid in last.items() if name != "catalog"))


async def until_at(client: CatalogClient, publisher: int, relay: int) -> None:
    """Until the stream's publisher and its only relay have these HTTP ports."""
    wanted = f"http://127.0.0.1:{publisher}", [f"http://127.0.0.1:{relay}"]
    async with asyncio.timeout(PATIENCE):
        while True:
            owner = (await client.lookup("demo", "flights", wait=PATIENCE)).segments[0].publisher
            relays = [each.addresses["http"] for each in await client.relays("demo", "flights")]
            if owner is not None and (owner.addresses["http"], relays) == wanted:
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("dedicated", [False, True])
async def test_publishers_and_relays_have_the_http_ports_that_are_declared(tmp_path: Path, dedicated: bool) -> None:
    one, two, other = free_port(), free_port(), free_port()
    spec: dict[str, Any] = {"segments": 2, "relays": 1, **STORED}
    told: list[str] = []
    async with LocalMode(tmp_path, settings=ONE_SHARED, tell=told.append) as local, CatalogClient(local.url) as client:
        publishers = {"dedicated": dedicated, "httpPort": one}
        await client.apply(manifest(**spec, publishers=publishers, relayHttpPort=two), "demo", "flights")
        await until_at(client, one, two)
        assert f"relay demo.flights.relay-0 is ready: http://127.0.0.1:{two}" in told
        publishers["httpPort"] = other
        await client.apply(manifest(**spec, publishers=publishers, relayHttpPort=one), "demo", "flights")
        await until_at(client, other, one)
        assert f"relay demo.flights.relay-0 is ready: http://127.0.0.1:{one}" in told
    async with LocalMode(tmp_path, settings=ONE_SHARED) as local, CatalogClient(local.url) as client:
        await until_at(client, other, one)


@pytest.mark.parametrize("dedicated", [False, True])
async def test_a_publisher_waits_for_its_port_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dedicated: bool
) -> None:
    monkeypatch.setenv("EPOCHAL_PUBLISHER_PORT_RETRIES", "0")
    name = "demo.flights-0" if dedicated else "shared-0"
    log = tmp_path / "logs" / "publishers" / f"{name}.log"
    async with LocalMode(tmp_path, settings=ONE_SHARED) as local, CatalogClient(local.url) as client:
        relay = free_port()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            spec: dict[str, Any] = {"relays": 1, "relayHttpPort": relay}
            publishers = {"dedicated": dedicated, "httpPort": port}
            await client.apply(manifest(**spec, publishers=publishers), "demo", "flights")
            async with asyncio.timeout(PATIENCE):
                while not log.exists() or f"port {port} on 127.0.0.1 is taken" not in log.read_text():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        await until_at(client, port, relay)


@pytest.mark.skipif(not all(map(shutil.which, ("bash", "curl", "jq"))), reason="the examples are for bash, curl and jq")
async def test_the_page_on_http_says_how_publishers_and_relays_are_found() -> None:
    page = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
    found = dict(re.findall(r"<!-- ([\w ]*)example: find -->\n```bash\n(.*?)```", page, re.DOTALL))
    assert found.keys() == {"local ", "local relay "}
    typed = (
        "".join(found.values()) + 'curl -sf "$PUBLISHER/healthz" "$RELAY/healthz" >/dev/null; echo $PUBLISHER $RELAY'
    )
    one, two = free_port(), free_port()
    async with LocalMode(settings=ONE_SHARED) as local, CatalogClient(local.url) as client:
        spec: dict[str, Any] = {"relays": 1, "relayHttpPort": two, "publishers": {"httpPort": one}}
        await client.apply(manifest(**spec), "demo", "flights")
        await until_at(client, one, two)
        path = f"{Path(console_script('epochal')).parent}:{os.environ['PATH']}"
        environment = {
            **os.environ,
            "PATH": path,
            "EPOCHAL_CATALOG": local.url,
            "CATALOG": local.url,
            "STREAM": "demo/flights",
        }
        process = await asyncio.create_subprocess_exec(
            "bash", "-ec", typed, env=environment, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        assert out.decode().split() == [f"http://127.0.0.1:{one}", f"http://127.0.0.1:{two}"]
        shown = await asyncio.create_subprocess_exec(
            console_script("epochal"), "describe", "stream", "demo/flights", env=environment,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        lines = (await shown.communicate())[0].decode()
        assert re.search(rf"Http at: +http://127\.0\.0\.1:{one}\n", lines)
        assert f"HTTP at http://127.0.0.1:{two}\n" in lines
