"""Lists: whole over their pages whatever happens meanwhile, from memory, and not sent twice."""

import asyncio
import json
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from epochal.client.catalog.catalog import CatalogClient
from epochal.resources.manifest import MAX_MANIFEST, StreamManifest
from epochal_catalog.domain.kinds import streams
from epochal_catalog.domain.pages import PAGE_BYTES
from epochal_catalog.domain.stream_entries import StreamRecord


async def pages(client: Any, path: str, limit: int, between: Any = None) -> list[list[Any]]:
    """All pages of a list; `between` is awaited between two of them."""
    found, query = [], f"?limit={limit}"
    while True:
        page = (await client("GET", path + query)).body
        found.append(page["items"])
        if page["next"] is None:
            return found
        query = f"?limit={limit}&after={page['next']}"
        if between is not None:
            await between()


@pytest.mark.rule("S32")
async def test_a_thousand_streams_are_listed_while_streams_are_added_and_deleted(client: Any, document: Any) -> None:
    names = [f"s{index:04}" for index in range(1000)]
    catalog = client.server.catalog
    manifests = [StreamManifest.from_document(document(f"demo/{name}")) for name in names]
    applied = [partial(streams.apply, manifest=item, uid=item.name, at="now") for item in manifests]
    for half in (applied[:500], applied[500:]):
        await asyncio.gather(*map(catalog.submit, half))
    added = 0

    async def change() -> None:
        nonlocal added
        added += 1
        await client.apply(f"demo/a{added}")  # before what was read
        await client.apply(f"demo/t{added}")  # behind it
        await client("DELETE", f"/v1/streams/demo/a{added}")

    listed = await pages(client, "/v1/streams", 150, change)
    assert [len(page) for page in listed[:6]] == [150] * 6
    found = [item["name"] for page in listed for item in page]
    assert [name for name in found if name.startswith("s")] == names
    assert len(set(found)) == len(found)
    assert found == sorted(found)
    async with CatalogClient(client.url) as catalog:
        everything = await catalog.list()
        assert [stream.name for stream in everything] == names + [f"t{index + 1}" for index in range(added)]


def with_annotations(document: dict[str, Any], size: int) -> dict[str, Any]:
    """A manifest that is about `size` bytes larger."""
    metadata = {**document["metadata"], "annotations": {f"note/{i}": "x" * 1000 for i in range(size // 1000)}}
    return {**document, "metadata": metadata}


@pytest.mark.rule("S32")
async def test_pages_are_bounded_in_bytes(client: Any, document: Any) -> None:
    """Forty large manifests, and no list of all streams came through any more."""
    names = [f"demo/s{index:02}" for index in range(40)]
    for name in names:
        answer = await client("PUT", f"/v1/streams/{name}", with_annotations(document(name), 60_000))
        assert answer.status == 201, answer.body
    listed = await pages(client, "/v1/streams", 1000)
    assert len(listed) == 3
    assert all(len(json.dumps(page)) < PAGE_BYTES + MAX_MANIFEST + 4096 for page in listed)
    assert [f"demo/{item['name']}" for page in listed for item in page] == names
    async with CatalogClient(client.url) as catalog:
        assert [stream.qualified for stream in await catalog.list()] == names


async def test_a_manifest_is_bounded_and_one_that_is_there_stays(client: Any, document: Any) -> None:
    large = with_annotations(document(), 70_000)
    refused = await client("PUT", "/v1/streams/demo/flights", large)
    assert (refused.status, refused.code) == (422, "invalid_manifest")
    (problem,) = refused.body["problems"]
    assert problem["path"] == "metadata.annotations"
    assert "65,536 are allowed" in problem["reason"]
    assert (await client("GET", "/v1/streams/demo/flights")).status == 404
    torn = document() | {"metadata": {"name": "flights", "namespace": "demo", "annotations": {"a": "\ud800"}}}
    refused = await client("PUT", "/v1/streams/demo/flights", torn)
    assert (refused.status, refused.code, refused.body["problems"][0]["path"]) == (
        422, "invalid_manifest", "metadata.annotations",
    )  # fmt: skip

    manifest = StreamManifest.from_document(large)  # as an earlier version took it
    record = StreamRecord("u", "demo", "flights", 1, manifest.to_document(), "now")
    await client.server.catalog.submit(lambda rules: rules.write(lambda: None, record))
    assert (await client("PUT", "/v1/streams/demo/flights", large)).status == 200
    larger = with_annotations(document(), 80_000)
    assert (await client("PUT", "/v1/streams/demo/flights", larger)).status == 422
    smaller = await client("PUT", "/v1/streams/demo/flights", document())
    assert (smaller.status, smaller.body["generation"]) == (200, 2)


@pytest.mark.rule("S32")
async def test_everything_that_the_catalog_knows_can_be_asked_for(client: Any) -> None:
    uids = {name: (await client.apply(name, segments=3)).body["uid"] for name in ("demo/a", "demo/a-b", "x/a")}
    for name, uid in uids.items():
        granted = (await client.register(f"p-{uid}", uid, "0", name=name)).body
        for writer in ("w2", "w1"):
            await client.session_of(writer, name)
        await client.renew(f"p-{uid}", granted["token"], s0={"incarnation": 1, "writers": ["w1"]})
        await client("POST", f"/v1/streams/{name}/subscriptions", {"subscriber": "r", "uid": uid})
    writers = await pages(client, "/v1/streams/demo/a/writers", 1)
    assert writers == [
        [{"writer": "w1", "session": 1, "open": True}],
        [{"writer": "w2", "session": 1, "open": False}],
    ]
    segments = [(item["stream"], item["id"]) for page in await pages(client, "/v1/segments", 2) for item in page]
    assert segments == [(name, str(index)) for name in ("demo/a", "demo/a-b", "x/a") for index in range(3)]
    for path in ("/v1/publishers", "/v1/subscriptions"):
        assert [len(page) for page in await pages(client, path, 2)] == [2, 1]
        assert [item["uid"] for item in (await client("GET", f"{path}?namespace=x")).body["items"]] == [uids["x/a"]]
    of_one = (await client("GET", "/v1/streams/demo/a/subscriptions")).body["items"]
    assert [item["stream"] for item in of_one] == ["demo/a"]
    assert [item["name"] for item in (await client("GET", "/v1/streams?namespace=demo")).body["items"]] == ["a", "a-b"]
    async with CatalogClient(client.url) as catalog:
        assert [(item.writer, item.session, item.open) for item in await catalog.writers("demo", "a")] == [
            ("w1", 1, True),
            ("w2", 1, False),
        ]
        assert len(await catalog.publishers("demo")) == len(await catalog.subscriptions("demo")) == 2
        [only] = await catalog.subscriptions("x", "a")
        assert (only.stream, only.verified, only.lower) == ("x/a", True, None)


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "after=%2F%2F", "after=a"])
async def test_a_page_that_cannot_be_is_refused(client: Any, query: str) -> None:
    for path in ("/v1/streams", "/v1/segments", "/v1/subscriptions"):
        refused = await client("GET", f"{path}?{query}")
        assert (refused.status, refused.code) == (422, "invalid_request")


@pytest.mark.rule("S32")
async def test_what_has_not_changed_is_not_sent_again(client: Any) -> None:
    uid = (await client.apply()).body["uid"]
    granted = (await client.register("p", uid)).body
    holder = {"time": 3, "kind": "writer", "writer": "w", "seconds": 1.0, "silent": 0.1}
    report = {"incarnation": 1, "lower": [3], "counters": {"appends": 1}, "holders": [holder]}
    await client.renew("p", granted["token"], s0=report)
    paths = ("/v1/streams", "/v1/streams/demo/flights", "/v1/streams/$catalog", "/v1/segments", "/v1/publishers")

    async def changed(path: str, tag: str) -> tuple[int, str]:
        answer = await client("GET", path, headers={"If-None-Match": tag})
        return answer.status, answer.headers["Etag"]

    tags = {path: (await client("GET", path)).headers["Etag"] for path in paths}
    older = {**holder, "seconds": 2.0, "silent": 0.3}
    await client.renew("p", granted["token"], s0={**report, "holders": [older]})  # only time has passed
    assert {path: await changed(path, tags[path]) for path in paths} == {path: (304, tags[path]) for path in paths}
    await client.renew("p", granted["token"], s0={**report, "counters": {"appends": 2}})
    assert {(await changed(path, tags[path]))[0] for path in paths} == {200}
    assert (await changed("/v1/streams", '"other", W/"more"'))[0] == 200


@pytest.mark.rule("S32")
async def test_reads_are_answered_while_the_database_is_locked(start: Any, tmp_path: Path) -> None:
    async with start(busy_timeout=0.05) as client:
        await client.apply()
        stray = sqlite3.connect(tmp_path / "catalog.sqlite", isolation_level=None)
        stray.execute("BEGIN EXCLUSIVE").close()
        for path in ("/v1/streams", "/v1/segments", "/v1/publishers", "/v1/subscriptions", "/v1/streams/$catalog"):
            assert (await client("GET", path)).status == 200
        stray.execute("ROLLBACK").close()
        stray.close()
