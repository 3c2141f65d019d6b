"""Publishes the records of the inputs: gives each its time and key, sends them, and counts what is acknowledged.

The inputs know nothing of streams; here an item becomes part of an append. The summary of `epochal pub` ("published up
to line 16") counts only acknowledged records.
"""

import asyncio
import errno
import json
import sys
import time as clock
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

import epochal
from epochal.cli.io.arrow_rows import record_batch
from epochal.cli.io.inputs import Item, Source, bad
from epochal.cli.io.output import dumps, json_value, parse_time
from epochal.cli.io.signals import to_the_end
from epochal.cli.io.terminal import console, is_live, lost_when_closed, note
from epochal.cli.tracing import SendSpans
from epochal.client.encoding.columns import key_bytes
from epochal.client.encoding.encodings import encoder
from epochal.client.encoding.record_checks import RecordChecks
from epochal.errors import EpochalError, PayloadTooLarge, RecordTypeError, TimeShapeError
from epochal.protocol.times import Time, TimeShape, less_equal, to_json
from epochal.protocol.wire import MAX_KEY
from epochal.resources.schemas import Schema

FLUSH_INTERVAL = 1.0
"""Seconds between flushes, so that after a failure the message can name the record from which to go on."""
LAST_WORDS = 10.0
"""Seconds for what is under way to be acknowledged after Ctrl-C."""
PLAIN_INTERVAL = 10.0
"""Seconds between lines where nothing can be redrawn, so that a log is not flooded."""


@dataclass(slots=True)
class RecordGroup:
    """Records that go out together: one time, one key."""

    time: Time
    key: bytes | None
    items: list[Item]

    @property
    def records(self) -> list[Any]:
        """The records to publish."""
        return [item.record for item in self.items]

    @property
    def where(self) -> str:
        """Where each record was read, for messages."""
        first, last = self.items[0].where, self.items[-1].where
        return first if first == last else f"{first} to {last}"

    def halves(self) -> "Iterator[RecordGroup]":
        """Two groups, each with one half of the records."""
        middle = len(self.items) // 2
        for items in (self.items[:middle], self.items[middle:]):
            yield RecordGroup(self.time, self.key, items)


@dataclass(slots=True)
class RecordPlacement:
    """The time and key of each record. Either `time` or `time_field` is given; with `in_order` times never go back."""

    shape: TimeShape
    time: Time | None
    time_field: str | None
    key: bytes | None
    key_field: str | None
    in_order: bool
    checks: RecordChecks | None = None
    """The checks by the stream's schema, if it declares one that records can be compared with."""
    encoding: str = "bytes"
    """With msgpack and json each record is encoded before any of its chunk is sent, so that a wrong one is named."""
    schema: Schema | None = None
    """The stream's: fields of times and keys that it does not declare are left out, as `append_frame` does."""
    _latest: Time | None = None

    def start(self) -> None:
        """Forget the times that were seen."""
        self._latest = None

    def appends(self, items: Iterable[Item]) -> Iterator[RecordGroup]:
        """Group records by time and key, in the order of each first one.

        Raises `RecordTypeError`, which names the record, after those before it were yielded.
        """
        groups: dict[tuple[Time, bytes | None], RecordGroup] = {}
        items = list(items)
        published, failed = self._fitting(self._without_placing(items))
        for item, kept in zip(items, published, strict=False):  # records before the first wrong one
            try:
                place = self._time(item), self._key(item)
            except RecordTypeError as error:  # raised below, after the records before it
                failed = error
                break
            group = groups.get(place)
            if group is None:
                groups[place] = RecordGroup(*place, [kept])
            else:
                group.items.append(kept)
        yield from groups.values()
        if failed is not None:
            raise failed

    def _without_placing(self, items: list[Item]) -> list[Item]:
        """The items without the fields of times and keys that the stream does not declare."""
        declared = set() if self.schema is None else {field.name for field in self.schema.fields}
        left_out = {self.time_field, self.key_field} - declared
        if self.schema is None or not left_out - {None}:
            return items
        return [
            Item(item.source, item.number, {name: item.record[name] for name in item.record if name not in left_out})
            if isinstance(item.record, dict) else item
            for item in items
        ]  # fmt: skip

    def _fitting(self, items: list[Item]) -> tuple[list[Item], RecordTypeError | None]:
        """The items before the first that cannot be published, and what is wrong with that one."""
        fault = None if self.checks is None else self.checks.fault([item.record for item in items])
        failed = None if fault is None else bad(items[fault.index], fault.reason)
        fitting = items if fault is None else items[: fault.index]
        if self.encoding not in ("msgpack", "json"):
            return fitting, failed
        encode_all = encoder(self.encoding)
        try:
            encode_all([item.record for item in fitting])
        except RecordTypeError:
            for index, item in enumerate(fitting):
                try:
                    encode_all([item.record])
                except RecordTypeError as error:
                    return fitting[:index], bad(item, str(error).removeprefix("record 0 "))
        return fitting, failed

    def _time(self, item: Item) -> Time:
        if self.time is not None:
            return self.time
        value = _field(item, self.time_field or "")
        try:
            time = parse_time(value, self.shape) if isinstance(value, str) else self.shape.from_json(value)
        except TimeShapeError:
            wrong = f"{self.time_field} is {dumps(json_value(value))[:80]}"
            raise bad(item, f"{wrong}, and this stream's times have the shape {self.shape}") from None
        if self.in_order:
            if self._latest is not None and not less_equal(self._latest, time):
                raise bad(item, f"its time {value} is not at or after {self._latest}, and --in-order promised that")
            self._latest = time
        return time

    def _key(self, item: Item) -> bytes | None:
        if self.key_field is None:
            return self.key
        value = _field(item, self.key_field)
        try:
            key = key_bytes(value) if isinstance(value, _KEYS) else dumps(json_value(value)).encode()
        except UnicodeEncodeError:
            raise bad(item, f"its key, in {self.key_field}, is no text that UTF-8 has") from None
        if key is not None and len(key) > MAX_KEY:
            raise bad(item, f"its key, in {self.key_field}, has {len(key):,} bytes; a key has at most {MAX_KEY:,}")
        return key


_KEYS = (str, bytes, type(None))
"""Types of values that are a key as they are; a value of any other type becomes a key as JSON."""


def _field(item: Item, name: str) -> Any:
    if not isinstance(item.record, dict):
        raise bad(item, f"has no field {name}: it is no object")
    if name not in item.record:
        raise bad(item, f"has no field {name}; it has: {', '.join(map(str, item.record))[:200]}")
    return item.record[name]


def encode(append: RecordGroup, encoding: str, schema: Schema | None) -> Sequence[Any]:
    """The records as the writer takes them: for Arrow one batch, of the declared schema if there is one."""
    if encoding != "arrow":
        return append.records
    try:
        return [record_batch(append.records, schema)]
    except RecordTypeError as error:
        if len(append.items) > 1:  # name the record, where one alone is wrong
            for item in append.items:
                encode(RecordGroup(append.time, append.key, [item]), encoding, schema)
        raise RecordTypeError(f"{append.where}: {error}") from None


class Counter(AbstractContextManager["Counter"]):
    """Shows how many records were sent, of `total` if that is known; shows nothing when `quiet`."""

    def __init__(self, total: int | None, quiet: bool) -> None:
        self._total = total
        self._quiet = quiet
        self._began = clock.monotonic()
        self._reported = self._began
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        if not self._quiet and is_live(sys.stderr):
            parts = [BarColumn(24)] if self._total else [SpinnerColumn("line")]
            self._bar = Progress(*parts, TextColumn("{task.description}"), TimeElapsedColumn(),
                                 console=console(sys.stderr), transient=True)  # fmt: skip
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with lost_when_closed():
                self._bar.stop()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return clock.monotonic() - self._began

    def show(self, published: int) -> None:
        """Show how many records were sent by now."""
        if self._bar is not None:
            self._bar.update(self._task, completed=published, description=self._words(published))
        elif not self._quiet and clock.monotonic() - self._reported >= PLAIN_INTERVAL:
            self._reported = clock.monotonic()
            note(f"published {self._words(published)}")

    def _words(self, published: int) -> str:
        total = f" of {self._total:,}" if self._total else ""
        return f"{published:,}{total} records ({published / max(self.seconds, 0.001):,.0f}/s)"


class Interrupted(EpochalError):
    """The end by Ctrl-C or another signal: the records that were read before are published."""

    code = "interrupted"


@dataclass(slots=True)
class RecordSender:
    """One run of the command over its sources."""

    placement: RecordPlacement
    encoding: str
    schema: Schema | None
    topic: bytes
    headers: Mapping[bytes, bytes]
    sends: SendSpans
    wait: bool = False
    """Whether each record is acknowledged, and reported, before the next one is read."""
    quiet: bool = False
    sent: int = 0
    acknowledged: int = 0
    last_acknowledged: Item | None = None
    times: set[Time] = field(default_factory=set)
    """Times at which records were sent."""
    _last: Item | None = None
    _at: Time | None = None

    async def run(self, writer: epochal.Writer, sources: Sequence[Source], counter: Counter) -> EpochalError | None:
        """Publish everything. Returns what ended it early: a bad record, or a signal; what came before is acknowledged.

        Raises what the writer raises, and `TimedOut` when after a signal no acknowledgement comes.
        """
        try:
            return await self._run(writer, sources, counter)
        except EpochalError as error:
            self.sends.over(writer.way, error)
            raise

    async def _run(self, writer: epochal.Writer, sources: Sequence[Source], counter: Counter) -> EpochalError | None:
        ended: EpochalError | None = None
        try:
            await self._send_all(writer, sources, counter)
        except RecordTypeError as error:
            ended = error
        except asyncio.CancelledError:
            ended = Interrupted("interrupted")
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            ended = Interrupted("the terminal is closed")  # it was standard input; its signal comes too
        interrupted = isinstance(ended, Interrupted)
        late = "interrupted, and of the rest nothing was heard"
        if await to_the_end(lambda: self._flush(writer), late, LAST_WORDS, came=interrupted) and not interrupted:
            ended = Interrupted("interrupted")
        return ended

    async def promise(self, writer: epochal.Writer, advance: Time | None, finish: bool) -> EpochalError | None:
        """Advance and finish, if asked to. Returns `Interrupted` if a signal came: it may be done or not."""
        try:
            if advance is not None:
                await writer.advance(advance)
            if finish:
                await writer.finish()
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            return Interrupted(f"interrupted while it {'finished' if finish else 'advanced'}")
        return None

    async def _send_all(self, writer: epochal.Writer, sources: Sequence[Source], counter: Counter) -> None:
        flushed = clock.monotonic()
        async for items in _chunks(sources, one_by_one=self.wait):
            for append in self.placement.appends(items):
                await self._send(writer, append)
                counter.show(self.sent)
            if clock.monotonic() - flushed >= FLUSH_INTERVAL:
                await self._flush(writer)
                flushed = clock.monotonic()

    async def _send(self, writer: epochal.Writer, append: RecordGroup) -> None:
        if self.placement.in_order and append.time != self._at:
            writer.advance_nowait(append.time)
            self._at = append.time
        records = encode(append, self.encoding, self.schema)
        try:
            if self.wait:
                await self._send_one(writer, append, records)
            else:
                with self.sends.current():
                    writer.append_nowait(append.time, records, key=append.key, topic=self.topic, headers=self.headers)
        except PayloadTooLarge as error:
            if len(append.items) == 1:
                raise bad(append.items[0], str(error)) from None
            for half in append.halves():
                await self._send(writer, half)
            return
        except RecordTypeError as error:
            raise RecordTypeError(f"{append.where}: {error}") from None
        if not self.wait:
            self._under_way(append)
            await writer.drain()

    async def _send_one(self, writer: epochal.Writer, append: RecordGroup, records: Sequence[Any]) -> None:
        """Publish one record, and print its position once it is durable.

        After Ctrl-C its acknowledgement is still waited for, by the flush at the end.
        """
        with self.sends.current():
            sending = asyncio.ensure_future(
                writer.append(append.time, records, key=append.key, topic=self.topic, headers=self.headers)
            )
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())  # after Ctrl-C no one awaits it
        await asyncio.sleep(0)  # from here on the record is in flight
        if not sending.done() or sending.exception() is None:
            self._under_way(append)
        position = await asyncio.shield(sending)
        self.acknowledged = self.sent
        self.last_acknowledged = append.items[-1]
        self.sends.over(writer.way)
        if not self.quiet:
            report = {"where": append.where, "time": to_json(append.time), "position": list(position)}
            print(json.dumps(report), flush=True)

    def _under_way(self, append: RecordGroup) -> None:
        self.sent += len(append.items)
        self.sends.sent(len(append.items))
        self.times.add(append.time)
        self._last = append.items[-1]

    async def _flush(self, writer: epochal.Writer) -> None:
        sent, last = self.sent, self._last
        await writer.flush()
        self.sends.over(writer.way)
        self.acknowledged = sent
        self.last_acknowledged = last

    def known(self) -> str:
        """How much is certainly published: `16 records (up to flights.jsonl:16) are published`."""
        if self.last_acknowledged is None:
            return "nothing is published"
        up_to = f" (up to {self.last_acknowledged.where})"
        return f"{self.acknowledged:,} record{'s are' if self.acknowledged > 1 else ' is'} published{up_to}"


async def _chunks(sources: Sequence[Source], *, one_by_one: bool) -> AsyncIterator[list[Item]]:
    for source in sources:
        async for items in source.chunks():
            if not one_by_one:
                yield items
                continue
            for item in items:
                yield [item]
