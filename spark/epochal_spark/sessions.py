"""A Spark session that can publish: its workers run this interpreter, and the data source is registered in it.

A program with a session of its own only needs `register`.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from epochal_spark.sink import EpochalDataSource

_SETTINGS = {
    "spark.driver.extraJavaOptions": "-Xss16m",  # a long Python error overflows the JVM's default stack
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""The settings of a session made here that differ from Spark's defaults."""


def session(name: str, master: str | None = "local[*]", settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session with the data source `epochal`.

    `master` is Spark's; None where `spark-submit` sets it. `settings` replace the ones set here; both apply only when
    no session is running yet.

    Without this, Spark's workers take `python3` from the PATH, which may be another Python or lack this package.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Register the data source in `spark`, and make `spark` the active session of the calling thread.

    Does what `spark.dataSource.register(EpochalDataSource)` does, and two things more. Where Spark runs on this machine
    only, its workers run this interpreter from now on, whatever PYSPARK_PYTHON is. And the session becomes active in
    this thread: Spark looks for data sources in the thread's active session, and a session is active only in the thread
    that made it. In any other thread Spark would answer that there is no such data source.

    Raises `ConfigError` if Spark's workers run a Python that cannot run the sink.
    """
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        context.pythonExec = sys.executable
    spark.dataSource.register(EpochalDataSource)
    jvm = spark._jvm
    assert jvm is not None
    java_session: Any = SparkSession._get_j_spark_session_class(jvm)
    java_session.setActiveSession(spark._jsparkSession)
