"""The routes that list what the catalog knows, page by page, from memory only (S32).

All lists are read in one way: a page starts after a key, and a client that already has the page gets 304.
"""

import os
from collections.abc import Callable
from itertools import chain
from typing import Any

from aiohttp import ETag, web

from epochal_catalog.api import queries, views
from epochal_catalog.api.queries import CATALOG
from epochal_catalog.domain.pages import PageRequest, after, cursor, page
from epochal_catalog.domain.state import StreamEntry
from epochal_catalog.runtime.service import Catalog

_PROCESS = os.urandom(4).hex()
"""Versions start again with each process: a tag from an older process must not match."""
_Items = tuple[list[dict[str, Any]], str | None]


def unchanged_or(request: web.Request, make: Callable[[], dict[str, Any]]) -> web.Response:
    """304 when the client already has the present state, else what `make` returns.

    The tag is weak: answers that differ only in how long something has lasted, such as `seconds`, have the same tag.
    """
    state = request.app[CATALOG].state
    tag = ETag(f"{_PROCESS}-{state.version}-{state.subscribers.version}", is_weak=True)
    known = request.if_none_match or ()
    if any(item.value in (tag.value, "*") for item in known):
        response = web.Response(status=304)
    else:
        response = web.json_response(make())
    response.etag = tag
    response.headers["Cache-Control"] = "no-cache"  # ask each time, with the tag
    return response


def _list(request: web.Request, read: Callable[[Catalog, PageRequest], _Items], **more: Any) -> web.Response:
    catalog, asked = request.app[CATALOG], queries.read_page(request)

    def make() -> dict[str, Any]:
        items, following = read(catalog, asked)
        shown = {name: value() for name, value in more.items()}
        return {"items": items, "next": following, "revision": catalog.state.revision, **shown}

    return unchanged_or(request, make)


def _entry(request: web.Request) -> StreamEntry:
    return request.app[CATALOG].state.stream(request.match_info["namespace"], request.match_info["name"])


async def list_streams(request: web.Request) -> web.Response:
    """Streams by name, and the catalog's own stream."""

    def read(catalog: Catalog, asked: PageRequest) -> _Items:
        state, now = catalog.state, catalog.now()
        keys, following = page(state.names, asked, asked.wants)
        return [views.stream(state, state.named(key), now) for key in keys], following

    return _list(request, read, reserved=lambda: [views.reserved(request.app[CATALOG].state)])


async def list_segments(request: web.Request) -> web.Response:
    """Segments of all streams, by stream and key range."""
    return _list(request, _segments)


def _segments(catalog: Catalog, asked: PageRequest) -> _Items:
    state, now = catalog.state, catalog.now()
    name, _, text = asked.after.rpartition("/")
    last = int(text) if text.isdigit() else -1
    found: list[tuple[str, dict[str, Any]]] = []
    here = [name] if name in state.names else []
    for qualified in chain(here, after(state.names, name)):
        if not asked.wants(qualified):
            continue
        for at, segment in enumerate(state.named(qualified).segments.values()):
            if qualified == name and at <= last:
                continue
            if len(found) == asked.limit:
                return [item for _, item in found], cursor(found[-1][0])
            found.append((f"{qualified}/{at}", {"stream": qualified, **views.segment(state, segment, now)}))
    return [item for _, item in found], None


async def list_publishers(request: web.Request) -> web.Response:
    """All registrations, by id."""

    def read(catalog: Catalog, asked: PageRequest) -> _Items:
        state = catalog.state
        known = state.registrations
        keys, following = page(state.publishers, asked, lambda key: asked.wants(known[key].stream))
        return [views.publisher(state, known[key]) for key in keys], following

    return _list(request, read)


async def list_writers(request: web.Request) -> web.Response:
    """All writers that ever had a session of the stream."""
    entry = _entry(request)

    def read(catalog: Catalog, asked: PageRequest) -> _Items:
        keys, following = page(catalog.state.writers(entry.record.uid), asked)
        return [views.writer(catalog.state, entry, key) for key in keys], following

    return _list(request, read)


async def list_subscriptions(request: web.Request) -> web.Response:
    """All live subscriptions, by id."""

    def read(catalog: Catalog, asked: PageRequest) -> _Items:
        return _subscriptions(catalog, asked, None)

    return _list(request, read)


async def list_stream_subscriptions(request: web.Request) -> web.Response:
    """The live subscriptions to one stream."""
    entry = _entry(request)

    def read(catalog: Catalog, asked: PageRequest) -> _Items:
        return _subscriptions(catalog, asked, entry.record.uid)

    return _list(request, read)


def _subscriptions(catalog: Catalog, asked: PageRequest, uid: str | None) -> _Items:
    state = catalog.state
    subscribers = state.subscribers

    def wanted(key: str) -> bool:
        record = subscribers.get(key)
        return record is not None and subscribers.leases.live(key) and asked.wants(state.name_of(record.uid))

    keys, following = page(subscribers.keys if uid is None else subscribers.of(uid), asked, wanted)
    return [views.subscription(state, record) for key in keys if (record := subscribers.get(key))], following
