"""`client.writer(...)`: what a program calls to publish.

The session keeps the connections, and the machine decides what may be sent when (E1 barrier). Here records are encoded,
placed in segments and gathered into batches; `arguments` checks what the program passes, and `departure` ends the
writer.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import zmq

from epochal.client.catalog.directory import Directory
from epochal.client.encoding import frames
from epochal.client.encoding.encodings import encoder
from epochal.client.encoding.record_checks import RecordChecks, record_checks
from epochal.client.metrics import Sends
from epochal.client.sidecar.sidecar import Way
from epochal.client.tracing import Trace, current_trace
from epochal.client.writer.arguments import batch_meta, check_arguments, check_topic, checked_headers
from epochal.client.writer.batching import Batcher, GatheredBatch, Gathering, Headers, Slot, parts, within_limit
from epochal.client.writer.departure import Departure
from epochal.client.writer.frame_batches import FrameBatch, FrameEncoder
from epochal.client.writer.session import Session, WriterOptions
from epochal.client.writer.source_number_checks import SourceNumberChecks
from epochal.errors import (
    BufferFull,
    EpochalError,
    RecordTypeError,
    UsageError,
    WriterClosed,
)
from epochal.protocol import messages as m
from epochal.protocol.segments import Placement
from epochal.protocol.time_codec import TimeCodec
from epochal.protocol.times import Time

MAX_UNSENT_BYTES = 8 * 2**20
"""Bytes that wait for credit from the publishers, above which `append` waits."""
MAX_UNSENT_NOWAIT = 64 * 2**20
"""... and above which `append_nowait` raises `BufferFull`."""
Position = m.Position


class Writer:
    """One writer of one stream; made by `client.writer`, used as an async context manager.

    Leaving the block closes the writer (what was appended is whole); leaving it by an exception, a cancellation too,
    aborts the epochs that it appended at and still holds (E4), or with `on_error="detach"` leaves them to the next
    session of its id. `linger` (seconds) lets single records gather into
    batches of up to `max_batch` records; 0 sends each append as its own batch.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        directory: Directory,
        writer_id: str | None,
        options: WriterOptions,
        *,
        time_codec: TimeCodec[Any] | None = None,
    ) -> None:
        self.writer_id = writer_id or f"anonymous-{uuid.uuid4().hex}"
        self.session = Session(context, directory, self.writer_id, options)
        """Its connections to the publishers, and the machine that decides what is sent when."""
        self._options = options
        self._directory = directory
        self._encode_time: Callable[[Any], Time] = (lambda time: time) if time_codec is None else time_codec.encode
        self._decode_time: Callable[[Time], Any] = (lambda time: time) if time_codec is None else time_codec.decode
        self._has_codec = time_codec is not None
        self._checks: RecordChecks | None = None
        self._gathering: Gathering | None = None
        self._source_checks = SourceNumberChecks(self.session)
        self._departure = Departure(self.session, options.open_timeout)

    @property
    def way(self) -> Way:
        """How publishers are reached; decided when the writer opens."""
        return self.session.way

    @property
    def wrong_addresses(self) -> int:
        """How often the publisher at an address from the catalog served something else (E48).

        Each time the connection is made again, after a pause and another look-up.
        """
        return self.session.wrong_addresses

    @property
    def session_number(self) -> int:
        """The number of its session, which the catalog gave it (E6 sessions); a new one where it was opened again."""
        return self.session.machine.session

    @property
    def append_numbers(self) -> dict[str, int]:
        """By segment, the number of this writer's last acknowledged append there; -1 for none (E6 sessions)."""
        session = self.session
        return {segment: session.machine.number(segment) for segment in session.directory.segments}

    async def __aenter__(self) -> Self:
        """Open the writer at every segment (E5).

        Raises `StreamNotFound`, `NoPublisher`, `SchemaMismatch` (S28), `StreamComplete`, `TimedOut`, and `ConfigError`
        where the stream's encoding is arrow and pyarrow is not installed.
        """
        session = self.session
        directory = self._directory
        try:
            await session.look_up()
            self._encode = encoder(directory.encoding, directory.schema)
            if self._options.validate:
                self._checks = record_checks(directory.schema, directory.encoding)
            self._placement: Placement = directory.placement()
            self._source_checks.stream_is_known(directory)
            self._sends = Sends.of(directory.qualified)
            if self._options.linger > 0:
                batcher = Batcher(self._placement, self._options.max_batch)
                self._gathering = session.unsent = Gathering(
                    batcher, self._options.linger, self._send_batch, lambda error: session.machine.fail_quietly(error)
                )
            await session.open()
        except BaseException:
            try:
                await session.withdraw()
            finally:
                await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, or abort or detach after an exception; connections are gone when this returns."""
        try:
            if kind is not None and self._options.detaches:
                self.detach()
            if not self._departure.left and not await self.session.over():
                await self._departure.leave(m.Leaving.CLOSE if kind is None else m.Leaving.ABORT)
        except (EpochalError, asyncio.CancelledError):
            if kind is None:
                # E1 barrier: an append failed, or may still fail, so the epochs cannot be promised to be whole.
                if self._options.detaches:
                    self.detach()
                else:
                    with contextlib.suppress(EpochalError):
                        await self._departure.leave(m.Leaving.ABORT)
                raise
        finally:
            await self._stop()

    async def _abandon(self) -> None:
        """Leave as by an exception, if the writer is still open: its client is being closed."""
        if self.session.running:
            await self.__aexit__(WriterClosed, None, None)

    async def _stop(self) -> None:
        try:
            await self.session.stop(answered=self._departure.answered)
        finally:
            self._departure.left = True

    # ---- appends ----

    async def append(
        self,
        time: Any,
        records: Sequence[Any],
        *,
        key: bytes | None = None,
        topic: bytes = b"",
        headers: Mapping[bytes, bytes] | None = None,
        source: int | None = None,
    ) -> m.Position:
        """Publish `records` as one batch at `time`; returns its position once it is acknowledged.

        `source` is the number that the batch has in the program's own source, rising within the writer's id: what is
        not above the highest one that the segment has is acknowledged as a repeat, with a position at or after its
        first one, and not published again (E50 sources; see `resume_from`). Such a batch is not gathered with others.

        Subscribers find `key` (of at most 1,024 bytes) and `headers`, at most 4 KiB of names and values, in
        `Data.key` and `Data.headers`, and the trace that is current here in `Data.trace`.

        Raises `CapabilityError` for a time below what the writer holds, `TimeShapeError`, `RecordTypeError`,
        `PayloadTooLarge`, `EpochAbortedError`, and `WriterFenced`, `WriterLost` or `StreamGone` when the session is
        over: then the batch may still be published; in the other cases nothing of it is. With `linger`, other parts of
        a batch that was divided may be published: `abort(time)` to drop the epoch. `UsageError` for a key or a topic
        above 1,024 bytes, for a source number that does not rise, or where a writer, a stream or an append cannot have
        one.
        """
        at = self._check(time, records, key, topic)
        given = () if not headers else checked_headers(headers)
        session = self.session
        await session.usable()
        await session.credit(MAX_UNSENT_BYTES)
        session.raise_error()  # it may be over by now
        if source is not None:
            self._source_checks.check_append(key)
            self._send_gathered()  # what was appended before goes first
        if self._gathering is not None and source is None:
            session.machine.appends.check(at)
            promise = self._gathering.add(at, records, key, topic, given, awaited=True)
        else:
            payload, meta = (
                self._encoded(records),
                batch_meta(key, given, current_trace(), source, clock=self._options.clock),
            )
            promise = session.promise(
                session.machine.appends.append(
                    self._placement.segment(key), at, topic, len(records), payload, meta, awaited=True
                )
            )
            session.act_soon()
        if self._sends is not None:
            self._sends.awaited(len(records), promise)
        return await session.outcome(promise, shared=self._gathering is not None and source is None)

    def append_nowait(
        self,
        time: Any,
        records: Sequence[Any],
        *,
        key: bytes | None = None,
        topic: bytes = b"",
        headers: Mapping[bytes, bytes] | None = None,
        source: int | None = None,
    ) -> None:
        """Publish as `append` does, without waiting for the acknowledgement.

        A failure is raised by the next `flush` or move, and no move is sent before (E1 barrier). Raises `BufferFull`
        when appends come faster than they are acknowledged: await `drain()` between them.
        """
        at = self._check(time, records, key, topic)
        given = () if not headers else checked_headers(headers)
        session, machine = self.session, self.session.machine
        session.raise_error()
        if machine.appends.waiting_bytes > MAX_UNSENT_NOWAIT:
            raise BufferFull(
                f"more than {MAX_UNSENT_NOWAIT} bytes wait for acknowledgements; await drain() between appends"
            )
        if source is not None:
            self._source_checks.check_append(key)
            self._send_gathered()  # what was appended before goes first
        if self._gathering is not None and source is None:
            machine.appends.check(at)
            self._gathering.add(at, records, key, topic, given, awaited=False)
        else:
            payload, meta = (
                self._encoded(records),
                batch_meta(key, given, current_trace(), source, clock=self._options.clock),
            )
            machine.appends.append(self._placement.segment(key), at, topic, len(records), payload, meta)
            session.act_soon()
        if self._sends is not None:
            self._sends.sent(len(records))

    async def append_frame(
        self,
        frame: Any,
        time: frames.TimeColumns | None = None,
        *,
        at: Any = None,
        key: str | None = None,
        topic: bytes = b"",
        headers: Mapping[bytes, bytes] | None = None,
    ) -> dict[Any, int]:
        """Publish the rows of a table of pandas, polars or Arrow; returns how many there are at each time.

        `frame` is an object that offers Arrow's C stream (`__arrow_c_stream__`). `time` names its column of times: of
        integers, or a struct of them; for times that are tuples also a list of columns, one for each part. Without
        `time`, all rows are at the time `at`. `key` names a column of text, binary or integers that chooses the segment
        of each row; integers count as their decimal digits, and a row where it is null may go to any segment. `topic`
        and `headers` are those of every batch.

        A record holds the columns that the stream declares; where it declares none, all but those of `time`. With the
        encoding arrow a record is a record batch of up to about 4 MiB, with msgpack and json it is a mapping, and a
        batch has up to `max_batch` of them. Rows of one time and key keep their order. Times are appended in ascending
        order, and none is advanced to.

        Returns once all is acknowledged. The whole frame is checked and encoded before any of it is sent. Raises
        `UsageError`, `TimeShapeError` or `RecordTypeError`, which name the column, also one of which a value would
        change; `UsageError` where pyarrow is not installed; else as `append`, and then some of the batches may be
        published.
        """
        if (time is None) == (at is None):
            raise UsageError('append_frame takes either time="COLUMN" or at=TIME')
        self._check_usable(topic)
        given = () if not headers else checked_headers(headers)
        await self.session.usable()
        await self.session.credit(MAX_UNSENT_BYTES)
        if time is None:
            self._directory.shape.check(self._encode_time(at))
        encoder = FrameEncoder(self._directory.encoding, self._encode, self._checks, self._options.max_batch)
        counts: dict[Any, int] = {}
        batches: list[FrameBatch] = []
        for group in self._grouped(frame, time, at, key):
            counts[group.time] = counts.get(group.time, 0) + group.rows.num_rows
            for batch in encoder.batches(group, self._encode_time(group.time)):
                batches.append(batch)
                await asyncio.sleep(0)  # a large frame takes seconds, and heartbeats must go on
        if batches:
            await self._append_batches(batches, topic, given)
        return counts

    def _grouped(self, frame: Any, time: frames.TimeColumns | None, at: Any, key: str | None) -> Iterator[frames.Group]:
        """The rows of a frame by time and segment, in ascending order of times."""
        directory = self._directory
        rows = frames.read(
            frame, time, key, encoding=directory.encoding, schema=directory.schema,
            shape=None if self._has_codec else directory.shape,
        )  # fmt: skip
        for group in frames.groups(rows, self._placement.segment):
            yield group if time is not None else group._replace(time=at)

    async def _append_batches(self, batches: list[FrameBatch], topic: bytes, headers: Headers) -> None:
        """Append all batches, or none where one cannot be; returns once all are acknowledged."""
        session, trace = self.session, current_trace()
        await session.usable()
        self._check_usable(topic)
        machine = session.machine  # not earlier: a session that was opened again has another one
        for time in {batch.time for batch in batches}:
            machine.appends.check(time)
        self._send_gathered()  # records of a key keep their order
        tickets = []
        for time, segment, key, payload, count in batches:
            placed = self._placement.segment(None) if segment is None else segment
            meta = batch_meta(key, headers, trace, clock=self._options.clock)
            tickets.append(machine.appends.append(placed, time, topic, count, payload, meta, awaited=True))
        promise: asyncio.Future[m.Position] = asyncio.get_running_loop().create_future()
        session.share(tickets, promise)
        session.act_soon()
        if self._sends is not None:
            self._sends.awaited(sum(batch.records for batch in batches), promise)
        await session.outcome(promise, shared=True)

    async def drain(self) -> None:
        """Let what was appended leave, and wait while more is queued than the publishers give credit for.

        Use it in a loop of `append_nowait` to limit what is queued. Raises nothing: failures are raised by `flush` and
        moves.
        """
        await asyncio.sleep(0)
        await self.session.credit(MAX_UNSENT_BYTES)

    async def flush(self) -> None:
        """Wait until everything appended and moved so far is acknowledged.

        Raises the first failure that no one awaited: of an `append_nowait`, of a move, or of a call that was cancelled
        (E1 barrier); and why the session is over, as `append`.
        """
        await self.session.usable()
        self._send_gathered()
        await self.session.settle()
        self.session.machine.raise_failure()

    def _check(self, time: Any, records: Sequence[Any], key: object, topic: object) -> Time:
        """The encoded time of an append; raises for arguments that no append may have, or once the writer has left."""
        if self._departure.left:
            raise self._has_left()
        check_arguments(records, key, topic)
        if self._checks is not None and (fault := self._checks.fault(records)) is not None:
            raise RecordTypeError(
                f"record {fault.index} is not what {self._directory.qualified} declares: {fault.reason}"
            )
        return self._encode_time(time)

    def _check_usable(self, topic: object) -> None:
        if self._departure.left:
            raise self._has_left()
        check_topic(topic)

    def _has_left(self) -> WriterClosed:
        return WriterClosed(f"writer {self.writer_id!r} has left the stream; open a new one")

    def _encoded(self, records: Sequence[Any]) -> bytes:
        return within_limit(self._encode(records))

    @property
    def resume_from(self) -> int:
        """Up to this source number all was published when the writer opened, and -1 for nothing (E50 sources).

        A program that goes on with the next one, with the same keys and in the same order, publishes each item once.
        Raises `EpochAbortedError` where an epoch with some of the items was aborted before the writer had left it, and
        `UsageError` where a writer or a stream cannot have source numbers.
        """
        self._source_checks.check_writer()
        return self.session.machine.resume_from

    def _send_gathered(self) -> None:
        if self._gathering is not None:
            self._gathering.send_all()

    def _send_batch(
        self, slot: Slot, batch: GatheredBatch, trace: Trace | None, awaited: bool, promise: asyncio.Future[m.Position]
    ) -> None:
        """Send a batch, as several appends if too large; its promise is resolved once all are logged (E1 barrier)."""
        divided = parts(batch.records, self._encode)
        meta = batch_meta(batch.key, slot.headers, trace, clock=self._options.clock)
        append = self.session.machine.appends.append
        tickets = [
            append(slot.segment, slot.time, slot.topic, count, payload, meta, awaited=awaited)
            for payload, count in divided
        ]
        self.session.share(tickets, promise)
        self.session.act_soon()

    # ---- moves ----

    async def advance(self, time: Any) -> None:
        """Downgrade all capabilities to `time`.

        What was appended before is whole. Sent once every earlier append is acknowledged; if one failed, raises that
        failure and moves nothing (E1 barrier). An `advance` that is done already, because all that is held is after
        `time`, only waits for what was asked before, so that a program that starts again can repeat its moves
        (E50 sources). Raises `CapabilityError` for a time that is neither at or after what is held, nor before all of
        it, `TimeShapeError`, and why the session is over, as `append`.
        """
        await self._moved(lambda: self.session.machine.advance(self._encode_time(time), awaited=True))

    def advance_nowait(self, time: Any) -> None:
        """Queue the move; it is sent when the E1 barrier allows, and later appends need not wait for it.

        Raises `CapabilityError` and `TimeShapeError` at once; other failures are raised by the next `flush` or move.
        """
        self._send_gathered()
        self.session.machine.advance(self._encode_time(time))
        self.session.act_soon()

    async def hold(self, time: Any) -> None:
        """Hold a further capability, at or after one that is held (S35); raises as `advance`."""
        await self._moved(lambda: self.session.machine.hold(self._encode_time(time), awaited=True))

    async def release(self, time: Any) -> None:
        """Give one capability up (S35).

        Raises `CapabilityError` for a time that is not held, and for the last one; else as `advance`.
        """
        await self._moved(lambda: self.session.machine.release(self._encode_time(time), awaited=True))

    async def abort(self, time: Any) -> None:
        """Abort the epoch `time`: it can never complete (E2). Waits for no append; raises as `advance`."""
        self._send_gathered()
        await self._moved(lambda: self.session.machine.abort(self._encode_time(time), awaited=True))

    async def close(self) -> None:
        """Leave: what was appended is whole (E4). The last writer's capability is kept for the next (E3 lost writers).

        Raises the first failure that no one awaited, and then has not left (E1 barrier); `TimedOut` when not every
        publisher answers. After a cancellation, closing again or leaving the block goes on with it.
        """
        await self._departure.leave(m.Leaving.CLOSE)

    async def finish(self) -> None:
        """Leave for good: this writer publishes no more; when all have finished, the stream is complete (E7 finish).

        Raises as `close`.
        """
        await self._departure.leave(m.Leaving.FINISH)

    def detach(self) -> None:
        """Go away without a message to the publishers.

        Publishers keep what this writer holds, and the epochs it has not left, until `progress.writerTimeout`, and with
        `progress.whenLost: hold` until it is back or released (E46 hold); a new session of the same id goes on with
        them. What is not acknowledged yet may or may not be published. Leaving the block afterwards sends nothing more.
        """
        self._departure.left = True

    def segment(self, key: bytes) -> str:
        """The segment that takes `key`."""
        return self._placement.segment(key)

    @property
    def held(self) -> tuple[Any, ...]:
        """What the writer holds: it can append at any time that is at or after one of these.

        While a session is opened again after `WriterLost`, this is what the one before held.
        """
        return tuple(map(self._decode_time, self.session.held))

    @property
    def pending_epochs(self) -> tuple[Any, ...]:
        """Times that were appended at and not left yet, also by an earlier session of the same id.

        Finish them or abort them (E6 sessions).
        """
        return tuple(map(self._decode_time, self.session.machine.pending_epochs))

    async def _moved(self, ask: Callable[[], int]) -> None:
        await self.session.usable()
        self._send_gathered()
        await self.session.outcome(self.session.request(ask))
