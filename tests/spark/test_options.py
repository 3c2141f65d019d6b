"""Options and columns that cannot be used are all named at once, before anything runs."""

import subprocess
import sys

import pytest
from pyspark.sql import types as t
from tests.patience import PATIENCE

from epochal.errors import ConfigError, UsageError
from epochal.protocol.times import TimeShape
from epochal_spark.declaration import Declared
from epochal_spark.options import Complete, SinkOptions
from epochal_spark.schemas import check_schema
from epochal_spark.sink import EpochalDataSource, EpochalSink

GIVEN = {"stream": "demo/x", "catalog": "http://c", "time": "t", "query": "q", "handover": "h:1/t"}
OPTIONS = SinkOptions.parse(GIVEN)


def fields(**kinds: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])


def wrong(error: pytest.ExceptionInfo[ConfigError]) -> set[str]:
    return {problem.path for problem in error.value.problems}


def test_options_come_back_as_they_were_given_to_spark() -> None:
    options = SinkOptions("demo/x", "http://c", "t", "q", "k", "o", Complete.NEVER, "h:1/t")
    assert SinkOptions.parse({name.upper(): value for name, value in options.to_spark().items()}) == options


def test_all_missing_options_are_named() -> None:
    with pytest.raises(ConfigError) as error:
        SinkOptions.parse({"checkpointlocation": "/x"})
    assert wrong(error) == {"stream", "time", "query"}
    assert "epochal_spark.publish" in str(error.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("compleet", "batch"),
        ("complete", "hourly"),
        ("stream", "No Name/x"),
        ("handover", ""),
        ("finish", "true"),
        ("catalog", "nowhere"),
    ],
)
def test_a_wrong_option_is_named(option: str, value: str) -> None:
    with pytest.raises(ConfigError) as error:
        SinkOptions.parse({**GIVEN, option: value})
    assert wrong(error) == {option}


def test_overwriting_is_refused() -> None:
    with pytest.raises(ConfigError, match="append"):
        EpochalDataSource(GIVEN).streamWriter(fields(t=t.LongType()), overwrite=True)


def test_a_commit_without_word_of_its_tasks_is_refused() -> None:
    """So commits look under a continuous trigger, where the sink would never be asked to write."""
    sink = EpochalSink(OPTIONS)
    with pytest.raises(UsageError, match="continuous"):
        sink.commit([None, None], 3)


def test_columns_that_can_be_published() -> None:
    nested = fields(a=t.IntegerType(), b=fields(c=t.LongType()))
    carried = t.MapType(t.StringType(), t.ArrayType(t.BinaryType()))
    check_schema(
        fields(t=t.ShortType(), x=t.DoubleType(), y=carried), OPTIONS, Declared(TimeShape.parse("int"), "msgpack")
    )
    check_schema(fields(t=nested, x=t.BooleanType()), OPTIONS, Declared(TimeShape.parse("(int, (int,))"), "msgpack"))


def test_every_wrong_column_is_named() -> None:
    options = SinkOptions.parse({**GIVEN, "key": "k", "topic": "o"})
    columns = fields(t=t.TimestampType(), k=t.DoubleType(), o=t.LongType(), d=t.DateType(), s=fields(x=t.DecimalType()))
    with pytest.raises(ConfigError) as error:
        check_schema(columns, options, Declared(TimeShape.parse("int"), "msgpack"))
    assert wrong(error) == {"t", "k", "o", "d", "s.x"}
    assert "o: is bigint (option topic)" in str(error.value)
    with pytest.raises(ConfigError) as error:
        check_schema(fields(x=t.LongType(), y=t.LongType()), options)
    assert wrong(error) == {"t", "k", "o"}
    assert "o: is no column (option topic); there are x, y" in str(error.value)


def test_a_time_of_another_shape_than_the_streams_is_refused() -> None:
    with pytest.raises(ConfigError, match="have the shape int"):
        check_schema(fields(t=fields(a=t.LongType())), OPTIONS, Declared(TimeShape.parse("int"), "msgpack"))


def test_a_commit_loads_no_client() -> None:
    """Spark starts a process for every commit, so what it loads is what a micro-batch takes at least."""
    code = "import sys, epochal_spark.sink; print(*{'aiohttp', 'pydantic', 'zmq', 'pyarrow'} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert result.stdout == "\n"
