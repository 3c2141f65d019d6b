"""The three measurements of `epochal bench`: appends and reads against real publishers, by the public client alone.

After a signal each ends as it does at its end, and what was measured until then is its result.
"""

import asyncio
import contextlib
import os
import time as wall
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, TypeAlias

import epochal
from epochal.cli.bench.histogram import Histogram
from epochal.cli.bench.progress import progress
from epochal.cli.bench.records import count_records, encodable, filler, moment_of, stamped, values_of
from epochal.cli.bench.results import LatencyResult, PubResult, SubResult, show_percentiles, show_rate
from epochal.cli.bench.schedule import SECOND, EpochSchedule, Schedule, next_time
from epochal.cli.io.signals import to_the_end
from epochal.client.encoding.encodings import encoder
from epochal.errors import PayloadTooLarge
from epochal.protocol.times import Time, less_equal
from epochal.protocol.wire import MAX_PAYLOAD
from epochal.transport.shutdown import ended

TURN_BYTES = 256 * 1024
"""Bytes appended before other tasks get a turn: fewer cost throughput, more make the reader wait."""
TURN_BATCHES = 256
TURN_RECORDS = 64
"""Records of `bench latency` that are sent at once, when many are late."""
SAMPLE_INTERVAL = SECOND // 1000
"""Nanoseconds between two appends that are timed: to await one costs as much as to append a small batch."""
EPOCH_BYTES = 32 * 2**20
"""Bytes of payload after which an epoch ends early; a reader of whole epochs keeps at most 256 MiB of them."""
LAST_WORDS = 10.0
"""Seconds for arrivals once all is acknowledged, and after Ctrl-C for acknowledgements."""
LATE_END = SECOND // 10
"""Nanoseconds after its end in which a schedule that is late may still be made up for."""
FINE_SLEEP = 0.002
"""Seconds before a moment from which on a thread sleeps: an event loop wakes up to a millisecond late."""


@dataclass(frozen=True, slots=True)
class Appends:
    """What `bench pub` and `bench latency` append, and for how long. `count`: records; one of the two ends it."""

    stream: str
    encoding: str
    size: int
    epoch_seconds: float
    seconds: float | None = None
    count: int | None = None
    batch: int = 1
    rate: int = 1
    clock: bool = False


async def _until_interrupted(work: Coroutine[Any, Any, None]) -> bool:
    """Whether Ctrl-C has ended the work."""
    try:
        await work
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
        return True
    return False


Watch: TypeAlias = Callable[[epochal.Writer], AbstractAsyncContextManager[None]]
"""Makes the context in which a writer is open."""


def _unwatched(_: epochal.Writer) -> AbstractAsyncContextManager[None]:
    return contextlib.nullcontext()


@contextlib.asynccontextmanager
async def _opened(client: epochal.Client, appends: Appends, watch: Watch) -> AsyncIterator[tuple[epochal.Writer, Time]]:
    """An anonymous writer, and the first time to append at: one after the frontier, so in an epoch that has not begun.

    An epoch at the frontier may hold records of others, or be aborted.
    """
    writer = client.writer(appends.stream, clock=appends.clock, validate=False)
    async with watch(writer), writer:
        first = next_time(max(writer.held))
        assert first is not None, "a stream with one time only is refused before"
        await writer.advance(first)
        yield writer, first


def _payload_size(encoding: str, records: list[Any]) -> int:
    """Bytes of a batch as it is encoded. Raises `PayloadTooLarge` for one that no publisher takes."""
    size = len(encoder(encoding)(records))
    if size > MAX_PAYLOAD:
        raise PayloadTooLarge(
            f"an append has {size:,} bytes, at most {MAX_PAYLOAD:,} are allowed: lower --batch or --size"
        )
    return size


async def _end_epochs(writer: epochal.Writer, later: Time, interrupted: bool) -> bool:
    """Advance past everything that was appended. After a signal this waits only briefly, then raises `TimedOut`.

    Returns whether a signal has come by now.
    """
    words = f"interrupted; the last epoch could not be ended within {LAST_WORDS:g} s"
    return await to_the_end(lambda: writer.advance(later), words, LAST_WORDS, came=interrupted)


async def _settle(writer: epochal.Writer, interrupted: bool) -> bool:
    """Wait until everything is acknowledged. After a signal this waits only briefly, then raises `TimedOut`.

    Returns whether a signal has come by now.
    """
    words = f"interrupted; not everything was acknowledged within {LAST_WORDS:g} s"
    return await to_the_end(writer.flush, words, LAST_WORDS, came=interrupted)


# ---- pub ----


@dataclass(slots=True)
class PubMeasure:
    """Appends as fast as the publishers' credit allows."""

    appends: Appends
    result: PubResult = field(default_factory=PubResult)
    interrupted: bool = False
    way: str = ""
    """How publishers were reached."""
    _records: list[Any] = field(default_factory=list)
    _payload: int = 0
    """Bytes of one batch as it is encoded."""
    _epochs: EpochSchedule = field(default_factory=lambda: EpochSchedule(0, 0, 0))
    _began: int = 0
    _sampled: int = 0
    """When the last append was timed."""
    _timed: set[asyncio.Task[None]] = field(default_factory=set)
    _shown: int = 0

    async def run(self, client: epochal.Client, watch: Watch = _unwatched) -> None:
        """Append until the time is over or the count is reached; raises what a writer raises."""
        appends = self.appends
        self._records = encodable(appends.encoding, [filler(appends.size)] * appends.batch)
        self._payload = _payload_size(appends.encoding, self._records)
        async with _opened(client, appends, watch) as (writer, first):
            self.way = writer.way
            self.result.first_time = first
            self._epochs = EpochSchedule(first, appends.epoch_seconds, EPOCH_BYTES)
            self._began = perf_counter_ns()
            try:
                async with progress(self._words):
                    self.interrupted = await _until_interrupted(self._append_all(writer))
                    self.interrupted = await _settle(writer, self.interrupted)
                await asyncio.gather(*self._timed)
            finally:
                await ended(self._timed)
            self.result.traffic.nanoseconds = perf_counter_ns() - self._began
            self.result.next_time = self._epochs.end()
            self.result.epochs = self._epochs.epochs
            self.interrupted = await _end_epochs(writer, self.result.next_time, self.interrupted)

    async def _append_all(self, writer: epochal.Writer) -> None:
        appends = self.appends
        left = appends.count
        end = None if appends.seconds is None else int(appends.seconds * SECOND)
        turn = min(max(TURN_BYTES // self._payload, 1), TURN_BATCHES)
        while left is None or left > 0:
            elapsed = perf_counter_ns() - self._began
            if end is not None and elapsed >= end:
                return
            if (later := self._epochs.advance(elapsed)) is not None:
                writer.advance_nowait(later)
            whole = turn if left is None else min(turn, left // appends.batch)
            await self._append_turn(writer, whole)
            if left is not None:
                left -= whole * appends.batch
                if 0 < left < appends.batch:
                    self._append_part(writer, left)
                    left = 0
            await writer.drain()

    async def _append_turn(self, writer: epochal.Writer, batches: int) -> None:
        """Append some batches. The first is timed if no append was timed for `SAMPLE_INTERVAL`."""
        left = batches
        now = perf_counter_ns()
        if left and now - self._sampled >= SAMPLE_INTERVAL:
            self._sampled = now
            left -= 1
            self._add(self.appends.batch, self._payload)
            timed = asyncio.create_task(self._time(writer, now))
            self._timed.add(timed)
            timed.add_done_callback(self._forget)
            await asyncio.sleep(0)  # it appends now, since `drain` has left credit; later the time may have passed
        time, records, append = self._epochs.time, self._records, writer.append_nowait
        for _ in range(left):
            append(time, records)
        self._add(left * self.appends.batch, left * self._payload, left)

    def _append_part(self, writer: epochal.Writer, count: int) -> None:
        """Append the last records, which do not fill a batch."""
        records = encodable(self.appends.encoding, [filler(self.appends.size)] * count)
        writer.append_nowait(self._epochs.time, records)
        self._add(count, _payload_size(self.appends.encoding, records))

    def _add(self, records: int, payload: int, batches: int = 1) -> None:
        self.result.traffic.add(records, payload, batches)
        self._epochs.add(payload)

    async def _time(self, writer: epochal.Writer, began: int) -> None:
        await writer.append(self._epochs.time, self._records)
        self.result.acknowledged.add(perf_counter_ns() - began)

    def _forget(self, timed: asyncio.Task[None]) -> None:
        """Keep an append that failed; its error is raised at the end."""
        if timed.cancelled() or timed.exception() is None:
            self._timed.discard(timed)

    def _words(self, seconds: float) -> str:
        records, new = self.result.traffic.records, self.result.traffic.records - self._shown
        self._shown = records
        took = (perf_counter_ns() - self._began) / SECOND
        return f"{took:.0f} s: {records:,} records appended, {show_rate(new / seconds)} records/s"


# ---- sub ----


@dataclass(frozen=True, slots=True)
class Reads:
    """What `bench sub` reads, and for how long. `count`: records."""

    stream: str
    encoding: str
    since: str | epochal.Cursor | None
    seconds: float | None
    count: int | None


@dataclass(slots=True)
class SubMeasure:
    """Reads events as they come."""

    reads: Reads
    result: SubResult = field(default_factory=SubResult)
    interrupted: bool = False
    _open: set[Time] = field(default_factory=set)
    """Times with records whose epochs are not complete yet."""
    _began: int = 0
    _first: int = 0
    _shown: int = 0

    async def run(self, client: epochal.Client) -> None:
        """Read until the time is over, the count is reached or the stream is complete.

        Raises what a subscription raises.
        """
        async with client.subscribe(self.reads.stream, since=self.reads.since) as subscription:
            await subscription.ready.wait()
            self._began = perf_counter_ns()
            async with progress(self._words):
                self.interrupted = await _until_interrupted(self._read_in_time(subscription))

    async def _read_in_time(self, subscription: epochal.Subscription) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.reads.seconds):
                await self._read(subscription)

    async def _read(self, subscription: epochal.Subscription) -> None:
        result, count = self.result, self.reads.count
        async for event in subscription.events():
            if type(event) is epochal.Data:
                self._add(event)
                if count is not None and result.traffic.records >= count:
                    return
            elif type(event) is epochal.FrontierChanged:
                self._complete(event.frontier)
            elif type(event) is epochal.EpochAborted:
                result.aborted += 1
                self._open.discard(event.time)
            elif type(event) is epochal.Gap:
                result.gaps += 1
        self._complete(())

    def _add(self, data: epochal.Data) -> None:
        result, now = self.result, perf_counter_ns()
        records = count_records(data, self.reads.encoding)
        if not self._first:
            self._first = now
            result.first.add(records, len(data.payload))
        result.traffic.add(records, len(data.payload))
        result.traffic.nanoseconds = now - self._first
        self._open.add(data.time)
        if data.published is not None:
            result.lag.add(wall.time_ns() - data.published * 1_000_000)

    def _complete(self, frontier: tuple[Time, ...]) -> None:
        """Count the epochs that are complete by now."""
        still = {time for time in self._open if any(less_equal(low, time) for low in frontier)}
        self.result.epochs += len(self._open) - len(still)
        self._open = still

    def _words(self, seconds: float) -> str:
        records, new = self.result.traffic.records, self.result.traffic.records - self._shown
        self._shown = records
        took = (perf_counter_ns() - self._began) / SECOND
        return f"{took:.0f} s: {records:,} records received, {show_rate(new / seconds)} records/s"


# ---- latency ----


class LatencyMeasure:
    """Appends single records at a steady rate, and measures how long each takes to a reader in this process."""

    def __init__(self, appends: Appends) -> None:
        self.result = LatencyResult(appends.rate)
        self.interrupted = False
        self.way = ""
        self._appends = appends
        total = round(appends.rate * (appends.seconds or 0)) if appends.count is None else appends.count
        self._schedule = Schedule(appends.rate, max(total, 1))
        self._mark = os.urandom(8).hex().encode()
        """The bytes with which every record of this run begins."""
        self._began = 0
        self._awaited = 0
        """How many records to wait for, once nothing more is sent."""
        self._recent = Histogram()
        """Durations since the last line of progress."""

    async def run(self, client: epochal.Client, watch: Watch = _unwatched) -> None:
        """Append and read until all has arrived; raises what a writer or a subscription raises."""
        encoding, size = self._appends.encoding, self._appends.size
        _payload_size(encoding, encodable(encoding, [filler(size)]))  # this also loads what the encoding needs
        async with (
            client.subscribe(self._appends.stream, partial=True) as subscription,
            _opened(client, self._appends, watch) as (writer, first),
        ):
            await subscription.ready.wait()
            self.way = writer.way
            self.result.first_time = first
            epochs = EpochSchedule(first, self._appends.epoch_seconds, EPOCH_BYTES)
            reading = asyncio.create_task(self._read(subscription), name="read")
            try:
                async with progress(self._words):
                    self.interrupted = await _until_interrupted(self._send(writer, epochs, reading))
                    self._note_end()
                    self.interrupted = await _settle(writer, self.interrupted)
                    await self._all_arrived(reading)
            finally:
                await ended([reading])
            self.result.next_time = epochs.end()
            self.interrupted = await _end_epochs(writer, self.result.next_time, self.interrupted)

    async def _send(self, writer: epochal.Writer, epochs: EpochSchedule, reading: "asyncio.Task[None]") -> None:
        schedule, result = self._schedule, self.result
        rest = filler(self._appends.size)[len(stamped(self._mark, 0, b"")) :]
        end = schedule.at(schedule.total)
        self._began = perf_counter_ns()
        while result.sent < schedule.total and not reading.done():
            elapsed = perf_counter_ns() - self._began
            if elapsed > end + LATE_END:
                return  # what is left cannot be sent at this rate
            if (later := epochs.advance(elapsed)) is not None:
                writer.advance_nowait(later)
            for number in range(result.sent, min(schedule.due(elapsed), result.sent + TURN_RECORDS)):
                self._append(writer, epochs, schedule.at(number), rest)
            await writer.drain()
            await self._sleep_until(schedule.at(result.sent))

    def _append(self, writer: epochal.Writer, epochs: EpochSchedule, at: int, rest: bytes) -> None:
        moment = self._began + at
        record = stamped(self._mark, moment, rest)
        self.result.add_sent(perf_counter_ns() - moment)
        writer.append_nowait(epochs.time, encodable(self._appends.encoding, [record]))
        epochs.add(len(record))

    async def _sleep_until(self, at: int) -> None:
        seconds = (self._began + at - perf_counter_ns()) / SECOND
        if seconds > FINE_SLEEP:
            await asyncio.sleep(seconds - FINE_SLEEP)
            seconds = (self._began + at - perf_counter_ns()) / SECOND
        if seconds > 0:
            await asyncio.to_thread(wall.sleep, seconds)

    def _note_end(self) -> None:
        """Set for how long the schedule ran, and how many records were due by then: after Ctrl-C not all."""
        elapsed = perf_counter_ns() - self._began
        self.result.nanoseconds = min(elapsed, self._schedule.at(self._schedule.total))
        self.result.expected = self._schedule.due(elapsed) if self.interrupted else self._schedule.total

    async def _all_arrived(self, reading: "asyncio.Task[None]") -> None:
        """Wait until everything that was sent has arrived; raises the error that ended the subscription, if one did."""
        self._awaited = self.result.sent
        if self.result.latency.count < self._awaited:
            await asyncio.wait([reading], timeout=LAST_WORDS)
        if reading.done():
            reading.result()

    async def _read(self, subscription: epochal.Subscription) -> None:
        mark, encoding = self._mark, self._appends.encoding
        latency = self.result.latency
        async for event in subscription.events():
            if type(event) is epochal.Data and mark in event.payload:  # others may publish to the stream too
                now = perf_counter_ns()
                for record in values_of(event, encoding):
                    latency.add(now - moment_of(record))
                    self._recent.add(now - moment_of(record))
                if latency.count == self._awaited:
                    return

    def _words(self, seconds: float) -> str:
        recent, self._recent = self._recent, Histogram()
        p50, _, p99, *_ = show_percentiles(recent)
        took = (perf_counter_ns() - self._began) / SECOND
        return f"{took:.0f} s: {self.result.latency.count:,} of {self.result.sent:,} received, p50 {p50}, p99 {p99}"
