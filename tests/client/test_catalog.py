"""The catalog client against a real catalog process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE

from epochal.catalog_api import relays, sessions, streams
from epochal.catalog_api.requests import SegmentReport
from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.url import catalog_advice, catalog_url
from epochal.errors import (
    CatalogUnavailable,
    ConfigError,
    EpochalError,
    ManifestError,
    NoPublisher,
    SchemaMismatch,
    StreamComplete,
    StreamNotFound,
    Superseded,
    WriterFenced,
)
from epochal.local.child import Child, console_script

ADDRESSES = {"events": "tcp://127.0.0.1:1", "requests": "tcp://127.0.0.1:2", "ingest": "tcp://127.0.0.1:3"}


def manifest(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "epochal.dev/v1alpha1",
        "kind": "Stream",
        "metadata": {"name": "flights", "namespace": "demo"},
        "spec": {"time": {"shape": "(int, int)"}, "payload": {"encoding": "msgpack"}, **spec},
    }


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[CatalogClient]:
    command = [
        console_script("epochal-catalog"),
        "serve",
        "--data",
        str(tmp_path / "c"),
        "--port",
        "0",
        "--exit-with-stdin",
    ]
    child = await Child.start(command, tmp_path / "log", 1 << 20)
    try:
        async with CatalogClient(await child.ready(30)) as client:
            yield client
    finally:
        assert await child.stop(10) == 0


@pytest.mark.parametrize("url", ["", "x", "127.0.0.1:8700", "ftp://x", "http://"])
def test_what_is_no_url_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EPOCHAL_CATALOG", raising=False)
    if url:
        with pytest.raises(ConfigError, match="http://HOST:PORT"):
            catalog_url(url)
    else:
        assert catalog_url(url) == "http://127.0.0.1:8700"


def test_the_environment_names_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_CATALOG", "http://x:1/")
    assert catalog_url() == "http://x:1"
    assert catalog_url("http://y:2") == "http://y:2"


async def test_in_a_pod_the_catalog_is_the_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EPOCHAL_CATALOG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert catalog_url() == "http://epochal-catalog.epochal.svc:8700"
    monkeypatch.setattr("epochal.client.catalog.url.CLUSTER_CATALOG", "http://127.0.0.1:1")  # where nobody answers
    async with CatalogClient(patience=0.0) as catalog:
        with pytest.raises(CatalogUnavailable, match=r"pod looks when EPOCHAL_CATALOG is not set: is there a release"):
            await catalog.list()
    async with CatalogClient("http://127.0.0.2:1", patience=0.0) as catalog:
        with pytest.raises(CatalogUnavailable, match="epochal up"):
            await catalog.list()
    assert "is that the Service of a catalog" in catalog_advice("http://catalog.nowhere.svc:8700")
    monkeypatch.setenv("EPOCHAL_CATALOG", "http://x:1/")
    assert catalog_url() == "http://x:1"


async def test_declares_and_reads_streams(catalog: CatalogClient) -> None:
    created, is_new = await catalog.apply(manifest(segments=3), "demo", "flights")
    assert is_new
    assert (created.qualified, created.phase, created.declared().spec.segments) == ("demo/flights", "Pending", 3)
    assert [segment.id for segment in created.segments] == ["0", "1", "2"]
    assert (created.segments[0].lo, created.segments[-1].hi) == (0, 2**64)
    again, is_new = await catalog.apply(manifest(segments=3), "demo", "flights")
    assert not is_new
    assert (again.uid, again.generation) == (created.uid, created.generation)
    assert await catalog.list() == (again,)
    await catalog.delete("demo", "flights")
    with pytest.raises(StreamNotFound):
        await catalog.get("demo", "flights")


async def test_deletes_only_the_stream_that_is_meant(catalog: CatalogClient) -> None:
    old, _ = await catalog.apply(manifest(), "demo", "flights")
    await catalog.delete("demo", "flights", uid=old.uid)
    new, _ = await catalog.apply(manifest(), "demo", "flights")
    with pytest.raises(EpochalError, match=new.uid) as caught:
        await catalog.delete("demo", "flights", uid=old.uid)
    assert (caught.value.code, caught.value.retryable) == ("other_stream", False)
    assert (await catalog.get("demo", "flights")).uid == new.uid


async def test_refusals_carry_their_problems(catalog: CatalogClient) -> None:
    with pytest.raises(ManifestError) as caught:
        await catalog.apply(manifest(segments=0, relay=1), "demo", "flights")
    assert {problem.path for problem in caught.value.problems} == {"spec.segments", "spec.relay"}
    await catalog.apply(manifest(), "demo", "flights")
    with pytest.raises(ManifestError, match="cannot change") as caught:
        await catalog.apply(manifest(segments=2), "demo", "flights")
    assert [problem.path for problem in caught.value.problems] == ["spec.segments"]


@pytest.mark.rule("S27")
async def test_a_lookup_waits_for_a_publisher(catalog: CatalogClient) -> None:
    with pytest.raises(StreamNotFound, match="get streams"):
        await catalog.lookup("demo", "flights")
    waiting = asyncio.create_task(catalog.lookup("demo", "flights", wait=PATIENCE))
    stream, _ = await catalog.apply(manifest(), "demo", "flights")
    with pytest.raises(NoPublisher):
        await catalog.lookup("demo", "flights")
    assert not waiting.done()
    registration = await catalog.register(
        "p", instance="a1", stream="demo/flights", uid=stream.uid, segments=["0"], addresses=ADDRESSES
    )
    found = await waiting
    assert found.uid == stream.uid
    assert found.segments[0].publisher is not None
    assert dict(found.segments[0].publisher.addresses) == ADDRESSES
    assert found.segments[0].incarnation == registration.segments[0].incarnation


@pytest.mark.rule("S28")
async def test_a_lookup_checks_what_is_expected(catalog: CatalogClient) -> None:
    await catalog.apply(manifest(), "demo", "flights")
    with pytest.raises(SchemaMismatch):
        await catalog.lookup("demo", "flights", wait=PATIENCE, time="int")
    with pytest.raises(SchemaMismatch):
        await catalog.lookup("demo", "flights", wait=PATIENCE, encoding="json")


async def test_a_publishers_life(catalog: CatalogClient) -> None:
    stream, _ = await catalog.apply(manifest(), "demo", "flights")
    names: dict[str, Any] = {"stream": "demo/flights", "uid": stream.uid, "segments": ["0"], "addresses": ADDRESSES}
    first = await catalog.register("p", instance="a1", **names)
    grant = first.segments[0]
    assert (grant.id, grant.lo, grant.hi, grant.lower, grant.complete) == ("0", 0, 2**64, None, False)
    report = SegmentReport(grant.incarnation, [(0, 1), (1, 0)], ["w1"], counters={"events": 3})
    assert not (await catalog.renew("p", first.token, {"0": report})).complete
    seen = await catalog.get("demo", "flights")
    assert seen.phase == "Ready"
    assert set(seen.segments[0].lower or ()) == {(0, 1), (1, 0)}
    assert seen.writers == ("w1",)
    (listed,) = [item for item in await catalog.publishers() if item.token == first.token]
    assert (listed.id, listed.stream, listed.segments) == ("p", "demo/flights", {"0": grant.incarnation})
    second = await catalog.register("p", instance="b2", **names)
    assert second.token > first.token
    assert second.segments[0].incarnation > grant.incarnation
    assert set(second.segments[0].lower or ()) == {(0, 1), (1, 0)}
    with pytest.raises(Superseded):
        await catalog.renew("p", first.token, {"0": report})
    with pytest.raises(EpochalError) as caught:
        await catalog.renew("nobody", 1, {})
    assert caught.value.code == "unknown_publisher"
    await catalog.deregister("p", second.token)
    assert (await catalog.get("demo", "flights")).phase == "Pending"


@pytest.mark.rule("E7")
async def test_completion_is_recorded_for_ever(catalog: CatalogClient) -> None:
    stream, _ = await catalog.apply(manifest(), "demo", "flights")
    first = await catalog.session("demo", "flights", "jobs/q 1/é")
    second = await catalog.session("demo", "flights", "jobs/q 1/é")
    assert second.number > first.number
    assert (first.first, second.first, second.uid) == (True, False, stream.uid)
    lease = await catalog.register(
        "p", instance="a1", stream="demo/flights", uid=stream.uid, segments=["0"], addresses=ADDRESSES
    )
    marks: dict[str, Any] = {"publisher": "p", "token": lease.token, "incarnation": lease.segments[0].incarnation}
    assert not await catalog.finishing("demo/flights", "0", number=2, finishing=False, **marks)
    assert not await catalog.finishing("demo/flights", "0", number=1, finishing=True, **marks), "stale"
    assert await catalog.finishing("demo/flights", "0", number=3, finishing=True, **marks)
    assert await catalog.finishing("demo/flights", "0", number=4, finishing=False, **marks)
    with pytest.raises(StreamComplete):
        await catalog.session("demo", "flights", "w")
    assert (await catalog.lookup("demo", "flights")).phase == "Complete"


async def test_an_operation_is_called_by_its_declaration(catalog: CatalogClient) -> None:
    """So that an operation needs no method: its path, body, answer and query are declared."""
    stream, _ = await catalog.apply(manifest(), "demo", "flights")
    path = {"namespace": "demo", "name": "flights", "writer": "jobs/1"}
    first = await catalog.call(sessions.OPEN, None, path)
    second = await catalog.call(sessions.OPEN, None, path, query={"after": first.number})
    assert (first.first, second.before) == (True, first.number)
    with pytest.raises(WriterFenced):
        await catalog.call(sessions.OPEN, None, path, query={"after": first.number})
    assert [found.writer for found in await catalog.items(sessions.LIST, path)] == ["jobs/1"]
    assert await catalog.items(relays.LIST, namespace="demo") == ()
    assert [found.uid for found in await catalog.items(streams.LIST, namespace="demo")] == [stream.uid]
    with pytest.raises(KeyError, match="name"):
        await catalog.call(streams.GET, None, {"namespace": "demo"})
    await catalog.call(streams.DELETE, None, path)
    with pytest.raises(StreamNotFound):
        await catalog.call(streams.GET, None, path)
