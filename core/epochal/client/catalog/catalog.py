"""Calls to the catalog over HTTP.

Used by writers and subscribers, and also by commands, publishers and local mode. It decides nothing: path, body and
answer of each call are those of the operations that `epochal.catalog_api` declares for the catalog and its clients.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Self, cast

from epochal.catalog_api import publishers, relays, sessions, streams, subscriptions
from epochal.catalog_api.answers import (
    CatalogEvent,
    PublisherInfo,
    Registration,
    RelayInfo,
    Renewal,
    StreamInfo,
    SubscriptionInfo,
    SubscriptionLease,
    WriterInfo,
    WriterSession,
)
from epochal.catalog_api.kinds import Answer
from epochal.catalog_api.operations import A, B, Endpoint, I, ListEndpoint
from epochal.catalog_api.requests import (
    Addresses,
    Finishing,
    Register,
    RegisterRelay,
    RelayReport,
    Renew,
    RenewOne,
    RenewSubscription,
    RenewTogether,
    SegmentReport,
    Subscribe,
)
from epochal.client.catalog.answers import get, read
from epochal.client.catalog.http import HttpCaller, error_of
from epochal.client.catalog.url import catalog_advice, catalog_url
from epochal.client.catalog.watch import follow
from epochal.errors import (
    CatalogUnavailable,
    EpochalError,
    LimitExceeded,
    NoPublisher,
    RemoteProtocolError,
    StreamNotFound,
)
from epochal.operations import Operation
from epochal.protocol.times import Time, to_json

_NOTHING: Mapping[str, str] = {}
MAX_PAGES = 10_000
"""Pages of one list that are followed: a catalog cannot keep a caller busy for ever."""
MAX_WAIT = 300.0
"""Seconds that one lookup may wait at the catalog; longer waits are made of several."""
MAX_WAITING = 16
"""Calls of one client that may wait for another publisher at once: each holds a connection, and others need some too.

A call that cannot wait tries again after a pause, which also finds the publisher, only later.
"""


@dataclass(frozen=True, slots=True)
class Listing:
    """All streams at one revision of a catalog's database; `identity` is that database's own, equal to no other's.

    `follows`: the revision that the caller knew is of this database's past; false also when it is too old to say.
    """

    identity: str
    revision: int
    streams: tuple[StreamInfo, ...]
    follows: bool = False


class CatalogClient:
    """The catalog at `url`. Calls may run concurrently; `close()` or `async with` ends the connections.

    `patience`: seconds to go on trying while no catalog answers, then `CatalogUnavailable`; 0 tries once.
    `timeout`: seconds for one try, beyond what the call itself waits for.
    `on_unreachable`: called once, with the reason, when a call begins to retry.
    `advice`: what the error then says to do, where this client's way to the catalog is not that of its URL.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        patience: float = 30.0,
        timeout: float = 10.0,
        on_unreachable: Callable[[str], None] | None = None,
        advice: str | None = None,
    ) -> None:
        self.url = catalog_url(url)
        self._patience = patience
        self._waiting = 0
        self._http = HttpCaller(
            self.url,
            patience=patience,
            timeout=timeout,
            on_unreachable=on_unreachable,
            advice=advice or catalog_advice(self.url),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections."""
        await self._http.close()

    async def call(
        self,
        operation: Endpoint[B, A],
        body: B,
        path: Mapping[str, str] = _NOTHING,
        *,
        query: Mapping[str, str | int] = _NOTHING,
        once: bool = False,
    ) -> A:
        """Call an operation of the catalog; the methods below do, one for each that programs need.

        `path` and `query` are its parameters by name; `once`: tried once. Raises the errors that a catalog answers
        with, `CatalogUnavailable`, and `RemoteProtocolError` for what is no such answer.
        """
        json = None if body is None else body.to_json()
        _, answer = await self._send(operation, path, json=json, query=query, once=once)
        if operation.gives is NoneType:
            return cast("A", None)
        return cast("A", read(cast("type[Answer]", operation.gives).from_json, answer))

    async def items(
        self, operation: ListEndpoint[I], path: Mapping[str, str] = _NOTHING, *, namespace: str | None = None
    ) -> tuple[I, ...]:
        """The whole list of an operation that answers page by page; of a namespace's streams, or of all."""
        found = list[I]()
        async for answer in self._pages(operation, path, namespace):
            found += [read(operation.item.from_json, item) for item in get(answer, "items", list)]
        return tuple(found)

    async def _send(
        self,
        operation: Operation,
        path: Mapping[str, str],
        *,
        json: Any = None,
        query: Mapping[str, str | int] = _NOTHING,
        waits: float = 0.0,
        once: bool = False,
    ) -> tuple[int, Any]:
        params = {name: str(value) for name, value in query.items()}
        return await self._http.call(
            operation.method, operation.at(path), json=json, params=params, waits=waits, once=once
        )

    async def apply(self, manifest: Mapping[str, Any], namespace: str, name: str) -> tuple[StreamInfo, bool]:
        """Declare a stream or change it; the flag says whether it was created.

        Raises `ManifestError` with all problems, also for a change of what cannot change.
        """
        status, answer = await self._send(streams.APPLY, _stream(namespace, name), json=manifest)
        return read(StreamInfo.from_json, answer), status == 201

    async def get(self, namespace: str, name: str) -> StreamInfo:
        """One stream; raises `StreamNotFound`."""
        return await self.call(streams.GET, None, _stream(namespace, name))

    async def list(self, namespace: str | None = None) -> tuple[StreamInfo, ...]:
        """All streams, or those of a namespace, by name; read page by page."""
        return await self.items(streams.LIST, namespace=namespace)

    async def listing(self, known: int | None = None) -> Listing:
        """All streams, with what says whether one that is not among them was deleted.

        `known`: a revision that was listed before; `follows` says whether this catalog has gone on from there, or is
        an older copy that was put back. Raises `CatalogUnavailable` when the catalog became another one meanwhile.
        """
        found, own = list[StreamInfo](), list[tuple[str, int]]()
        async for answer in self._pages(streams.LIST, {}):
            found += [read(StreamInfo.from_json, item) for item in get(answer, "items", list)]
            for reserved in get(answer, "reserved", list)[:1]:
                own.append((get(reserved, "identity", str), get(reserved, "revision", int)))
        if len({identity for identity, _ in own}) != 1:
            raise CatalogUnavailable(f"{self.url} does not say which catalog it is, or is another one by now")
        return Listing(*own[0], tuple(found), known is not None and await self._follows(known))

    async def _follows(self, revision: int) -> bool:
        try:
            await self._send(streams.GET_RESERVED, {}, query={"since": revision})
        except EpochalError as error:
            if error.code in ("revision_ahead", "history_truncated"):
                return False
            raise
        return True

    async def delete(self, namespace: str, name: str, *, uid: str | None = None) -> None:
        """Delete a stream; raises `StreamNotFound`.

        `uid`: the one stream that is meant; `EpochalError` of code `other_stream` when another has the name by now.
        """
        query = {} if uid is None else {"uid": uid}
        await self.call(streams.DELETE, None, _stream(namespace, name), query=query)

    async def lookup(
        self,
        namespace: str,
        name: str,
        *,
        wait: float = 0.0,
        time: str | None = None,
        encoding: str | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> StreamInfo:
        """The stream with a publisher for every open segment, waiting up to `wait` seconds for them (S27).

        `time` (a shape), `encoding` and `schema` (the form of `payload.schema`) are checked before any wait:
        `SchemaMismatch` (S28). After the wait: `StreamNotFound` or `NoPublisher`. A catalog that goes away meanwhile is
        waited for as well.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        text = None if schema is None else json.dumps(schema, separators=(",", ":"))
        given = (("time", time), ("encoding", encoding), ("schema", text))
        expected = {key: value for key, value in given if value is not None}
        while True:
            this_wait = min(max(deadline - loop.time(), 0.0), MAX_WAIT)
            try:
                query = {"wait": f"{this_wait:.3f}", **expected}
                _, answer = await self._send(streams.LOOKUP, _stream(namespace, name), query=query, waits=this_wait)
                return _looked_up(answer)
            except (StreamNotFound, NoPublisher):
                if deadline - loop.time() <= 0.001:
                    raise

    async def another(self, namespace: str, name: str, segment: str, token: int, wait: float) -> StreamInfo | None:
        """The stream once `segment` has a publisher whose token is not `token` (0 for none), or after `wait` seconds.

        A catalog with few places left for waiting answers at once. Returns None at once if `MAX_WAITING` calls wait
        already. Raises `StreamNotFound`.
        """
        if self._waiting >= MAX_WAITING:
            return None
        self._waiting += 1
        try:
            query = {"wait": f"{wait:.3f}", "segment": segment, "token": str(token)}
            _, answer = await self._send(streams.LOOKUP, _stream(namespace, name), query=query, waits=wait)
        finally:
            self._waiting -= 1
        return _looked_up(answer)

    async def session(self, namespace: str, name: str, writer: str) -> WriterSession:
        """A writer's new session number, above all before (E6 sessions); raises `StreamComplete`, `StreamNotFound`."""
        return await self.call(sessions.OPEN, None, _writer(namespace, name, writer))

    async def forget_writer(self, namespace: str, name: str, writer: str, session: int) -> None:
        """Forget a writer that has left and never comes again. Tried once.

        Raises `CatalogUnavailable`, `StreamNotFound`, `WriterFenced` where it had other sessions, and `EpochalError` of
        code `writer_not_found`.
        """
        path = _writer(namespace, name, writer)
        await self.call(sessions.FORGET, None, path, query={"session": session}, once=True)

    async def release(self, namespace: str, name: str, writer: str) -> int:
        """Let a lost writer go: publishers abort the epochs it had not left, and complete times without it (E46 hold).

        Returns the session that is released; publishers learn it within a second. Opening the stream again makes it
        void. Raises `StreamNotFound`; `EpochalError` of code `writer_not_found`, or `writer_not_lost` when no segment
        waits for it.
        """
        released = await self.call(sessions.RELEASE, None, _writer(namespace, name, writer))
        return released.session

    async def writers(self, namespace: str, name: str) -> tuple[WriterInfo, ...]:
        """All writers that a stream ever had, by id; raises `StreamNotFound`."""
        return await self.items(sessions.LIST, _stream(namespace, name))

    async def publishers(self, namespace: str | None = None) -> tuple[PublisherInfo, ...]:
        """All registered publishers, or those of a namespace's streams, by id."""
        return await self.items(publishers.LIST, namespace=namespace)

    async def register(
        self,
        publisher: str,
        *,
        instance: str,
        stream: str,
        uid: str,
        segments: Sequence[str],
        addresses: Mapping[str, str],
        incarnations: Mapping[str, int] | None = None,
    ) -> Registration:
        """Register a publisher process for segments of a stream, superseding their older registrations (E12 fencing).

        `instance` is new for each start of the process; the same registration with the same `instance` gets the same
        answer.
        `incarnations`: the last one that each segment's log on disk has seen; what is granted is above it.
        """
        sockets, seen = Addresses(**addresses), dict(incarnations or {})
        asked = Register(publisher, instance, stream, uid, [*segments], sockets, seen)
        return await self.call(publishers.REGISTER, asked)

    async def renew(self, publisher: str, token: int, segments: Mapping[str, SegmentReport]) -> Renewal:
        """Renew a lease and report. Raises `Superseded`, `StreamGone`; `EpochalError` of code `unknown_publisher`.

        A report with a `number` is on the catalog's disk once `recorded` of the answer is not below it (E11 horizon).
        """
        return await self.call(publishers.RENEW, Renew(token, dict(segments)), {"publisher": publisher})

    async def renew_together(self, leases: Sequence[RenewOne]) -> Sequence[Renewal | EpochalError]:
        """Renew up to `MOST_TOGETHER` leases in one request; for each, in order, its renewal or what `renew` raises.

        Raises `EpochalError` where the whole request is refused.
        """
        _, answer = await self._send(publishers.RENEW_TOGETHER, {}, json=RenewTogether([*leases]).to_json())
        items = get(answer, "items", list)
        if len(items) != len(leases):
            raise RemoteProtocolError(f"{self.url} answers {len(items)} of {len(leases)} renewals")
        return [self._renewed_one(item) for item in items]

    def _renewed_one(self, item: Any) -> Renewal | EpochalError:
        if isinstance(item, dict) and item.get("renewed") is not None:
            return read(Renewal.from_json, item["renewed"])
        return error_of(self.url, item.get("problem") if isinstance(item, dict) else None)

    async def deregister(self, publisher: str, token: int) -> None:
        """End a lease at once; raises `Superseded` when a newer registration owns the segments."""
        await self.call(publishers.DEREGISTER, None, {"publisher": publisher}, query={"token": token})

    async def finishing(
        self,
        stream: str,
        segment: str,
        *,
        publisher: str,
        token: int,
        incarnation: int,
        number: int,
        finishing: bool,
    ) -> bool:
        """Report that a segment is finishing, or no longer; returns whether the stream is complete (E7 finish)."""
        namespace, _, name = stream.partition("/")
        mark = Finishing(publisher, token, incarnation, number, finishing)
        answer = await self.call(publishers.FINISH, mark, _stream(namespace, name) | {"segment": segment})
        return answer.complete

    async def subscribed(self, namespace: str, name: str, subscriber: str, uid: str) -> SubscriptionLease:
        """Announce a reader: each call makes a new subscription, which lapses when it is not renewed (S30).

        `subscriber` is a name for people. Raises `StreamNotFound`, and `StreamGone` when `uid` is of an older stream.
        """
        return await self.call(subscriptions.SUBSCRIBE, Subscribe(subscriber, uid), _stream(namespace, name))

    async def renew_subscription(
        self,
        id: str,  # noqa: A002  # as the catalog calls it
        token: int,
        lower: Sequence[Time] | None = None,
        counters: Mapping[str, float] | None = None,
    ) -> float:
        """Renew a subscription and report; returns its seconds.

        Raises `EpochalError` of code `unknown_subscription` when it lapsed, `not_owner` on another's token (S29).
        """
        times = None if lower is None else [to_json(time) for time in lower]
        asked = RenewSubscription(token, times, dict(counters or {}))
        renewed = await self.call(subscriptions.RENEW, asked, {"subscription": id})
        return renewed.ttl

    async def unsubscribe(self, id: str, token: int) -> None:  # noqa: A002  # as the catalog calls it
        """Withdraw a subscription; raises what `renew_subscription` raises."""
        await self.call(subscriptions.UNSUBSCRIBE, None, {"subscription": id}, query={"token": token})

    async def subscriptions(
        self, namespace: str | None = None, name: str | None = None
    ) -> tuple[SubscriptionInfo, ...]:
        """All live subscriptions, those to a namespace's streams, or those to one stream."""
        if namespace is not None and name is not None:
            return await self.items(subscriptions.LIST_OF_STREAM, _stream(namespace, name))
        return await self.items(subscriptions.LIST, namespace=namespace)

    async def register_relay(self, asked: RegisterRelay) -> float:
        """List a relay, in place of one of the same id; returns the seconds after which it is no longer listed.

        Raises `StreamNotFound`, and `StreamGone` when `asked.uid` is of an older stream.
        """
        renewed = await self.call(relays.REGISTER, asked)
        return renewed.ttl

    async def renew_relay(self, id: str, report: RelayReport) -> float:  # noqa: A002  # as the catalog calls it
        """Renew a relay's entry and report; returns its seconds.

        Raises `EpochalError` of code `unknown_relay` when it is not listed: register it again.
        """
        renewed = await self.call(relays.RENEW, report, {"relay": id})
        return renewed.ttl

    async def deregister_relay(self, id: str) -> None:  # noqa: A002  # as the catalog calls it
        """Take a relay off the list; raises what `renew_relay` raises."""
        await self.call(relays.DEREGISTER, None, {"relay": id})

    async def relays(self, namespace: str | None = None, name: str | None = None) -> tuple[RelayInfo, ...]:
        """All relays, those of a namespace's streams, or those of one stream, by id."""
        if namespace is not None and name is not None:
            return await self.items(relays.LIST_OF_STREAM, _stream(namespace, name))
        return await self.items(relays.LIST, namespace=namespace)

    async def head(self) -> tuple[str, int]:
        """Which catalog this is, as `Listing.identity`, and the number of its last change."""
        _, answer = await self._send(streams.GET_RESERVED, {})
        return get(answer, "identity", str), get(answer, "revision", int)

    async def revision(self) -> int:
        """The number of the last change; `watch(since=...)` follows from there."""
        _, answer = await self._send(streams.GET_RESERVED, {})
        return get(answer, "revision", int)

    def watch(self, since: int | None = None) -> AsyncIterator[CatalogEvent]:
        """Every change after revision `since`, or from now on; for ever, over restarts of the catalog (S26).

        Raises `HistoryTruncated` when `since` is older than what the catalog keeps: list, then watch from
        `revision()`. Raises `CatalogUnavailable` when no catalog answers for `patience` seconds.
        """
        return follow(self.url, since, self._patience)

    async def _pages(
        self, operation: Operation, path: Mapping[str, str], namespace: str | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        query = {} if namespace is None else {"namespace": namespace}
        for _ in range(MAX_PAGES):
            _, answer = await self._send(operation, path, query=query)
            yield answer
            if answer.get("next") is None:
                return
            query["after"] = get(answer, "next", str)
        raise LimitExceeded(f"{self.url}{operation.at(path)} has more than {MAX_PAGES} pages")


def _looked_up(answer: Mapping[str, Any]) -> StreamInfo:
    return read(StreamInfo.from_json, {**get(answer, "stream", dict), "segments": get(answer, "segments", list)})


def _stream(namespace: str, name: str) -> dict[str, str]:
    return {"namespace": namespace, "name": name}


def _writer(namespace: str, name: str, writer: str) -> dict[str, str]:
    return _stream(namespace, name) | {"writer": writer}
