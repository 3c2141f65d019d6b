"""Spark's side of Epochal: streaming queries that publish whole epochs.

It needs PySpark (the extra `spark`), unlike the client library. Each export is imported when it is first used: Spark
commits every micro-batch in a new process, which needs little of this package.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epochal_spark.publication import Publication, publish
    from epochal_spark.sessions import register, session
    from epochal_spark.sink import EpochalDataSource
    from epochal_spark.tracing import trace_options
else:
    _HOMES = {
        "EpochalDataSource": "epochal_spark.sink",
        "Publication": "epochal_spark.publication",
        "publish": "epochal_spark.publication",
        "register": "epochal_spark.sessions",
        "session": "epochal_spark.sessions",
        "trace_options": "epochal_spark.tracing",
    }

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module 'epochal_spark' has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})


__all__ = ["EpochalDataSource", "Publication", "publish", "register", "session", "trace_options"]
