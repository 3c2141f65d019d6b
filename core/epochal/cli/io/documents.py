"""The catalog's own objects, as the catalog returns them.

Separate from the catalog client, which keeps only the fields that it knows: `-o json` must print whole objects, also
with fields that this version does not know.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import quote

from epochal.client.catalog.http import HttpCaller
from epochal.client.catalog.url import catalog_advice

Document = dict[str, Any]

PAGE = 1000
"""Objects that one answer may hold; the most that the catalog gives."""


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
    """The path of a stream."""
    return f"/v1/streams/{quote(namespace, safe='')}/{quote(name, safe='')}"
