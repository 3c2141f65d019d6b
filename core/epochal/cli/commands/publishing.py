"""Sends the records of the inputs, and always knows which of them are acknowledged.

The command's summary at the end ("published up to line 16") comes from here: it counts only acknowledged records.
"""

import asyncio
import json
import time as clock
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import epochal
from epochal.cli.io.inputs import Item, Source
from epochal.cli.io.progress import Counter
from epochal.cli.io.record_to_append import Placing, RecordGroup, encode
from epochal.cli.tracing import SendSpans
from epochal.errors import EpochalError, RecordTypeError, TimedOut
from epochal.protocol.times import Time, to_json
from epochal.resources.schemas import Schema

FLUSH_INTERVAL = 1.0
"""Seconds between flushes, so that after a failure the message can name the record from which to go on."""
LAST_WORDS = 10.0
"""Seconds for what is under way to be acknowledged after Ctrl-C."""


class Interrupted(EpochalError):
    """Ctrl-C: what was read before is published."""

    code = "interrupted"


@dataclass(slots=True)
class Publishing:
    """One run of the command over its sources."""

    placing: Placing
    encoding: str
    schema: Schema | None
    topic: bytes
    headers: Mapping[bytes, bytes]
    sends: SendSpans
    wait: bool = False
    """Whether each record is acknowledged, and said to be, before the next one is looked at."""
    quiet: bool = False
    sent: int = 0
    acknowledged: int = 0
    last_acknowledged: Item | None = None
    times: set[Time] = field(default_factory=set)
    """At which something was sent."""
    _last: Item | None = None
    _at: Time | None = None

    async def run(self, writer: epochal.Writer, sources: Sequence[Source], counter: Counter) -> EpochalError | None:
        """Publish everything. Returns what ended it early: a bad record, or Ctrl-C; what came before is acknowledged.

        Raises what the writer raises, and `TimedOut` when after Ctrl-C no acknowledgement comes.
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
        try:
            async with asyncio.timeout(LAST_WORDS if isinstance(ended, Interrupted) else None):
                await self._flush(writer)
        except TimeoutError:
            raise TimedOut(f"interrupted; {self.known()}, and of the rest nothing was heard") from None
        return ended

    async def _send_all(self, writer: epochal.Writer, sources: Sequence[Source], counter: Counter) -> None:
        flushed = clock.monotonic()
        async for items in _chunks(sources, one_by_one=self.wait):
            for append in self.placing.appends(items):
                await self._send(writer, append)
                counter.show(self.sent)
            if clock.monotonic() - flushed >= FLUSH_INTERVAL:
                await self._flush(writer)
                flushed = clock.monotonic()

    async def _send(self, writer: epochal.Writer, append: RecordGroup) -> None:
        if self.placing.in_order and append.time != self._at:
            writer.advance_nowait(append.time)
            self._at = append.time
        records = encode(append, self.encoding, self.schema)
        try:
            if self.wait:
                await self._send_one(writer, append, records)
            else:
                with self.sends.current():
                    writer.append_nowait(append.time, records, key=append.key, topic=self.topic, headers=self.headers)
        except RecordTypeError as error:
            raise RecordTypeError(f"{append.first.where} to {append.last.where}: {error}") from None
        if not self.wait:
            self._under_way(append)
            await writer.drain()

    async def _send_one(self, writer: epochal.Writer, append: RecordGroup, records: Sequence[Any]) -> None:
        """Publish one record and say where it is, which is then certain, whatever becomes of this process.

        After Ctrl-C its acknowledgement is still waited for, by the flush at the end.
        """
        with self.sends.current():
            sending = asyncio.ensure_future(
                writer.append(append.time, records, key=append.key, topic=self.topic, headers=self.headers)
            )
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())  # after Ctrl-C no one awaits it
        await asyncio.sleep(0)  # from here on it is under way
        if not sending.done() or sending.exception() is None:
            self._under_way(append)
        position = await asyncio.shield(sending)
        self.acknowledged = self.sent
        self.last_acknowledged = append.last
        self.sends.over(writer.way)
        if not self.quiet:
            told = {"where": append.last.where, "time": to_json(append.time), "position": list(position)}
            print(json.dumps(told), flush=True)

    def _under_way(self, append: RecordGroup) -> None:
        self.sent += len(append.records)
        self.sends.sent(len(append.records))
        self.times.add(append.time)
        self._last = append.last

    async def _flush(self, writer: epochal.Writer) -> None:
        sent, last = self.sent, self._last
        await writer.flush()
        self.sends.over(writer.way)
        self.acknowledged = sent
        self.last_acknowledged = last

    def known(self) -> str:
        """What is certainly published: `16 records (up to flights.jsonl:16) are published`."""
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
