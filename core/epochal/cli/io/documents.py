"""The catalog's own objects, as the catalog returns them.

Separate from the catalog client, which keeps only the fields that it knows: `-o json` must print whole objects, also
with fields that this version does not know.
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import quote, urlsplit

from epochal.client.catalog.url import catalog_advice

Document = dict[str, Any]

PAGE = 1000
"""Objects on one page; the catalog gives no more."""


class Documents:
    """The catalog at `url`, read only.

    `patience`, `on_unreachable`, `advice`: as for `CatalogClient`; `timeout`: of one try.
    """

    def __init__(
        self,
        url: str,
        *,
        patience: float,
        timeout: float = 10.0,
        on_unreachable: Callable[[str], None] | None = None,
        advice: str | None = None,
    ) -> None:
        if urlsplit(url).scheme == "http":
            _load_aiohttp_without_certificates()
        from epochal.client.catalog.http import HttpCaller  # here: help does without it

        self._http = HttpCaller(
            url, patience=patience, timeout=timeout, on_unreachable=on_unreachable, advice=advice or catalog_advice(url)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def stream(self, namespace: str, name: str) -> Document:
        """One stream; raises `StreamNotFound`."""
        return await self.one(stream_path(namespace, name))

    async def one(self, path: str) -> Document:
        """The object at `path`."""
        _, answer = await self._http.call("GET", path)
        return dict(answer)

    async def all(self, path: str, parameters: Mapping[str, str] | None = None) -> list[Document]:
        """The objects of the list at `path`, page after page."""
        items: list[Document] = []
        after: dict[str, str] = {}
        while True:
            _, answer = await self._http.call("GET", path, params={"limit": str(PAGE), **(parameters or {}), **after})
            items.extend(answer["items"])
            if answer.get("next") is None:
                return items
            after = {"after": answer["next"]}


def stream_path(namespace: str, name: str) -> str:
    """The URL path of a stream."""
    return f"/v1/streams/{quote(namespace, safe='')}/{quote(name, safe='')}"


def _load_aiohttp_without_certificates() -> None:
    """Import aiohttp, but not the certificates of all authorities, which it reads twice while it is imported.

    A catalog at http:// needs none, and reading them takes as long as the rest of the import. If something in this
    process used TLS all the same, without a context of its own, it would trust no one, and fail.
    """
    if "aiohttp" in sys.modules:
        return
    kept = {name: os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
    os.environ.update(dict.fromkeys(kept, os.devnull))  # where OpenSSL looks for them
    try:
        import aiohttp  # noqa: F401  # so that it is loaded while they are hidden
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
