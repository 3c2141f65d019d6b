"""Calls over HTTP against a real server on a free port: what is tried again, what is final, what an error becomes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from tests.patience import PATIENCE

from epochal.client.catalog.http import HttpCaller
from epochal.errors import (
    CatalogUnavailable,
    EpochalError,
    ManifestError,
    NoPublisher,
    RemoteProtocolError,
    SchemaMismatch,
    StreamNotFound,
)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, port: int = 0) -> AsyncIterator[str]:
    server = web.Server(handler)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def problem(status: int, code: str, **more: object) -> web.Response:
    body = {"type": "about:blank", "title": "x", "status": status, "detail": f"it is {code}", "code": code, **more}
    return web.json_response(body, status=status, content_type="application/problem+json")


@asynccontextmanager
async def calling(
    url: str, patience: float = PATIENCE, timeout: float = PATIENCE
) -> AsyncIterator[tuple[HttpCaller, list[str]]]:
    told: list[str] = []
    caller = HttpCaller(url, patience=patience, timeout=timeout, on_unreachable=told.append)
    try:
        yield caller, told
    finally:
        await caller.close()


def answering(*answers: web.Response) -> tuple[Handler, list[web.BaseRequest]]:
    """A handler that gives these answers in turn, and the requests that came."""
    came: list[web.BaseRequest] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        came.append(request)
        return answers[len(came) - 1]

    return handle, came


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_proxy_without_a_catalog_is_tried_again(status: int) -> None:
    handler, came = answering(web.Response(status=status, text="<html>"), web.json_response({"a": 1}))
    async with serving(handler) as url, calling(url) as (caller, told):
        assert await caller.call("GET", "/x") == (200, {"a": 1})
    assert len(came) == 2
    assert told == [f"a proxy answered {status}"]


async def test_a_catalog_that_shuts_down_is_tried_again() -> None:
    handler, came = answering(problem(503, "shutting_down"), problem(503, "overloaded"), web.Response(status=204))
    async with serving(handler) as url, calling(url) as (caller, told):
        assert await caller.call("DELETE", "/x") == (204, None)
    assert len(came) == 3
    assert len(told) == 1, "said once"


@pytest.mark.parametrize(
    ("status", "code", "kind"), [(404, "stream_not_found", StreamNotFound), (503, "no_publisher", NoPublisher)]
)
async def test_a_refusal_is_final(status: int, code: str, kind: type[EpochalError]) -> None:
    handler, came = answering(problem(status, code))
    async with serving(handler) as url, calling(url) as (caller, _):
        with pytest.raises(kind, match=f"it is {code}"):
            await caller.call("GET", "/x")
    assert len(came) == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [("invalid_manifest", ManifestError), ("immutable_field", ManifestError), ("schema_mismatch", SchemaMismatch)],
)
async def test_problems_arrive_with_their_paths(code: str, kind: type[ManifestError | SchemaMismatch]) -> None:
    handler, _ = answering(problem(422, code, problems=[{"path": "spec.x", "reason": "is not a field", "hint": "h"}]))
    async with serving(handler) as url, calling(url) as (caller, _told):
        with pytest.raises(kind, match=r"spec\.x: is not a field; h") as caught:
            await caller.call("PUT", "/x", json={})
    assert caught.value.problems[0].path == "spec.x"


async def test_an_unknown_code_is_kept() -> None:
    handler, _ = answering(problem(418, "new_code", retryable=True), problem(418, "new_code"))
    async with serving(handler) as url, calling(url) as (caller, _told):
        with pytest.raises(EpochalError) as caught:
            await caller.call("GET", "/x")
        assert (caught.value.code, caught.value.retryable) == ("new_code", True)
    assert EpochalError.code == "error", "only the instance carries it"


@pytest.mark.parametrize("answer", [(404, "<html>no"), (200, "<html>hello"), (500, ""), (200, "[" * 100_000)])
async def test_what_is_no_catalog_is_reported(answer: tuple[int, str]) -> None:
    handler, _ = answering(web.Response(status=answer[0], text=answer[1]))
    async with serving(handler) as url, calling(url) as (caller, _told):
        with pytest.raises(RemoteProtocolError, match="is the address right"):
            await caller.call("GET", "/x")


async def test_a_catalog_that_is_away_is_waited_for() -> None:
    handler, _ = answering(web.json_response({}))
    async with serving(handler) as url:
        port = int(url.rpartition(":")[2])
    unreachable = asyncio.Event()
    caller = HttpCaller(url, patience=PATIENCE, timeout=PATIENCE, on_unreachable=lambda _: unreachable.set())
    try:
        call = asyncio.create_task(caller.call("GET", "/x"))
        await asyncio.wait_for(unreachable.wait(), PATIENCE)
        async with serving(handler, port):
            assert await call == (200, {})
    finally:
        await caller.close()


async def test_patience_ends_with_what_to_do() -> None:
    handler, _ = answering()
    async with serving(handler) as url:
        pass
    async with calling(url, patience=0.2) as (caller, told):  # load: it is to end
        with pytest.raises(CatalogUnavailable, match=r"connection refused.*epochal up.*EPOCHAL_CATALOG"):
            await caller.call("GET", "/x")
    assert told == ["connection refused"]


async def test_a_catalog_that_says_nothing_is_given_up() -> None:
    async def silent(_: web.BaseRequest) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(silent) as url, calling(url, patience=0.0, timeout=0.1) as (caller, _told):  # load: it is to end
        with pytest.raises(CatalogUnavailable, match="no answer in time"):
            await caller.call("GET", "/x")
