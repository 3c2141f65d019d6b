"""Spark's side of Epochal: streaming queries that publish whole epochs.

Apart from the client library because it needs PySpark (the extra `spark`).
"""

from epochal_spark.publication import Publication, publish
from epochal_spark.sessions import register, session
from epochal_spark.sink import EpochalDataSource

__all__ = ["EpochalDataSource", "Publication", "publish", "register", "session"]
