"""What Spark knows of a running query and tells only in the driver's JVM: how it ended, and what it is about to run.

Separate from `publication` because it reads Spark's own objects (`StreamExecution` and its contexts), which are no
public interface and may change with Spark's version.
"""

from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

ENDING = frozenset({"availableNow", "once"})
"""Triggers under which a query ends by itself."""


def ended_by_itself(query: StreamingQuery, trigger: str | None) -> bool:
    """Whether a query that is over, and has not failed, has published all that it was started for.

    False where it was stopped before. `stop()` leaves no trace in what Spark tells of a query, but in its last trigger:
    one that was cut short never took its time, and a run of `availableNow` ends only by a trigger that found no more
    data.
    """
    if trigger not in ENDING:
        return False
    context = _context(query)
    if not context.getDuration("triggerExecution").isDefined():
        return False
    return trigger == "once" or not context.isCurrentBatchConstructed()


def planned(query: StreamingQuery) -> tuple[int, int]:
    """The batch whose tasks are about to run, and into how many partitions it is divided.

    To be asked while Spark makes the sink's writer: the batch is planned then, and its tasks wait.
    """
    context = _context(query)
    # Spark has executed this plan before it asks for the writer, so nothing runs here: it is only asked for its size.
    rows = context.executionPlan().executedPlan().query().execute()
    return int(context.batchId()), max(1, int(rows.getNumPartitions()))  # without rows Spark makes one empty partition


def _context(query: StreamingQuery) -> Any:
    jvm_query: Any = query._jsq
    return jvm_query.streamingQuery().getLatestExecutionContext()
