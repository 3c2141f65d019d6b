"""`epochal.connect_blocking(...)`: the same client for programs without an event loop.

It only adds waiting: each method here is one of the asynchronous client, with its signature and its docstring. It runs
in an event loop that one background thread per client keeps.
"""

import asyncio
import functools
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from epochal.catalog_api.answers import CatalogEvent
from epochal.client.blocking.loop_thread import LoopThread
from epochal.client.catalog.catalog import CatalogClient
from epochal.client.client import Client
from epochal.client.sidecar.sidecar import Way
from epochal.client.subscriber import values
from epochal.client.subscriber.delivery import GIVEN, GIVEN_UP, OVER, Hand, Hands
from epochal.client.subscriber.subscriber import Subscription
from epochal.client.writer.writer import Writer
from epochal.errors import EpochalError, UsageError
from epochal.protocol.topics.filter import TopicFilter

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
H = TypeVar("H", bound="_Opened[Any]")
Async = TypeVar("Async")
Either = TypeVar("Either", bound=Writer | Subscription)


class _Blocking(Generic[Async]):
    """An asynchronous object and the thread whose event loop it is used in."""

    def __init__(self, loop: LoopThread, inner: Async) -> None:
        self._loop = loop
        self._inner = inner


def _waiting(
    method: Callable[Concatenate[Async, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[_Blocking[Async], P], R]:
    """Make a coroutine method one that waits for its result."""

    @functools.wraps(method)
    def call(self: _Blocking[Async], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.run(lambda: method(self._inner, *args, **kwargs))

    return call


def _plain(method: Callable[Concatenate[Async, P], R]) -> Callable[Concatenate[_Blocking[Async], P], R]:
    """Have a plain method called in the loop's thread: no asynchronous object is used by two threads."""

    @functools.wraps(method)
    def call(self: _Blocking[Async], /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def work() -> R:
            return method(self._inner, *args, **kwargs)

        return self._loop.run(work)

    return call


class Items(Generic[T]):
    """Iterates over the items of an asynchronous source; goes on after `TimedOut` or an interrupt, in any thread.

    An item that a call has fetched and not returned comes with the next call; only then has the cursor passed it (E16).
    """

    def __init__(
        self,
        loop: LoopThread,
        fill: Callable[[Hand[T]], Coroutine[Any, Any, None]],
        timeout: float | None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._fill = fill
        self._timeout = timeout
        self._wake = wake

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """The next item; raises `TimedOut` when none comes in time."""
        hand: Hand[T] = Hand()
        try:
            self._loop.run(lambda: self._fill(hand), self._timeout)
        except BaseException:
            hand.state = GIVEN_UP
            if hasattr(hand, "item"):
                self._loop.submit(self._wake)  # another thread may wait, and can have the item now
            raise
        if hand.state == OVER:
            raise StopIteration
        hand.state = GIVEN  # no call from here on: see `epochal.client.subscriber.delivery`
        return hand.item


class _Repeated(Generic[T]):
    """An asynchronous generator as a source of `Items`: started again by `iterate` after a call ended within it."""

    def __init__(self, iterate: Callable[[], AsyncIterator[T]]) -> None:
        self._iterate = iterate
        self._source = iterate()
        self._over = False
        self._hands = Hands[T](lambda _: None)
        self._fetched: deque[T] = deque()
        self._lock = asyncio.Lock()

    async def fill(self, hand: Hand[T]) -> None:
        """Put the next item into the hand."""
        async with self._lock:  # a generator runs once at a time
            self._hands.settle()
            while (item := self._hands.take(hand, self._pop)) is None:
                if self._over:
                    hand.state = OVER
                    return
                await self._fetch()
        hand.item = item

    def _pop(self) -> T | None:
        return self._fetched.popleft() if self._fetched else None

    async def _fetch(self) -> None:
        ended = True
        try:
            async for item in self._source:
                self._fetched.append(item)
                ended = False
                return
            self._over, ended = True, False
        finally:
            if ended:  # by a time-out or an error: the next call starts again, after the last item
                self._source = self._iterate()


class Ready:
    """`Subscription.ready` with the methods of a `threading.Event`."""

    def __init__(self, loop: LoopThread, inner: Subscription) -> None:
        self._loop = loop
        self._inner = inner

    def is_set(self) -> bool:
        """Whether the snapshots of all segments are in (S17)."""
        return self._inner.ready.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for that; raises `TimedOut` after `timeout` seconds."""

        async def work() -> None:
            await self._inner.ready.wait()

        self._loop.run(work, timeout)


class _Opened(_Blocking[Either]):
    """A writer or a subscription; open it with `with`."""

    def __init__(self, loop: LoopThread, inner: Either, opened: "set[_Opened[Any]]") -> None:
        super().__init__(loop, inner)
        self._opened = opened
        self._entered = False

    def __enter__(self) -> Self:
        """Open it; raises what `async with` raises."""
        self._opened.add(self)
        try:
            self._loop.run(self._enter)
        except EpochalError:
            self._opened.discard(self)
            raise  # after an interrupt it may still be open: then closing the client leaves it
        return self

    async def _enter(self) -> None:
        await self._inner.__aenter__()
        self._entered = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave it; an interrupt counts as an exception. In a forked process do nothing: the block is the parent's."""
        if self._loop.forked or self not in self._opened:
            return
        try:
            if self._entered:
                self._loop.run(lambda: self._inner.__aexit__(kind, error, trace))
        finally:
            self._opened.discard(self)


class BlockingWriter(_Opened[Writer]):
    """A `Writer` whose calls wait; made by `BlockingClient.writer`, opened with `with`. Any thread may call it."""

    append = _waiting(Writer.append)
    append_nowait = _plain(Writer.append_nowait)
    append_frame = _waiting(Writer.append_frame)
    drain = _waiting(Writer.drain)
    flush = _waiting(Writer.flush)
    advance = _waiting(Writer.advance)
    advance_nowait = _plain(Writer.advance_nowait)
    hold = _waiting(Writer.hold)
    release = _waiting(Writer.release)
    abort = _waiting(Writer.abort)
    close = _waiting(Writer.close)
    finish = _waiting(Writer.finish)
    detach = _plain(Writer.detach)
    segment = _plain(Writer.segment)

    @property
    def writer_id(self) -> str:
        """The id that was given, or the one that was made for an anonymous writer."""
        return self._inner.writer_id

    @property
    def way(self) -> Way:
        """How publishers are reached; decided when the writer opens."""
        return self._inner.way

    @property
    def wrong_addresses(self) -> int:
        """How often the publisher at an address from the catalog served something else (E48)."""

        async def work() -> int:
            return self._inner.wrong_addresses

        return self._loop.run(work)

    @property
    def session_number(self) -> int:
        """The number of its session, which the catalog gave it (E6 sessions); a new one where it was opened again."""

        async def work() -> int:
            return self._inner.session_number

        return self._loop.run(work)

    @property
    def append_numbers(self) -> dict[str, int]:
        """By segment, the number of this writer's last acknowledged append there; -1 for none (E6 sessions)."""

        async def work() -> dict[str, int]:
            return self._inner.append_numbers

        return self._loop.run(work)

    @property
    def resume_from(self) -> int:
        """Up to this source number all was published when the writer opened, and -1 for nothing (E50 sources)."""

        async def work() -> int:
            return self._inner.resume_from

        return self._loop.run(work)

    @property
    def held(self) -> tuple[Any, ...]:
        """What the writer holds: it can append at any time that is at or after one of these."""

        async def work() -> tuple[Any, ...]:
            return self._inner.held

        return self._loop.run(work)

    @property
    def pending_epochs(self) -> tuple[Any, ...]:
        """Times that were appended at and not left yet, also by an earlier session of the same id (E6 sessions)."""

        async def work() -> tuple[Any, ...]:
            return self._inner.pending_epochs

        return self._loop.run(work)


class BlockingSubscription(_Opened[Subscription]):
    """A `Subscription` that is read by plain iterators; made by `BlockingClient.subscribe`, opened with `with`."""

    frontier = _plain(Subscription.frontier)
    cursor = _plain(Subscription.cursor)
    gaps = _plain(Subscription.gaps)
    saw_whole = _plain(Subscription.saw_whole)
    push = _plain(Subscription.push)
    change = _waiting(Subscription.change)
    add_topic = _plain(Subscription.add_topic)
    drop_topic = _plain(Subscription.drop_topic)

    @property
    def ready(self) -> Ready:
        """Set once the snapshots of all segments are in (S17): `ready.wait(timeout)`, `ready.is_set()`."""
        return Ready(self._loop, self._inner)

    @property
    def via(self) -> dict[str, str]:
        """The way on which each segment is read, as `Subscription.via`."""

        async def work() -> dict[str, str]:
            return self._inner.via

        return self._loop.run(work)

    @property
    def topics(self) -> TopicFilter | None:
        """The wanted topics; None for all, as `Subscription.topics`."""

        async def work() -> TopicFilter | None:
            return self._inner.topics

        return self._loop.run(work)

    def epochs(self, timeout: float | None = None) -> Items[values.Epoch | values.EpochAborted]:
        """Complete and aborted epochs, as `Subscription.epochs`; ends when the stream is complete (E18).

        `timeout`: seconds to wait for each; then `TimedOut` is raised, and the iterator can be used again.
        """
        reading = self._inner.epochs()
        return Items(self._loop, reading.fill, timeout, reading.wake)

    def events(self, timeout: float | None = None) -> Items[values.Event]:
        """Everything as it comes, as `Subscription.events` (S16); `timeout` as with `epochs`."""
        reading = self._inner.events()
        return Items(self._loop, reading.fill, timeout, reading.wake)


class BlockingCatalog(_Blocking[CatalogClient]):
    """The calls of `CatalogClient` that programs use; each waits for its answer."""

    apply = _waiting(CatalogClient.apply)
    get = _waiting(CatalogClient.get)
    list = _waiting(CatalogClient.list)
    delete = _waiting(CatalogClient.delete)
    lookup = _waiting(CatalogClient.lookup)
    release = _waiting(CatalogClient.release)
    writers = _waiting(CatalogClient.writers)
    publishers = _waiting(CatalogClient.publishers)
    subscriptions = _waiting(CatalogClient.subscriptions)
    relays = _waiting(CatalogClient.relays)
    revision = _waiting(CatalogClient.revision)

    @property
    def url(self) -> str:
        """The catalog's address."""
        return self._inner.url

    def watch(self, since: int | None = None, timeout: float | None = None) -> Items[CatalogEvent]:
        """Every change, as `CatalogClient.watch` (S26); `timeout` as with `BlockingSubscription.epochs`."""

        async def changes() -> AsyncIterator[CatalogEvent]:
            nonlocal since  # after a time-out this is called again, and goes on after the last event that was returned
            if since is None:
                since = await self._inner.revision()
            async for event in self._inner.watch(since):
                since = event.revision
                yield event

        return Items(self._loop, _Repeated(changes).fill, timeout)


def _opening(
    make: Callable[Concatenate[Client, P], Either], kind: type[H]
) -> Callable[Concatenate["BlockingClient", P], H]:
    """Turn the method that makes a writer or a subscription into one that makes a blocking one."""

    @functools.wraps(make)
    def call(self: "BlockingClient", /, *args: P.args, **kwargs: P.kwargs) -> H:
        return self._wrap(kind, lambda inner: make(inner, *args, **kwargs))

    call.__signature__ = inspect.signature(make).replace(return_annotation=kind)  # type: ignore[attr-defined]  # read by inspect
    return call


class BlockingClient(_Blocking[Client]):
    """A `Client` whose calls wait; made by `connect_blocking`, used with `with`. Any thread may call it."""

    def __init__(self, inner: Client) -> None:
        super().__init__(LoopThread("epochal client"), inner)
        self.catalog = BlockingCatalog(self._loop, inner.catalog)
        self._opened: set[_Opened[Any]] = set()

    writer = _opening(Client.writer, BlockingWriter)
    capability_writer = _opening(Client.capability_writer, BlockingWriter)
    task_writer = _opening(Client.task_writer, BlockingWriter)
    subscribe = _opening(Client.subscribe, BlockingSubscription)

    def _wrap(self, kind: type[H], make: Callable[[Client], Any]) -> H:
        async def work() -> Any:
            return make(self._inner)

        return kind(self._loop, self._loop.run(work), self._opened)

    def __enter__(self) -> Self:
        """Nothing is connected before it is needed."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Leave what is still open as by an exception, end all connections and the thread.

        A second call does nothing; nor does a call in a forked process, which has none of these.
        """
        if self._loop.forked:
            return
        left = UsageError("the client was closed")
        try:
            for opened in list(self._opened):
                with suppress(EpochalError):
                    opened.__exit__(UsageError, left, None)
            with suppress(UsageError):  # it was closed before
                self._loop.run(self._inner.close)
        finally:
            self._loop.stop()


def connect_blocking(
    url: str | None = None, *, patience: float = 30.0, on_unreachable: Callable[[str], None] | None = None
) -> BlockingClient:
    """A client for programs without an event loop; its catalog is the one that `connect` would take.

    `patience`: seconds to go on trying while no catalog answers; `on_unreachable` is called with the reason when that
    begins, in the client's own thread.
    """
    return BlockingClient(Client(url, patience=patience, on_unreachable=on_unreachable))
