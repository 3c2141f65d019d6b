"""The HTTP routes: each reads its request, calls the catalog, and answers with the result.

Nothing is decided here: the rules of `domain.kinds` do that. Most routes are made from the declarations of the nouns.
The functions here answer the operations that are `ByHand`, and those that are of no noun.
"""

import json
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from aiohttp import web

from epochal.catalog_api.answers import Renewal
from epochal.catalog_api.requests import Renew, RenewTogether
from epochal.catalog_api.streams import RESERVED
from epochal.errors import EpochalError, ManifestError, Problem
from epochal.resources.manifest import StreamManifest
from epochal.service import problems
from epochal.service.bodies import M, read_json, read_model
from epochal.service.origins import is_loopback
from epochal_catalog.api import lists, openapi, queries
from epochal_catalog.api.queries import CATALOG
from epochal_catalog.api.statuses import STATUS
from epochal_catalog.domain.kinds import NOUNS, streams
from epochal_catalog.domain.kinds.publishers import Renewing
from epochal_catalog.domain.noun import ByHand, Call, Write
from epochal_catalog.domain.stream_entries import STREAMS, check_name


def add_routes(app: web.Application) -> None:
    """Add every route of `openapi.OPERATIONS` to the application."""
    for operation in openapi.OPERATIONS:
        app.router.add_route(operation.method, operation.path, _HANDLERS[operation.name], name=operation.name)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _stream_name(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["name"]


async def _body(request: web.Request, model: type[M]) -> M:
    return await read_model(request, model, request.app[CATALOG].settings.body_timeout)


async def apply_stream(request: web.Request) -> web.Response:
    """Declare a stream or change its declaration."""
    catalog = request.app[CATALOG]
    namespace, name = _stream_name(request)
    check_name(namespace, name)
    document = await read_json(request, catalog.settings.body_timeout)
    manifest = StreamManifest.from_document(document, namespace=namespace)
    wrong = [
        Problem(f"metadata.{field}", f"is {given!r}, and the path says {wanted!r}", "make them equal")
        for field, given, wanted in (("namespace", manifest.namespace, namespace), ("name", manifest.name, name))
        if given != wanted
    ]
    if wrong:
        raise ManifestError("the manifest is of another stream", wrong)
    entry, created = await catalog.submit(lambda rules: streams.apply(rules, manifest, uuid4().hex, _now()))
    return web.json_response(streams.view(catalog.state, entry, catalog.now()), status=201 if created else 200)


async def get_stream(request: web.Request) -> web.Response:
    """One stream."""
    catalog = request.app[CATALOG]
    entry = catalog.state[STREAMS].stream(*_stream_name(request))
    return lists.unchanged_or(request, lambda: json.dumps(streams.view(catalog.state, entry, catalog.now())))


async def get_reserved(request: web.Request) -> web.Response:
    """The catalog's own stream (S26)."""
    catalog = request.app[CATALOG]
    state, data = catalog.state, catalog.settings.local_data
    since = queries.read_revision(request.query.get("since"))
    if since is not None:
        state.history.check(since)
    local = {"data": data} if data and is_loopback(request.remote or "") else {}  # a path means nothing elsewhere
    return lists.unchanged_or(request, lambda: json.dumps(streams.reserved(state) | local))


async def refuse_reserved(_request: web.Request) -> web.Response:
    """The catalog's own stream cannot be declared or deleted (S26)."""
    check_name("", RESERVED)
    raise AssertionError("the name is reserved")


async def lookup(request: web.Request) -> web.Response:
    """Where to connect for a stream, once there is a publisher for every open segment (S27), or another for one."""
    catalog = request.app[CATALOG]
    wait = queries.read_wait(request, catalog.settings.max_wait)
    another = queries.read_another(request)
    if another is None:
        entry = await catalog.lookup(*_stream_name(request), queries.read_expected(request), wait)
    else:
        entry = await catalog.await_another(*_stream_name(request), *another, wait)
    state, now = catalog.state, catalog.now()
    body = catalog.lookups.answer(entry.record.uid, state.version, now, lambda: streams.looked_up(state, entry, now))
    return web.Response(body=body, content_type="application/json", charset="utf-8")


async def renew_publisher(request: web.Request) -> web.Response:
    """Renew a lease, with what the publisher reports (E11 horizon)."""
    body = await _body(request, Renew)
    publisher = request.match_info["publisher"]
    answer = await request.app[CATALOG].renew(Renewing(publisher, body.token, body.segments))
    return web.json_response(answer.to_json())


async def renew_publishers(request: web.Request) -> web.Response:
    """Renew several leases; each is answered as if it had been renewed alone."""
    body = await _body(request, RenewTogether)
    catalog = request.app[CATALOG]
    asked = [Renewing(lease.publisher, lease.token, lease.segments) for lease in body.leases]
    answers = await catalog.renew_together(asked)
    return web.json_response({"items": [_renewed(answer) for answer in answers]})


def _renewed(answer: Renewal | EpochalError) -> dict[str, Any]:
    if isinstance(answer, EpochalError):
        return {"renewed": None, "problem": problems.document(answer, STATUS)}
    return {"renewed": answer.to_json(), "problem": None}


async def watch(request: web.Request) -> web.StreamResponse:
    """Send every change from now on, or after the one that the watcher saw last (S26)."""
    catalog = request.app[CATALOG]
    transport = request.transport
    assert transport is not None, "a request that is being answered has a connection"
    with catalog.watchers.enter(queries.read_since(request), transport.abort) as watcher:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        with suppress(ConnectionError):  # the watcher left or was cut: no one is left to answer
            await response.prepare(request)
            await watcher.run(response.write, catalog.settings.watch_heartbeat)
        return response


async def healthz(_request: web.Request) -> web.Response:
    """The process runs."""
    return web.json_response({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """The process takes requests."""
    if not request.app[CATALOG].ready:
        return problems.answer(503, "not_ready", "the catalog is starting or stopping", retryable=True)
    return web.json_response({"status": "ready"})


async def metrics(request: web.Request) -> web.Response:
    """Prometheus text."""
    text = request.app[CATALOG].telemetry.render()
    return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def openapi_document(request: web.Request) -> web.Response:
    """The OpenAPI document."""
    return web.json_response(openapi.document(request.app[CATALOG].settings.max_wait))


_HANDLERS: dict[str, Any] = {
    handler.__name__: handler
    for handler in (
        apply_stream,
        get_stream,
        get_reserved,
        lookup,
        renew_publisher,
        renew_publishers,
        watch,
        healthz,
        readyz,
        metrics,
        openapi_document,
    )
}
_HANDLERS |= dict.fromkeys(("apply_reserved", "delete_reserved"), refuse_reserved)


def _writer(route: Write[Any, Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
    """What answers a change of a noun: reads the request as its operation says, and has the catalog decide."""
    operation = route.operation
    [status] = operation.answers
    model: type[Any] | None = operation.body if isinstance(operation.body, type) else None

    async def changed(request: web.Request) -> web.Response:
        path = queries.read_path(request)
        body = None if model is None else await _body(request, model)
        query = {
            parameter.name: queries.read_parameter(request, parameter)
            for parameter in operation.parameters
            if parameter.required or parameter.name in request.query
        }
        # 53 bits: every JSON reader keeps them all
        call = Call(body, path, query, _now(), uuid4().hex, secrets.randbits(53))
        answer = await request.app[CATALOG].submit(lambda rules: route.decide(rules, call))
        if answer is None:
            return web.Response(status=status)
        return web.json_response(answer.to_json(), status=status)

    return changed


_HANDLERS |= {
    route.operation.name: _writer(route) if isinstance(route, Write) else lists.handler(route)
    for noun in NOUNS
    for route in noun.routes
    if not isinstance(route, ByHand)
}
