"""The HTTP routes: each reads its request, has the catalog act, and shows the result.

Apart from the service because here is everything that a client sees and nothing that is decided.
"""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from aiohttp import web

from epochal.errors import ManifestError, Problem
from epochal.resources import StreamManifest
from epochal.service import problems
from epochal_catalog import bodies, models, openapi, views
from epochal_catalog.registry import FinishingMark, Registering, Report
from epochal_catalog.service import Catalog

CATALOG: web.AppKey[Catalog] = web.AppKey("catalog", Catalog)


def add_routes(app: web.Application) -> None:
    """Add every route of `openapi.OPERATIONS` to the application."""
    for operation in openapi.OPERATIONS:
        app.router.add_route(operation.method, operation.path, _HANDLERS[operation.name], name=operation.name)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _stream_name(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["name"]


async def _body(request: web.Request, model: type[bodies.M]) -> bodies.M:
    return await bodies.read_model(request, model, request.app[CATALOG].settings.body_timeout)


async def apply_stream(request: web.Request) -> web.Response:
    """Declare a stream or change its declaration."""
    catalog = request.app[CATALOG]
    document = await bodies.read_json(request, catalog.settings.body_timeout)
    namespace, name = _stream_name(request)
    manifest = StreamManifest.from_document(document, namespace=namespace)
    wrong = [
        Problem(f"metadata.{field}", f"is {given!r}, and the path says {wanted!r}", "make them equal")
        for field, given, wanted in (("namespace", manifest.namespace, namespace), ("name", manifest.name, name))
        if given != wanted
    ]
    if wrong:
        raise ManifestError("the manifest is of another stream", wrong)
    entry, created = await catalog.submit(lambda registry: registry.apply(manifest, uuid4().hex, _now()))
    return web.json_response(views.stream(catalog.state, entry), status=201 if created else 200)


async def list_streams(request: web.Request) -> web.Response:
    """All streams."""
    state = request.app[CATALOG].state
    items = [views.stream(state, entry) for entry in state.streams()]
    return web.json_response({"items": items, "revision": state.revision})


async def get_stream(request: web.Request) -> web.Response:
    """One stream."""
    state = request.app[CATALOG].state
    return web.json_response(views.stream(state, state.stream(*_stream_name(request))))


async def delete_stream(request: web.Request) -> web.Response:
    """Delete a stream; its publishers are told when they renew."""
    namespace, name = _stream_name(request)
    await request.app[CATALOG].submit(lambda registry: registry.delete(namespace, name))
    return web.Response(status=204)


async def lookup(request: web.Request) -> web.Response:
    """Where to connect for a stream, once there is a publisher for every open segment (S27)."""
    catalog = request.app[CATALOG]
    wait = bodies.read_wait(request, catalog.settings.max_wait)
    entry = await catalog.lookup(*_stream_name(request), bodies.read_expected(request), wait)
    head = views.stream(catalog.state, entry, with_segments=False)
    return web.json_response({"stream": head, "segments": views.segments(catalog.state, entry)})


async def open_session(request: web.Request) -> web.Response:
    """The next session number of a writer (E6)."""
    namespace, name = _stream_name(request)
    writer = bodies.parse_writer(request.match_info["writer"])
    answer = await request.app[CATALOG].submit(lambda registry: registry.open_session(namespace, name, writer))
    return web.json_response(answer, status=201)


async def finish_segment(request: web.Request) -> web.Response:
    """Record a finishing mark (E7)."""
    namespace, name = _stream_name(request)
    body = await _body(request, models.Finishing)
    mark = FinishingMark(request.match_info["segment"], **body.model_dump())
    return web.json_response(
        await request.app[CATALOG].submit(lambda registry: registry.finish(namespace, name, mark, _now()))
    )


async def register_publisher(request: web.Request) -> web.Response:
    """Give segments to a publisher process (E12)."""
    body = await _body(request, models.Register)
    namespace, name = body.stream.split("/")
    asked = Registering(
        publisher=body.publisher,
        instance=body.instance,
        stream=(namespace, name),
        uid=body.uid,
        segments=tuple(body.segments),
        addresses=body.addresses.model_dump(exclude_none=True),
    )
    answer = await request.app[CATALOG].submit(lambda registry: registry.register(asked, _now()))
    return web.json_response(answer, status=201)


async def renew_publisher(request: web.Request) -> web.Response:
    """Renew a lease, with what the publisher reports (E11)."""
    body = await _body(request, models.Renew)
    publisher = request.match_info["publisher"]
    reports = {name: _report(report) for name, report in body.segments.items()}
    return web.json_response(
        await request.app[CATALOG].submit(lambda registry: registry.renew(publisher, body.token, reports))
    )


def _report(body: models.Report) -> Report:
    writers = None if body.writers is None else tuple(body.writers)
    return Report(body.incarnation, body.lower, writers, body.counters)


async def deregister_publisher(request: web.Request) -> web.Response:
    """Withdraw a publisher."""
    publisher, token = request.match_info["publisher"], bodies.read_count(request, "token")
    await request.app[CATALOG].submit(lambda registry: registry.deregister(publisher, token))
    return web.Response(status=204)


async def list_publishers(request: web.Request) -> web.Response:
    """All registrations."""
    state = request.app[CATALOG].state
    return web.json_response({"items": [views.publisher(state, record) for record in state.registrations.values()]})


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


async def openapi_document(_request: web.Request) -> web.Response:
    """The OpenAPI document."""
    return web.json_response(openapi.document())


_HANDLERS: dict[str, Any] = {
    handler.__name__: handler
    for handler in (
        apply_stream,
        list_streams,
        get_stream,
        delete_stream,
        lookup,
        open_session,
        finish_segment,
        register_publisher,
        renew_publisher,
        deregister_publisher,
        list_publishers,
        healthz,
        readyz,
        metrics,
        openapi_document,
    )
}
