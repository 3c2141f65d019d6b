"""Reads from Spark what it shows nowhere else: how a query ended, its next batch, and the error of a task.

Depends on Spark's internal objects (`StreamExecution` and its contexts), which are no public interface, and on how
Spark and Python print an error: the driver gets the errors of a query's tasks only as text. Both may change with
Spark's version.
"""

import re
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from epochal import errors
from epochal.errors import EpochalError

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
    # Spark has executed this plan before it makes the writer, so nothing runs here: only the size is read.
    rows = context.executionPlan().executedPlan().query().execute()
    return int(context.batchId()), max(1, int(rows.getNumPartitions()))  # without rows Spark makes one empty partition


def _context(query: StreamingQuery) -> Any:
    jvm_query: Any = query._jsq
    return jvm_query.streamingQuery().getLatestExecutionContext()


_RAISED = re.compile(
    r"^(?:\S.*?: )?epochal\.errors\.(\w+): (.*?)(?=\s+SQLSTATE: |\n\s*\n|\n\s+at |\n=== |\Z)", re.MULTILINE | re.DOTALL
)
"""The last line of a Python traceback; its message can have several lines, and Spark's own text follows."""
_BECAME = re.compile(
    r"^(?:The above exception was the direct cause|During handling of the above exception)\b", re.MULTILINE
)
"""What Python prints between an exception and the one raised from it: only the last of these was raised."""


def ours(error: PySparkException) -> EpochalError | None:
    """The Epochal error that made a query fail, with its class and its whole message; None for another cause."""
    found = _RAISED.search(_BECAME.split(str(error))[-1])
    if found is None:
        return None
    kind: Any = getattr(errors, found[1], None)
    if not (isinstance(kind, type) and issubclass(kind, EpochalError)):
        return None
    return kind(found[2].strip())
