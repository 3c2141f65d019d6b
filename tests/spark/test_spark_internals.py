"""Errors of ours in the text of Spark's: found with their class and their whole message, and nothing taken for one."""

from typing import Any

import pytest
from pyspark.errors import PySparkException

from epochal.errors import CapabilityError, ConfigError, EpochalError
from epochal_spark.spark_internals import ours

SPARK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure:
Task 0 in stage 3.0 failed 1 times: Lost task 0.0 in stage 3.0 (driver): org.apache.spark.api.python.PythonException:
Traceback (most recent call last):
  File "tasks.py", line 61, in publish_partition
    raise epochal.errors.TimedOut("no")
%s
"""
AFTER = [
    " SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: flights",
    "\n\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.read(PythonRunner.scala:1)",
    "    at org.apache.spark.Main(Main.scala:1)",
    "=== Streaming Query ===\nIdentifier: flights",
    "",
]


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (CapabilityError, "batch 1, partition 0, time 4: writer 'q' holds [6], which does not reach 4"),
        (ConfigError, "the options cannot be used:\n  speed: is not an option; there are: key\n  time: is missing"),
    ],
)
def test_the_error_is_of_its_class_with_its_whole_message(kind: type[EpochalError], message: str, after: str) -> None:
    found = ours(PySparkException(SPARK % f"epochal.errors.{kind.__name__}: {message}\n{after}"))
    assert type(found) is kind
    assert str(found) == message


@pytest.mark.parametrize("line", ["ValueError: 3", "epochal.errors.Problem: no error", "epochal.errors.asdict: x"])
def test_another_error_is_none_of_ours(line: Any) -> None:
    assert ours(PySparkException(SPARK % line)) is None


@pytest.mark.parametrize(
    "between",
    [
        "The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:",
    ],
)
def test_an_error_that_became_another_is_that_one(between: str) -> None:
    became = "%s\n\n" + between + '\n\nTraceback (most recent call last):\n  File "job.py", line 3, in row\n%s'
    ours_first = became % ("epochal.errors.TimedOut: no", "ValueError: no rows")
    assert ours(PySparkException(SPARK % ours_first)) is None
    found = ours(PySparkException(SPARK % (became % ("ValueError: no rows", "epochal.errors.ConfigError: key"))))
    assert type(found) is ConfigError
    assert str(found) == "key"
