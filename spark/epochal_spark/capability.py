"""Moves the capability under which tasks write: the only place that turns a commit into complete times.

The writer that holds the capability runs in one of two places. A streaming query has a driver program that lives as
long as the query, so `publication` holds the capability in a thread there, and the program can advance it. In a batch
write, our code runs only in processes that end before the job does, so `holder` is a process of its own.
"""

import epochal
from epochal.protocol.frontier import Antichain
from epochal.protocol.times import Time, TimeShape, join
from epochal_spark.commit_channel import Committed
from epochal_spark.options import Complete


class CapabilityMoves:
    """Moves an open writer's capability, within its event loop."""

    def __init__(self, writer: epochal.Writer, shape: TimeShape, complete: Complete) -> None:
        self.writer = writer
        self._shape = shape
        self._complete = complete
        self._done: Time | None = None
        """The join of all times committed."""

    async def committed(self, batch: Committed) -> None:
        """Advance past the batch's greatest time; a batch that is committed again changes nothing."""
        if self._complete is Complete.NEVER or batch.greatest is None:
            return
        self._done = batch.greatest if self._done is None else join(self._done, batch.greatest)
        # Joining with the held times never moves back, so a commit that Spark repeats after a crash changes nothing.
        past = Antichain(self._shape.successors_past(self._done))
        await self._hold_exactly(Antichain(self.writer.held).join(past))

    async def advance(self, time: Time) -> None:
        """Move everything held to `time`."""
        await self.writer.advance(self._shape.check(time))

    async def _hold_exactly(self, wanted: Antichain) -> None:
        held = Antichain(self.writer.held)
        if len(wanted) == 1:
            (time,) = wanted
            if wanted != held:
                await self.writer.advance(time)
            return
        # First hold, then release: a new capability must be at or after one that is still held (S35).
        for time in wanted:
            if time not in set(held):
                await self.writer.hold(time)
        for time in held:
            if time not in set(wanted):
                await self.writer.release(time)
