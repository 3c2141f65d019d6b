"""Reads from the driver's JVM what Spark shows nowhere else: how a query ended, and which batch it is about to run.

Separate from `publication` because it reads Spark's internal objects (`StreamExecution` and its contexts), which are no
public interface and may change with Spark's version.
"""

from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

ENDING = frozenset({"availableNow", "once"})
"""Triggers under which a query ends by itself."""


def ended_by_itself(query: StreamingQuery, trigger: str | None) -> bool:
    """Whether a query that is over, and has not failed, has published all that it was started for.

    False where it was stopped before. Spark reports `stop()` nowhere, but it shows in the last trigger: a trigger that
    was cut short has no recorded duration, and a run of `availableNow` ends only by a trigger that found no more data.
    """
    if trigger not in ENDING:
        return False
    context = _context(query)
    if not context.getDuration("triggerExecution").isDefined():
        return False
    return trigger == "once" or not context.isCurrentBatchConstructed()


def planned(query: StreamingQuery) -> tuple[int, int]:
    """The batch whose tasks are about to run, and into how many partitions it is divided.

    Call it while Spark makes the sink's writer: then the batch is planned, and its tasks have not started.
    """
    context = _context(query)
    # Spark has executed this plan before it asks for the writer, so nothing runs here: only the size is read.
    rows = context.executionPlan().executedPlan().query().execute()
    return int(context.batchId()), max(1, int(rows.getNumPartitions()))  # without rows Spark makes one empty partition


def _context(query: StreamingQuery) -> Any:
    jvm_query: Any = query._jsq
    return jvm_query.streamingQuery().getLatestExecutionContext()
