"""The routes that list the catalog's objects, page by page, from memory only (S32).

All lists work in the same way: a page starts after a key, and a client that already has the page gets 304.
"""

import json
import os
from collections.abc import Awaitable, Callable

from aiohttp import ETag, web

from epochal_catalog.api import queries
from epochal_catalog.api.queries import CATALOG
from epochal_catalog.domain.noun import Items, Listing
from epochal_catalog.domain.pages import PAGE_BYTES, cursor
from epochal_catalog.domain.stream_entries import STREAMS, StreamEntry

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


def _list(request: web.Request, listing: Listing, uid: str | None) -> web.Response:
    catalog, asked = request.app[CATALOG], queries.read_page(request)

    def make() -> str:
        items, following = _page(listing.items(catalog.state, asked, uid, catalog.now()), asked.limit)
        more = {} if listing.more is None else listing.more(catalog.state)
        rest = json.dumps({"next": following, "revision": catalog.state.revision, **more})
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


def handler(listing: Listing) -> Callable[[web.Request], Awaitable[web.Response]]:
    """The handler that lists objects of a kind: those of all streams, or of the stream in the path."""

    async def listed(request: web.Request) -> web.Response:
        uid = _entry(request).record.uid if "namespace" in request.match_info else None
        return _list(request, listing, uid)

    return listed
