"""One writer's session: opened at every segment, and opened again when a publisher gave it up (E6 sessions).

The writer turns records into appends. Here connections are made and made again, the effects of the machine are carried
out, and each caller that waits for a ticket gets its result or its error.
"""

import asyncio
import contextlib
import time as clock
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import zmq

from epochal.backoff import Backoff
from epochal.catalog_api.answers import WriterSession
from epochal.client.catalog.directory import RECONNECT_FIRST, RECONNECT_LAST, Directory
from epochal.client.options import NOTHING, Expected
from epochal.client.sidecar.sidecar import Sidecar, SidecarCatalog, SidecarOptions, Way, find, opening
from epochal.client.writer.batching import Gathering, fail
from epochal.client.writer.segment_writer import SegmentWriter
from epochal.errors import (
    BackgroundTaskEnded,
    EpochalError,
    StreamGone,
    StreamNotFound,
    TimedOut,
    Unavailable,
    UsageError,
    WriterClosed,
    WriterFenced,
    WriterLost,
)
from epochal.protocol import messages as m
from epochal.protocol.times import Time
from epochal.protocol.writer.effects import Acked, Failed, Moved, Over, Reconnect, Send, SessionReady
from epochal.protocol.writer.machine import WriterMachine
from epochal.transport.shutdown import background, ended

TICK = 0.1
"""Seconds between looks at the clock."""
FORGET_TIMEOUT = 1.0
"""Seconds that leaving may wait for the catalog to forget a writer without an id of its own."""
WITHDRAW_TIMEOUT = 1.0
"""Seconds that an open which was given up waits for the publishers; a silent one has not received the open either."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The parameters of `writer`, `capability_writer` and `task_writer` of `Client`; durations in seconds."""

    under: str | None = None
    """The writer whose capability a task writer uses."""
    shared: bool = False
    """Whether task writers use the capability of this one."""
    group: int | None = None
    linger: float = 0.0
    max_batch: int = 1024
    clock: bool = False
    direct: bool = False
    named: bool = False
    """Whether the writer's id may open again."""
    detaches: bool = False
    """Whether a writer that is left by an exception leaves what it began to the next session of its id."""
    expected: Expected = NOTHING
    validate: bool = False
    """Whether records are compared with the declared schema."""
    open_timeout: float = 30.0


@dataclass(frozen=True, slots=True)
class _Earlier:
    """What a writer keeps from its earlier sessions."""

    held: tuple[Time, ...] = ()
    """What the last of them held; it counts as the writer's until the next session is open."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """The highest incarnation of each segment (E12 fencing)."""
    wrong_addresses: int = 0


class Session:
    """Connections, tickets and background tasks of one writer.

    The writer asks the machine for a ticket (`machine.appends.append`, `machine.advance`, ...), gets a future for it by
    `promise` or `request`, and awaits that by `outcome`.

    A session has fewer than 30 attributes: from 30 on, each call of a method on itself takes Python 3.11 about 15 ns
    more, and there are some for each record.
    """

    def __init__(self, context: zmq.Context[Any], directory: Directory, writer_id: str, options: WriterOptions) -> None:
        self.context = context
        self.directory = directory
        self.writer_id = writer_id
        self._options = options
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._parts: dict[asyncio.Future[Any], int] = {}
        """How many appends of a divided batch are not confirmed yet."""
        self.unsent: Gathering | None = None
        """The batches that are gathered and not sent; set by the writer that gathers them."""
        self._links: dict[str, SegmentWriter] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._opening: asyncio.Future[None] | None = None
        self._room = asyncio.Event()
        self._idle: list[asyncio.Future[None]] = []
        self._acting = False
        self._machine: WriterMachine | None = None
        self._error: EpochalError | None = None
        """Why the session is over; `_raised` is true once it was raised to a caller."""
        self._raised = False
        self._last_raised: EpochalError | None = None
        self._earlier = _Earlier()
        self._reopening: asyncio.Task[None] | None = None
        self._reopened = False
        self.sidecar: Sidecar | None = None
        """The sidecar that leads to the publishers, once the writer is open; None when they are reached directly."""

    @property
    def machine(self) -> WriterMachine:
        """What decides; a new one for each session number. Raises `UsageError` before the writer is open."""
        if self._machine is None:
            raise UsageError(f"the writer of {self.directory.qualified} is not open: use it in `async with`")
        return self._machine

    @property
    def way(self) -> Way:
        """How publishers are reached; decided when the writer opens."""
        return Way.DIRECT if self.sidecar is None else Way.SIDECAR

    @property
    def running(self) -> bool:
        """Whether anything still works in the background."""
        return any(not task.done() for task in self._tasks)

    @property
    def unanswered(self) -> tuple[int, ...] | None:
        """What changes with every answer of a publisher, while something waits for one; else None."""
        machine = self._machine
        if machine is None or machine.over:
            return None
        opening = self._opening is not None and not self._opening.done()
        return machine.answers if opening or machine.busy else None

    @property
    def held(self) -> tuple[Time, ...]:
        """What the writer holds; while a session is opened again, what the one before held."""
        return tuple(self.machine.held) or self._earlier.held

    # ---- opening and ending ----

    async def look_up(self) -> None:
        """Find the stream in the catalog, and whether publishers are reached through a sidecar."""
        await self._find_way()
        await self.directory.look_up(self._options.expected)

    async def _find_way(self) -> None:
        """Ask the sidecar that the environment names, where this writer may use one."""
        if self._options.direct or not self.directory.reached_by_itself:
            return
        options, expected = SidecarOptions.read(), self._options.expected
        if options is None:
            return
        asked = opening(
            self.directory.qualified, self.writer_id, self.directory.wait,
            expected.time_shape, expected.encoding, expected.document(),
        )  # fmt: skip
        self.sidecar = await find(options, asked)
        if self.sidecar is not None:
            self.directory.catalog = SidecarCatalog(self.sidecar, self.writer_id)

    async def open(self) -> None:
        """Connect to every segment and open the session there (E5)."""
        self._start_machine(await self._take_number(), 0)
        if self.context.closed:  # with a sidecar, nothing else would notice
            raise WriterClosed("the client was closed")
        for segment in self.directory.segments:
            self._links[segment] = SegmentWriter(self, segment)
        self._tasks = [self._background(link.run()) for link in self._links.values()]
        self._tasks.append(self._background(self._tick()))
        try:
            await self._opened()
        except WriterFenced:
            catalog = self.directory.catalog
            if not (isinstance(catalog, SidecarCatalog) and catalog.may_be_overtaken()):
                raise
            # The sidecar took the session number before this writer opened, and another writer of the id may have
            # opened since. This one is the newer: it takes a new number and fences that one.
            self._error = None
            await self._open_again()

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return background(work, f"writer {self.writer_id!r} of {self.directory.qualified}", self._background_ended)

    def _background_ended(self, error: BackgroundTaskEnded) -> None:
        """The session is over, also where it would have been opened again."""
        if isinstance(self._error, BackgroundTaskEnded):
            return
        self._error = error
        self.fail(error)
        self._end(error)
        self._raised = self._last_raised is error

    async def _open_again(self) -> None:
        """Open a new session on the connections that there are."""
        number = await self._take_number()
        before = self.machine
        self._earlier = _Earlier(self.held, before.seen, self.wrong_addresses)
        self._start_machine(number, before.asked)
        for segment, link in self._links.items():
            if link.connected:
                self.machine.connected(segment)
        self.act()
        await self._opened()

    async def _reopen(self, error: WriterLost) -> None:
        """Open again after the writer was lost (E3 lost writers).

        A publisher gave the session up; its open epochs are aborted everywhere, and a new session opens on the same
        connections.
        """
        backoff = Backoff(RECONNECT_FIRST, RECONNECT_LAST)
        self._reopened = True
        while True:
            try:
                await self._open_again()
                break
            except WriterLost:
                await backoff.pause()  # lost again before it was open everywhere
            except EpochalError as failed:
                self._error = failed
                self._raised = False
                self.machine.give_up(failed, leaves=self._leaves)
                self.act()
                return
        if not self._raised:
            self.machine.fail_quietly(error)
        self._error = None

    async def _take_number(self) -> WriterSession:
        info = self.directory.info
        gone = StreamGone(f"stream {info.qualified} was deleted, or deleted and created again; open the new one")
        try:
            number = await self.directory.catalog.session(info.namespace, info.name, self.writer_id)
        except StreamNotFound:
            raise gone from None
        if number.uid != info.uid:
            raise gone
        return number

    def _start_machine(self, session: WriterSession, after: int) -> None:
        """Begin the session `session`; its tickets come after `after`."""
        # With the policy `batch` all that is acknowledged is on disk, so a restart loses nothing; a publisher that lost
        # its log says so (E10 durability).
        shared = self._options.shared and self.directory.declared.history.policy != "batch"
        self._machine = WriterMachine(
            self.directory.info.uid, self.directory.shape, self.directory.segments, self.writer_id, session.number,
            now=clock.monotonic(), first=session.first, under=self._options.under, shared=shared,
            seen=self._earlier.seen, after=after, sources=self.takes_source_numbers,
        )  # fmt: skip
        self._opening = asyncio.get_running_loop().create_future()

    @property
    def _leaves(self) -> bool:
        """Whether giving up is to leave by an exception (E4)."""
        return not self._options.detaches

    @property
    def was_lost(self) -> bool:
        """Whether a publisher gave the session up, and another one was opened in its place (E3 lost writers)."""
        return self._reopened

    @property
    def takes_source_numbers(self) -> bool:
        """Whether the writer may use source numbers: one that can come back, with its own capability (E50 sources)."""
        return self._options.named and self._options.under is None

    @property
    def wrong_addresses(self) -> int:
        """How often the publisher at an address from the catalog served something else (E48).

        Each time the connection is made again, after a pause and another look-up.
        """
        return self._earlier.wrong_addresses + (0 if self._machine is None else self._machine.wrong_addresses)

    async def _opened(self) -> None:
        assert self._opening is not None
        try:
            async with asyncio.timeout(self._options.open_timeout):
                await self._opening
        except TimeoutError:
            waiting = [segment for segment in self._links if not self.machine.is_open_at(segment)]
            raise TimedOut(
                f"segments {waiting} of {self.directory.qualified} did not answer within "
                f"{self._options.open_timeout:g} s"
            ) from None
        if self._options.group is not None:
            self.machine.appends.start_group(self._options.group)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            now = clock.monotonic()
            self.machine.tick(now)
            for link in self._links.values():
                link.check(now)
            self.act()

    async def withdraw(self) -> None:
        """The open was given up: undo it where it took effect."""
        ticket = self.machine.withdraw() if self._links else None
        if ticket is not None:
            await asyncio.wait([self.request(lambda: ticket)], timeout=WITHDRAW_TIMEOUT)

    async def stop(self, *, answered: bool) -> None:
        """End connections and tasks. `answered`: the writer has left, and no publisher owes it an answer."""
        if answered:
            for link in self._links.values():
                link.free()
        tasks = [*self._tasks, *([self._reopening] if self._reopening is not None else [])]
        try:
            await ended(tasks)
        finally:  # also when this is cancelled: nothing would close the sockets later
            self._tasks = []
            self._reopening = None
            for link in self._links.values():
                link.close()
            if answered and not self._options.named:
                await self._forget()
            if self.sidecar is not None:
                if answered and self._options.named:
                    self.sidecar.left(self.directory.qualified, self.writer_id, self.machine.session)
                await self.sidecar.close()
            self._end(WriterClosed("the writer was closed"))

    async def _forget(self) -> None:
        """Have the catalog forget a writer without an id of its own: it never comes again. What fails does no harm."""
        info = self.directory.info
        with contextlib.suppress(EpochalError, TimeoutError):
            async with asyncio.timeout(FORGET_TIMEOUT):
                await self.directory.catalog.forget_writer(
                    info.namespace, info.name, self.writer_id, self.machine.session
                )

    def fail(self, error: EpochalError) -> None:
        """The session cannot go on: everything open fails.

        While it opens, the opening fails, and its caller withdraws the session. Later, it leaves the segments where it
        is open, unless its program wants its open epochs kept for the next session of its id (E4).
        """
        if self._opening is not None and not self._opening.done():
            fail(self._opening, error)
            return
        self.machine.give_up(error, leaves=self._leaves)
        self.act()

    # ---- whether it can be used ----

    async def usable(self) -> None:
        """Wait for a session that is being opened again.

        Raises why there is none; else, once, that the session before it was lost.
        """
        if self._reopening is not None:
            await asyncio.wait([self._reopening])
            self._reopening = None
            self.machine.raise_failure()
        self.raise_error()

    def raise_error(self) -> None:
        """Raise why the session is over, if it is."""
        if self._error is not None:
            self._raised = True
            raise self._error

    async def over(self) -> bool:
        """Whether the session is over and a caller knows why; waits for one that is being opened again."""
        if self._reopening is not None:
            await asyncio.wait([self._reopening])
        return self._error is not None and self._raised

    async def credit(self, most: int) -> None:
        """Wait while more than `most` bytes are queued than the publishers give credit for."""
        while self.machine.appends.waiting_bytes > most:
            self._room.clear()
            await self._room.wait()

    async def settle(self) -> None:
        """Wait until every ticket has its result; raises why the session is over."""
        self.act()
        if self.machine.busy:
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            await idle
            await self.usable()

    # ---- tickets ----

    def promise(self, ticket: int) -> asyncio.Future[Any]:
        """A future for the result of a ticket."""
        future = self._futures[ticket] = asyncio.get_running_loop().create_future()
        return future

    def share(self, tickets: Sequence[int], promise: asyncio.Future[Any]) -> None:
        """Resolve one promise when all of these tickets have their results; it fails with the first that fails."""
        for ticket in tickets:
            self._futures[ticket] = promise
        if len(tickets) > 1:
            self._parts[promise] = len(tickets)

    def request(self, ask: Callable[[], int]) -> asyncio.Future[None]:
        """Ask the machine for a ticket, and carry out at once what follows."""
        future = self.promise(ask())
        self.act()
        return future

    async def outcome(self, future: asyncio.Future[R], *, shared: bool = False) -> R:
        """Wait for the result of a ticket; if the caller is cancelled meanwhile, the next call raises a failure of it.

        `shared`: other callers may await the same future, so the cancellation of one must not cancel it.
        """
        try:
            if shared:
                await asyncio.wait([future])
            return await future
        except asyncio.CancelledError:
            self._not_awaited(future)
            raise

    def _not_awaited(self, future: asyncio.Future[Any]) -> None:
        if future.done() and not future.cancelled():
            error = future.exception()
            if error is not None and error is self._error:
                self._raised = False
            elif isinstance(error, EpochalError):
                self.machine.fail_quietly(error)
            return
        if self.unsent is not None:
            self.unsent.unheard(future)
        for ticket in [ticket for ticket, known in self._futures.items() if known is future]:
            self.machine.unheard(ticket)
            if future.cancelled():
                del self._futures[ticket]

    # ---- the machine's effects ----

    def act_soon(self) -> None:
        """`act` at the next turn of the loop, once for all that was asked until then."""
        if not self._acting:
            self._acting = True
            asyncio.get_running_loop().call_soon(self.act)

    def act(self) -> None:
        """Send what the machine wants sent, packed by segment, and pass its reports to the callers."""
        self._acting = False
        machine = self.machine
        for effect in machine.take():
            if type(effect) is Send:
                self._links[effect.segment].send(effect.message)
            elif type(effect) is Reconnect:
                self._links[effect.segment].lose(Unavailable(effect.reason))
        for link in self._links.values():
            link.flush()
        for report in machine.reports():
            self._take_report(report)
        if not machine.busy:
            idle, self._idle = self._idle, []
            for waiter in idle:
                if not waiter.done():
                    waiter.set_result(None)
        self._room.set()

    def _take_report(self, report: SessionReady | Acked | Moved | Failed | Over) -> None:
        match report:
            case Acked():
                self._resolve(report.ticket, report.position)
            case Moved():
                self._resolve(report.ticket, None)
            case Failed():
                future = self._futures.pop(report.ticket, None)
                if future is not None:
                    self._parts.pop(future, None)
                if future is not None and future.cancelled():
                    self.machine.fail_quietly(report.error)  # its caller is being cancelled and will not see the error
                elif future is not None:
                    self._last_raised = report.error
                    fail(future, report.error)
            case SessionReady():
                if self._opening is not None and not self._opening.done():
                    self._opening.set_result(None)
            case Over():
                self._session_over(report.error)

    def _resolve(self, ticket: int, result: m.Position | None) -> None:
        future = self._futures.pop(ticket, None)
        if future is None or (self._parts and self._awaits_more(future)):
            return
        if not future.done():
            future.set_result(result)

    def _awaits_more(self, future: asyncio.Future[Any]) -> bool:
        """Whether other appends of the same divided batch are not confirmed yet, now that one is."""
        left = self._parts.pop(future, 1) - 1
        if left and not future.done():
            self._parts[future] = left
        return left > 0

    def _session_over(self, error: EpochalError) -> None:
        if self._error is None:
            self._error = error
            self._raised = self._last_raised is error
        self._end(error)
        # A task that writes a group runs again from the group's start instead (E6 sessions). A task writer has no
        # capability of its own, so it lost nothing.
        may_reopen = self._options.group is None and self._options.under is None and self._tasks
        if isinstance(error, WriterLost) and may_reopen and (self._reopening is None or self._reopening.done()):
            self._reopening = self._background(self._reopen(error))

    def _end(self, error: EpochalError) -> None:
        """End every wait: futures fail with `error`, and waits for room or idleness return."""
        futures, self._futures = list(self._futures.values()), {}
        self._parts.clear()
        for future in futures:
            fail(future, error)
        if self._opening is not None:
            fail(self._opening, error)
        idle, self._idle = self._idle, []
        for waiter in idle:
            if not waiter.done():
                waiter.set_result(None)
        if self.unsent is not None:
            self.unsent.drop(error)
        self._room.set()
