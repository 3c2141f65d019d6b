"""`client.writer(...)`: sockets, futures and batches around the writer's machine.

Apart from the machine, which decides what may be sent when (E1, E5, E6): here records are encoded and placed, connections are made and made again, and callers
are told what became of their appends and moves.
"""

import asyncio
import contextlib
import time as clock
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import zmq

from epochal.client.batching import Batcher, Slot
from epochal.client.directory import Backoff, Directory, worth_retrying
from epochal.client.encodings import encoder
from epochal.client.sockets import Frames, Socket
from epochal.errors import BufferFull, EpochalError, TimedOut, Unavailable, WriterClosed, WriterLost
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.segments import Placement
from epochal.protocol.times import Time, TimeCodec
from epochal.protocol.writing import Acked, Failed, Moved, Over, Ready, Reconnect, Send, WriterMachine

TICK = 0.1
MAX_UNSENT_BYTES = 8 * 2**20
"""Bytes queued behind the credit windows above which `append` waits."""
MAX_UNSENT_NOWAIT = 64 * 2**20
"""... and above which `append_nowait` raises `BufferFull`."""
ANSWER_TIMEOUT = 10.0
"""Seconds without any message of a publisher that owes an answer before the connection is made anew."""

Position = m.Position


class Writer:
    """One writer of one stream; made by `client.writer`, used as an async context manager.

    Leaving the block closes the writer (what was appended is whole); leaving it by an exception aborts the epochs that it appended at and still holds (E4).
    `linger` (seconds) lets single records gather into batches of up to `max_batch` records; 0 sends each append as its own batch.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        directory: Directory,
        writer_id: str | None = None,
        *,
        under: str | None = None,
        group: int | None = None,
        linger: float = 0.0,
        max_batch: int = 1024,
        time_codec: TimeCodec[Any] | None = None,
        open_timeout: float = 30.0,
    ) -> None:
        self.writer_id = writer_id or f"anonymous-{uuid.uuid4().hex}"
        self._context, self._directory, self._under, self._group = context, directory, under, group
        self._linger, self._max_batch, self._open_timeout = linger, max_batch, open_timeout
        self._encode_time: Callable[[Any], Time] = (lambda time: time) if time_codec is None else time_codec.encode
        self._decode_time: Callable[[Time], Any] = (lambda time: time) if time_codec is None else time_codec.decode
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._batch_futures: dict[Slot, asyncio.Future[m.Position]] = {}
        self._links: dict[str, _Link] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._opening: asyncio.Future[None] | None = None
        self._room = asyncio.Event()
        self._idle: list[asyncio.Future[None]] = []
        self._acting = False
        self._left = False
        self._reopening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Open the writer at every segment (E5). Raises `StreamNotFound`, `NoPublisher`, `StreamComplete`, `TimedOut`."""
        await self._directory.look_up()
        self._encode = encoder(self._directory.encoding)
        self._placement: Placement = self._directory.placement()
        self._batcher = Batcher(self._placement, self._max_batch)
        try:
            await self._open_session()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, or abort after an exception; connections are gone when this returns."""
        try:
            if not self._left and not self._machine.over:
                await self._leave(m.Leaving.CLOSE if kind is None else m.Leaving.ABORT)
        except EpochalError:
            if kind is None:
                # E1: an append failed, so it cannot be said that all is whole.
                with contextlib.suppress(EpochalError):
                    await self._leave(m.Leaving.ABORT)
                raise
        finally:
            await self._stop()

    # ---- appends ----

    async def append(
        self, time: Any, records: Sequence[Any], *, key: bytes | None = None, topic: bytes = b""
    ) -> m.Position:
        """Publish `records` as one batch at `time`; returns its position once it is acknowledged.

        Raises `CapabilityError` for a time below what the writer holds, `TimeShapeError`, `RecordTypeError`, `PayloadTooLarge`, `EpochAbortedError`, and
        `WriterFenced`, `WriterLost` or `StreamGone` when the session is over; nothing of the batch is published then.
        """
        at = self._check(time, records)
        await self._reopened()
        while self._machine.waiting_bytes() > MAX_UNSENT_BYTES:
            self._room.clear()
            await self._room.wait()
        if self._linger > 0:
            slot = self._gather(at, records, key, topic)
            future = self._batch_futures.get(slot)
            return await asyncio.shield(self._last_full if future is None else future)
        position: m.Position = await self._send(self._placement.segment(key), at, topic, records)
        return position

    def append_nowait(self, time: Any, records: Sequence[Any], *, key: bytes | None = None, topic: bytes = b"") -> None:
        """The same, pipelined: a failure is raised by the next `flush` or move, and no move is sent before (E1). Raises `BufferFull` when
        appends come faster than they are acknowledged: await `flush()` then."""
        at = self._check(time, records)
        if self._machine.waiting_bytes() > MAX_UNSENT_NOWAIT:
            raise BufferFull(
                f"more than {MAX_UNSENT_NOWAIT} bytes wait for acknowledgements; await flush() from time to time"
            )
        if self._linger > 0:
            self._gather(at, records, key, topic)
        else:
            payload = self._encode(records)
            self._machine.append(self._placement.segment(key), at, topic, len(records), payload)
            self._act_soon()

    async def flush(self) -> None:
        """Wait until everything appended and moved so far is acknowledged; raises the first failure that nobody awaited."""
        self._end_batches()
        self._act()
        if self._machine.busy:
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            await idle
        self._machine.raise_failure()

    def _check(self, time: Any, records: Sequence[Any]) -> Time:
        if self._left:
            raise WriterClosed(f"writer {self.writer_id!r} has left the stream; open a new one")
        if isinstance(records, bytes | bytearray | str) or not len(records):
            raise TypeError("append takes a list of at least one record")
        return self._encode_time(time)

    def _send(self, segment: str, time: Time, topic: bytes, records: Sequence[Any]) -> asyncio.Future[m.Position]:
        ticket = self._machine.append(segment, time, topic, len(records), self._encode(records), awaited=True)
        future: asyncio.Future[m.Position] = asyncio.get_running_loop().create_future()
        self._futures[ticket] = future
        self._act_soon()
        return future

    # ---- batches ----

    def _gather(self, time: Time, records: Sequence[Any], key: bytes | None, topic: bytes) -> Slot:
        self._machine.check(time)
        slot, full = self._batcher.add(time, list(records), key, topic)
        if slot not in self._batch_futures:
            future = self._batch_futures[slot] = asyncio.get_running_loop().create_future()
            if len(self._batcher) == 1:
                asyncio.get_running_loop().call_later(self._linger, self._end_batches)
        if full:
            self._last_full = self._batch_futures[slot]
            self._end_batch(slot)
        return slot

    def _end_batches(self) -> None:
        for slot in self._batcher.slots:
            self._end_batch(slot)

    def _drop_batches(self) -> None:
        for slot in self._batcher.slots:
            self._batcher.take(slot)
            self._batch_futures.pop(slot).cancel()

    def _end_batch(self, slot: Slot) -> None:
        records, promise = self._batcher.take(slot), self._batch_futures.pop(slot)
        try:
            sent = self._send(slot.segment, slot.time, slot.topic, records)
        except EpochalError as error:
            self._machine.fail_quietly(error)
            promise.cancel()
            return
        sent.add_done_callback(lambda done: _pass_on(done, promise))

    # ---- moves ----

    async def advance(self, time: Any) -> None:
        """Downgrade all capabilities to `time`: what was appended before is whole. Sent once every earlier append is acknowledged (E1)."""
        await self._moved(lambda: self._machine.advance(self._encode_time(time), awaited=True))

    def advance_nowait(self, time: Any) -> None:
        """Queue the move; it is sent when E1 allows, and later appends need not wait for it."""
        self._end_batches()
        self._machine.advance(self._encode_time(time))
        self._act_soon()

    async def hold(self, time: Any) -> None:
        """Hold a further capability."""
        await self._moved(lambda: self._machine.hold(self._encode_time(time), awaited=True))

    async def release(self, time: Any) -> None:
        """Give a capability up, not the last one."""
        await self._moved(lambda: self._machine.release(self._encode_time(time), awaited=True))

    async def abort(self, time: Any) -> None:
        """Abort the epoch `time`: it can never complete (E4)."""
        self._end_batches()
        await self._moved(lambda: self._machine.abort(self._encode_time(time), awaited=True))

    async def close(self) -> None:
        """Leave: what was appended is whole. The last writer's capability is kept for the next one."""
        await self._leave(m.Leaving.CLOSE)

    async def finish(self) -> None:
        """Leave for good: this writer publishes no more, ever; when all have finished, the stream is complete (E7)."""
        await self._leave(m.Leaving.FINISH)

    def detach(self) -> None:
        """Go away without a word: publishers keep what this writer holds, and the epochs it has not left, until `progress.writerTimeout`; a new
        session of the same id goes on with them. Leaving the block afterwards says nothing more.
        """
        self._left = True

    def segment(self, key: bytes) -> str:
        """The segment that takes `key`."""
        return self._placement.segment(key)

    @property
    def held(self) -> tuple[Any, ...]:
        """What the writer holds: it can append at any time that one of these reaches."""
        return tuple(map(self._decode_time, self._machine.held))

    @property
    def pending_epochs(self) -> tuple[Any, ...]:
        """Times that were appended at and not left, also by an earlier session of the same id: finish them or abort them (E6)."""
        return tuple(map(self._decode_time, self._machine.pending_epochs))

    async def _moved(self, ask: Callable[[], int]) -> None:
        await self._reopened()
        self._end_batches()
        ticket = ask()
        future = self._futures[ticket] = asyncio.get_running_loop().create_future()
        self._act()
        await future

    async def _leave(self, how: m.Leaving) -> None:
        if self._left:
            return
        await self._reopened()
        if how is m.Leaving.ABORT:
            self._drop_batches()
        else:
            self._end_batches()
            self._machine.raise_failure()
        try:
            async with asyncio.timeout(self._open_timeout):
                await self._moved(lambda: self._machine.leave(how, awaited=True))
        except TimeoutError:
            raise TimedOut(
                f"not every publisher answered within {self._open_timeout:g} s that the writer left"
            ) from None
        self._left = True

    # ---- sessions and connections ----

    async def _open_session(self) -> None:
        await self._new_machine()
        for segment in self._directory.segments:
            self._links[segment] = _Link(self, segment)
        self._tasks = [asyncio.create_task(link.run()) for link in self._links.values()]
        self._tasks.append(asyncio.create_task(self._tick()))
        await self._opened()

    async def _reopen(self, error: WriterLost) -> None:
        """E3: a publisher gave the session up; its open epochs are aborted everywhere, and a new session opens on the same connections."""
        try:
            await self._new_machine()
            for segment, link in self._links.items():
                if link.stands:
                    self._machine.connected(segment)
            self._act()
            await self._opened()
            self._machine.fail_quietly(error)
        except EpochalError as failed:
            self._machine.give_up(failed)

    async def _reopened(self) -> None:
        if self._reopening is not None:
            await asyncio.shield(self._reopening)
            self._reopening = None
            self._machine.raise_failure()

    async def _new_machine(self) -> None:
        session = await self._directory.catalog.session(self._directory.namespace, self._directory.name, self.writer_id)
        info = self._directory.info
        self._machine = WriterMachine(
            info.uid, self._directory.shape, self._directory.segments, self.writer_id, session.number,
            now=clock.monotonic(), under=self._under,
        )  # fmt: skip
        self._opening = asyncio.get_running_loop().create_future()

    async def _opened(self) -> None:
        assert self._opening is not None
        try:
            async with asyncio.timeout(self._open_timeout):
                await self._opening
        except TimeoutError:
            waiting = [segment for segment in self._links if not self._machine.is_open_at(segment)]
            raise TimedOut(
                f"segments {waiting} of {self._directory.qualified} did not answer within {self._open_timeout:g} s"
            ) from None
        if self._group is not None:
            self._machine.start_group(self._group)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            now = clock.monotonic()
            self._machine.tick(now)
            for link in self._links.values():
                link.check(now)
            self._act()

    async def _stop(self) -> None:
        tasks = [*self._tasks, *([self._reopening] if self._reopening is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks, self._reopening = [], None
        for link in self._links.values():
            link.close()
        self._end(WriterClosed("the writer was closed"))

    def fail(self, error: EpochalError) -> None:
        """The session cannot go on: everything open fails."""
        self._machine.give_up(error)
        self._act()

    # ---- the machine's effects ----

    def _act_soon(self) -> None:
        if not self._acting:
            self._acting = True
            asyncio.get_running_loop().call_soon(self._act)

    def _act(self) -> None:
        """Send what the machine wants sent, packed by segment, and tell callers what it tells."""
        self._acting = False
        machine = self._machine
        for effect in machine.take():
            if type(effect) is Send:
                self._links[effect.segment].send(effect.message)
            elif type(effect) is Reconnect:
                self._links[effect.segment].lose(Unavailable(effect.reason))
        for link in self._links.values():
            link.flush()
        for told in machine.told():
            self._tell(told)
        if not machine.busy:
            idle, self._idle = self._idle, []
            for waiter in idle:
                if not waiter.done():
                    waiter.set_result(None)
        self._room.set()

    def _tell(self, told: Ready | Acked | Moved | Failed | Over) -> None:
        match told:
            case Acked():
                self._resolve(told.ticket, told.position)
            case Moved():
                self._resolve(told.ticket, None)
            case Failed():
                future = self._futures.pop(told.ticket, None)
                if future is not None and not future.done():
                    future.set_exception(told.error)
            case Ready():
                if self._opening is not None and not self._opening.done():
                    self._opening.set_result(None)
            case Over():
                self._end(told.error)
                if isinstance(told.error, WriterLost) and self._reopening is None and self._tasks:
                    self._reopening = asyncio.create_task(self._reopen(told.error))

    def _resolve(self, ticket: int, result: m.Position | None) -> None:
        future = self._futures.pop(ticket, None)
        if future is not None and not future.done():
            future.set_result(result)

    def _end(self, error: EpochalError) -> None:
        futures, self._futures = list(self._futures.values()), {}
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # awaited or not
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(error)
        self._room.set()


def _pass_on(done: "asyncio.Future[m.Position]", promise: "asyncio.Future[m.Position]") -> None:
    if promise.done():
        return
    error = done.exception()
    if error is None:
        promise.set_result(done.result())
    else:
        promise.set_exception(error)
        promise.exception()  # awaited or not: the machine raises it at the next move


class _Link:
    """One segment's connection on `ingest`: kept up until cancelled."""

    def __init__(self, writer: Writer, segment: str) -> None:
        self._writer, self._segment = writer, segment
        self._socket: Socket | None = None
        self._packer = wire.Packer()
        self._lost: asyncio.Future[EpochalError] | None = None
        self._heard = clock.monotonic()

    async def run(self) -> None:
        """Connect, and connect again while a retry can help."""
        backoff = Backoff()
        while True:
            try:
                error = await self._connect_once(backoff)
            except EpochalError as failed:
                error = failed
            if not worth_retrying(error):
                self._writer.fail(error)
                return
            self._writer._directory.stale()
            await backoff.pause()

    async def _connect_once(self, backoff: Backoff) -> EpochalError:
        writer = self._writer
        address = await writer._directory.address(self._segment, "ingest")
        self._lost = asyncio.get_running_loop().create_future()
        self._socket = Socket(writer._context, zmq.DEALER, self._received, writer._act)
        self._backoff = backoff
        try:
            self._socket.watch(lambda: self.lose(Unavailable(f"the connection to segment {self._segment} was lost")))
            self._socket.zmq.connect(address)
            self._socket.start()
            self._heard = clock.monotonic()
            writer._machine.connected(self._segment)
            writer._act()
            return await self._lost
        finally:
            writer._machine.disconnected(self._segment)
            self.close()

    @property
    def stands(self) -> bool:
        """Whether there is a connection now."""
        return self._socket is not None

    def send(self, message: m.Message) -> None:
        """Gather a message; `flush` sends."""
        self._packer.add(message)

    def flush(self) -> None:
        """Send what was gathered, together."""
        for frames in self._packer.flush():
            if self._socket is None:
                continue  # sent again after the reconnect (E10)
            try:
                self._socket.send(frames)
            except zmq.Again:
                self.lose(Unavailable(f"the send queue to segment {self._segment} is full"))
                return

    def _received(self, frames: Frames) -> None:
        self._heard = clock.monotonic()
        try:
            for message in wire.decode(frames):
                if type(message) is m.Opened:
                    self._backoff.reset()
                self._writer._machine.receive(self._segment, message)
        except EpochalError as error:
            self.lose(error)

    def check(self, now: float) -> None:
        """Give up on a publisher that owes answers and says nothing."""
        if not self._writer._machine.owed(self._segment):
            self._heard = now
        elif now - self._heard > ANSWER_TIMEOUT:
            self.lose(TimedOut(f"segment {self._segment} has not answered for {ANSWER_TIMEOUT:g} s"))

    def lose(self, error: EpochalError) -> None:
        """The connection must be made anew."""
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(error)

    def close(self) -> None:
        """Close the socket; what was gathered is dropped."""
        self._packer = wire.Packer()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
