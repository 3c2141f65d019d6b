"""Collects the parts of a report from the catalog, publishers and this machine.

Each part is independent: if one cannot be read, a note says why, and the others are still collected.
"""

import asyncio
import contextlib
import importlib.metadata
import io
import json
import os
import platform
import re
import sys
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import zmq

from epochal.catalog_api.answers import PublisherInfo, StreamInfo, SubscriptionInfo
from epochal.catalog_api.kinds import Answer
from epochal.cli import target
from epochal.cli.description import print_stream
from epochal.cli.doctor import probes
from epochal.cli.io.documents import Document, Documents, stream_path
from epochal.cli.io.metrics import Answered, open_session, read_text
from epochal.cli.io.output import as_yaml, dumps
from epochal.cli.listed_kinds import PUBLISHERS, STREAMS, SUBSCRIPTIONS
from epochal.cli.report.archive import MAX_PART, Archive
from epochal.cli.report.redaction import Redaction, redact_text
from epochal.cli.top.looks import Wanted
from epochal.errors import EpochalError, StreamNotFound
from epochal.verdicts import Trouble, judge, worst
from epochal.version import protocol_is

T = TypeVar("T")

MAX_STREAMS = 200
"""Streams in a report that names none, at most."""
MAX_PUBLISHERS = 200
MAX_LOGS = 400
AT_ONCE = 16
PACKAGES = ("aiohttp", "msgpack", "pyarrow", "pydantic", "pyspark", "pyzmq", "rich", "typer", "sqlalchemy",
            "opentelemetry-sdk", "kopf", "kubernetes")  # fmt: skip
"""The packages whose versions are reported."""

_WEBHOOKS = re.compile(r"^epochal_publisher_webhooks\{[^\n]*\} ([0-9.]+)$", re.MULTILINE)
_VERSION = re.compile(r'^target_info\{[^\n]*service_version="([^"\n]{1,100})"', re.MULTILINE)


class Collector:
    """Fills `archive`; each answer is waited for at most `timeout` seconds."""

    def __init__(self, archive: Archive, timeout: float) -> None:
        self.redaction = Redaction()
        self._archive = archive
        self._timeout = timeout
        self._versions: dict[str, Any] = {"publishers": {}}

    # ---- the catalog ----

    async def take_services(self, url: str | None, wanted: Wanted) -> None:
        """Collect from catalog and publishers. Raises `EpochalError` if no catalog can be reached."""
        address = await target.where(url)
        async with open_session() as session, Documents(address, patience=0.0, timeout=self._timeout) as documents:
            seen = await self._try("the catalog's version", probes.look_at_catalog(address, self._timeout))
            self._versions["catalog"] = None if seen is None else seen.version
            self._metrics("catalog/metrics.txt", await self._try("catalog/metrics.txt", self._read(session, address)))
            streams = await self._streams(documents, wanted)
            names = {STREAMS.key(item) for item in streams}
            found = list[Document]()
            for kind, form in ((PUBLISHERS, PublisherInfo), (SUBSCRIPTIONS, SubscriptionInfo)):
                listed = await self._try(f"catalog/{kind.plural}.json", documents.all(kind.path))
                if listed is not None:
                    of = [item for item in self._checked(listed, form) if kind.stream(item) in names]
                    self._json(f"catalog/{kind.plural}.json", of)
                    found += of if kind is PUBLISHERS else []
            await self._all_writers(documents, streams)
            await self._publishers(session, found)

    async def _streams(self, documents: Documents, wanted: Wanted) -> list[Document]:
        if wanted.streams:
            named = [await self._try("/".join(name), documents.stream(*name)) for name in wanted.streams]
            streams = self._checked([item for item in named if item is not None], StreamInfo)
        else:
            listed = self._checked(await self._try("streams", documents.all(STREAMS.path)) or [], StreamInfo)
            streams = [item for item in listed if wanted.namespace in (None, item["namespace"])]
            if len(streams) > MAX_STREAMS:
                self.note(f"streams: {MAX_STREAMS} of {len(streams)}, those in trouble first; name others to have them")
            streams = sorted(streams, key=_severity)[:MAX_STREAMS]
        for item in streams:
            try:
                self._stream(item)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                self.note(f"streams/{STREAMS.key(item)}: it cannot be described ({type(error).__name__})")
        return streams

    def _stream(self, item: Document) -> None:
        folder = f"streams/{STREAMS.key(item)}"
        clean = self.redaction.document(f"{folder}/stream.json", item)
        self._archive.add(f"{folder}/manifest.yaml", as_yaml(clean["manifest"]).encode())
        self._archive.add(f"{folder}/stream.json", f"{dumps(clean, 2)}\n".encode())
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            print_stream({**item, "manifest": clean["manifest"]}, wide=True)
        self.add_text(f"{folder}/describe.txt", text.getvalue())

    async def _all_writers(self, documents: Documents, streams: Sequence[Document]) -> None:
        for item in streams:
            name = f"streams/{STREAMS.key(item)}/writers.json"
            path = f"{stream_path(item['namespace'], item['name'])}/writers"
            try:
                self._json(name, await documents.all(path))
            except StreamNotFound as error:  # deleted meanwhile
                self.note(f"{name}: {error}")
            except EpochalError as error:  # each of the others would take as long to fail
                self.note(f"{name}, and those of the streams after it: {error}")
                return

    # ---- publishers ----

    async def _publishers(self, session: aiohttp.ClientSession, publishers: Sequence[Document]) -> None:
        live = [item for item in publishers if item.get("live", True) and not item.get("superseded")]
        if len(live) > MAX_PUBLISHERS:
            self.note(f"metrics: of {MAX_PUBLISHERS} publishers of {len(live)}; name streams to have others")
        gate = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._publisher(gate, session, item) for item in live[:MAX_PUBLISHERS]))

    async def _publisher(self, gate: asyncio.Semaphore, session: aiohttp.ClientSession, item: Document) -> None:
        name = f"publishers/{PUBLISHERS.key(item)}/metrics.txt"
        address = (item.get("addresses") or {}).get("http")
        if not address:
            self.note(f"{name}: the publisher serves no HTTP")
            return
        async with gate:
            answer = await self._try(name, self._read(session, address))
            text = self._metrics(name, answer)
            version = _VERSION.search(text)
            self._versions["publishers"][PUBLISHERS.key(item)] = version[1] if version else None
            if any(float(number) > 0 for number in _WEBHOOKS.findall(text)):
                await self._webhooks(session, item, address)

    async def _webhooks(self, session: aiohttp.ClientSession, item: Document, address: str) -> None:
        """The web-hooks of each segment; positions are left out, as all cursors are."""
        for segment in item["segments"]:
            name = f"streams/{item['stream']}/webhooks-{segment}.json"
            path = f"/v1/segments/{quote(segment, safe='')}/webhooks"
            answer = await self._try(name, self._read(session, address, path))
            if answer is not None:
                self._archive_webhooks(name, answer)

    def _archive_webhooks(self, name: str, answer: Answered) -> None:
        try:
            items = json.loads(answer.text)["items"]
            self._json(name, [{key: value for key, value in hook.items() if key != "position"} for hook in items])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.note(f"{name}: the publisher's answer is no list of web-hooks")

    async def _read(self, session: aiohttp.ClientSession, address: str, path: str = "/metrics") -> Answered:
        there = await target.way(address)
        return await read_text(session, f"{there}{path}", self._timeout, MAX_PART)

    def _metrics(self, name: str, answer: Answered | None) -> str:
        if answer is None:
            return ""
        text = self.redaction.text(name, answer.text.decode("utf-8", "replace"))
        self._archive.add(name, text.encode(), cut=answer.cut)
        return text

    # ---- this machine ----

    def take_logs(self, data: Path) -> None:
        """Add the ends of the log files of local mode's services below `data`."""
        found = [path for path in sorted((data / "logs").rglob("*.log*")) if path.is_file() and not path.is_symlink()]
        if not found:
            self.note(f"logs: there are none in {data / 'logs'}; was it made by `epochal up --data`?")
        if len(found) > MAX_LOGS:
            self.note(f"logs: {MAX_LOGS} of {len(found)}, the newest")
            found = sorted(found, key=lambda path: -path.stat().st_mtime)[:MAX_LOGS]
        for path in found:
            name = f"logs/{path.relative_to(data / 'logs')}"
            try:
                whole, text = path.stat().st_size, _end_of(path)
            except OSError as error:
                self.note(f"{name}: {error.strerror}")
                continue
            clean = self.redaction.text(name, text)
            self._archive.add(name, clean.encode(), keep_end=True, cut=whole > MAX_PART)

    def take_versions(self) -> None:
        """Add the versions of this machine, and of the services that have answered."""
        packages = {name: version for name in PACKAGES if (version := probes.installed(name)) is not None}
        self._json("versions.json", {
            "epochal": importlib.metadata.version("epochal"), "protocol": protocol_is(),
            "python": sys.version.split()[0], "system": platform.platform(), "libzmq": zmq.zmq_version(),
            "packages": packages, **self._versions,
        })  # fmt: skip

    # ---- how a part is taken ----

    def add_text(self, name: str, text: str) -> None:
        """Add a text after redaction."""
        self._archive.add(name, self.redaction.text(name, text).encode())

    def note(self, text: str) -> None:
        """Note a part that could not be read, after redaction: an error may name a URL with credentials."""
        self._archive.note(redact_text(text)[0])

    def _checked(self, items: Sequence[Document], form: type[Answer]) -> list[Document]:
        """The items that have the form that the catalog documents; a note for each of the others."""
        found = list[Document]()
        for item in items:
            try:
                form.from_json(item)
                found.append(item)
            except (ValueError, TypeError):
                self.note(f"{form.__name__}: the catalog sent one that cannot be read")
        return found

    async def _try(self, name: str, taking: Awaitable[T]) -> T | None:
        """The awaited result, or None and a note."""
        try:
            return await taking
        except (EpochalError, aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            self.note(f"{name}: {_reason(error)}")
            return None

    def _json(self, name: str, value: Any) -> None:
        self._archive.add(name, f"{dumps(self.redaction.document(name, value), 2)}\n".encode())


def _reason(error: BaseException) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else probes.reason(error)


def _severity(item: Document) -> tuple[int, str]:
    return list(Trouble).index(worst(judge(StreamInfo.from_json(item)))), STREAMS.key(item)


def _end_of(path: Path) -> str:
    """The end of a file, from the beginning of a line; `MAX_PART` bytes at most."""
    with path.open("rb") as file:
        start = max(os.fstat(file.fileno()).st_size - MAX_PART, 0)
        file.seek(start)
        data = file.read(MAX_PART)
    return (data.partition(b"\n")[2] if start else data).decode("utf-8", "replace")


def contents(archive: Archive, redacted: Iterable[tuple[str, str]], at: str) -> Mapping[str, Any]:
    """The table of contents of the archive."""
    parts = [{"name": part.name, "size": part.size, "cut": part.cut} for part in archive.parts]
    found = [{"part": part, "what": what} for part, what in redacted]
    return {"at": at, "parts": parts, "notes": archive.notes, "redacted": found}
