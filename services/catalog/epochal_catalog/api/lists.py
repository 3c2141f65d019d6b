"""The routes that list the catalog's objects, page by page, from memory only (S32).

All lists work in the same way: a page starts after a key, and a client that already has the page gets 304.
"""

import json
import os
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import chain
from typing import Any

from aiohttp import ETag, web

from epochal_catalog.api import queries, views
from epochal_catalog.api.queries import CATALOG
from epochal_catalog.domain.noun import Items, Listing
from epochal_catalog.domain.pages import PAGE_BYTES, PageRequest, after, cursor
from epochal_catalog.domain.registrations import PUBLISHERS
from epochal_catalog.domain.stream_entries import STREAMS, SegmentRecord, StreamEntry
from epochal_catalog.runtime.service import Catalog

_PROCESS = os.urandom(4).hex()
"""Part of each tag: versions start again with each process, so a tag from an older process must not match."""


def unchanged_or(request: web.Request, make: Callable[[], str]) -> web.Response:
    """304 when the client already has the present state, else the JSON that `make` returns.

    The tag is weak: answers that differ only in how long something has lasted, such as `seconds`, have the same tag.
    """
    state = request.app[CATALOG].state
    tag = ETag(f"{_PROCESS}-{'-'.join(map(str, state.versions()))}", is_weak=True)
    known = request.if_none_match or ()
    if any(item.value in (tag.value, "*") for item in known):
        response = web.Response(status=304)
    else:
        response = web.json_response(text=make())
    response.etag = tag
    response.headers["Cache-Control"] = "no-cache"  # ask each time, with the tag
    return response


def _list(request: web.Request, read: Callable[[Catalog, PageRequest], Items], **more: Any) -> web.Response:
    catalog, asked = request.app[CATALOG], queries.read_page(request)

    def make() -> str:
        items, following = _page(read(catalog, asked), asked.limit)
        shown = {name: value() for name, value in more.items()}
        rest = json.dumps({"next": following, "revision": catalog.state.revision, **shown})
        return f'{{"items": [{", ".join(items)}], {rest[1:]}'

    return unchanged_or(request, make)


def _page(found: Items, limit: int) -> tuple[list[str], str | None]:
    """The items of a page as JSON, and the `after` of the next page; None on the last page."""
    items: list[str] = []
    size, last = 0, ""
    for key, view in found:
        if len(items) == limit or size >= PAGE_BYTES:
            return items, cursor(last)
        items.append(json.dumps(view()))
        size += len(items[-1])
        last = key
    return items, None


def _entry(request: web.Request) -> StreamEntry:
    return request.app[CATALOG].state[STREAMS].stream(request.match_info["namespace"], request.match_info["name"])


async def list_streams(request: web.Request) -> web.Response:
    """Streams by name, and the catalog's own stream."""

    def read(catalog: Catalog, asked: PageRequest) -> Items:
        state, now = catalog.state, catalog.now()
        for key in filter(asked.wants, after(state[STREAMS].names, asked.after)):
            yield key, partial(views.stream, state, state[STREAMS].named(key), now)

    return _list(request, read, reserved=lambda: [views.reserved(request.app[CATALOG].state)])


async def list_segments(request: web.Request) -> web.Response:
    """Segments of all streams, by stream and key range."""
    return _list(request, _segments)


def _segments(catalog: Catalog, asked: PageRequest) -> Items:
    state, now = catalog.state, catalog.now()
    name, _, text = asked.after.rpartition("/")
    last = int(text) if text.isdigit() else -1
    here = [name] if name in state[STREAMS].names else []

    def view(stream: str, segment: SegmentRecord) -> dict[str, Any]:
        return {"stream": stream, **views.segment(state, segment, now)}

    for qualified in filter(asked.wants, chain(here, after(state[STREAMS].names, name))):
        for at, segment in enumerate(state[STREAMS].named(qualified).segments.values()):
            if qualified != name or at > last:
                yield f"{qualified}/{at}", partial(view, qualified, segment)


async def list_publishers(request: web.Request) -> web.Response:
    """All registrations, by id."""

    def read(catalog: Catalog, asked: PageRequest) -> Items:
        state = catalog.state
        for key in after(state[PUBLISHERS].keys, asked.after):
            if asked.wants((known := state[PUBLISHERS].by_publisher[key]).stream):
                yield key, partial(views.publisher, state, known)

    return _list(request, read)


def handler(listing: Listing) -> Callable[[web.Request], Awaitable[web.Response]]:
    """The handler that lists objects of a kind: those of all streams, or of the stream in the path."""

    async def listed(request: web.Request) -> web.Response:
        uid = _entry(request).record.uid if "namespace" in request.match_info else None

        def read(catalog: Catalog, asked: PageRequest) -> Items:
            return listing.items(catalog.state, asked, uid, catalog.now())

        return _list(request, read)

    return listed
