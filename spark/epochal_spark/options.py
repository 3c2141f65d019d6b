"""The options of the sink, read and checked as a whole.

Several processes (driver, planner, commit) read them, and must read them in the same way. All problems are reported at
once.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from epochal.errors import ConfigError, ManifestError, Problem
from epochal_spark.commit_channel import Handed


class Complete(StrEnum):
    """Which times a commit completes."""

    BATCH = "batch"
    """Every time up to the greatest one published so far: later batches hold later times only."""
    NEVER = "never"
    """Nothing: a later publication completes times, or for a query the driver, by `Publication.advance()`."""


class Option(NamedTuple):
    """One option; `default` is None where it must be given."""

    name: str
    default: str | None
    batch: bool
    streaming: bool


OPTIONS = (
    Option("stream", None, batch=True, streaming=True),
    Option("time", None, batch=True, streaming=True),
    Option("catalog", "", batch=True, streaming=True),
    Option("key", "", batch=True, streaming=True),
    Option("topic", "", batch=True, streaming=True),
    Option("complete", "batch", batch=True, streaming=True),
    Option("finish", "false", batch=True, streaming=False),
    Option("writer", "spark", batch=True, streaming=False),
    Option("wait", "30", batch=True, streaming=False),
    Option("traceparent", "", batch=True, streaming=False),
    Option("tracestate", "", batch=True, streaming=False),
    Option("query", None, batch=False, streaming=True),
    Option("handover", None, batch=False, streaming=True),
)
"""All of them; docs/spark.md says what each means. `query` and `handover` are set by `epochal_spark.publish()`."""

_OF_SPARK = frozenset({"checkpointlocation", "path", "queryname"})
"""Options that Spark itself may add to those of a sink."""

_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

_PUBLISH = (
    "start the query by epochal_spark.publish(), which holds its capability, with the trigger processingTime, once or "
    "availableNow; continuous and real-time ones cannot be used"
)
"""The hint when the driver's part is missing. It names the triggers because Spark does not report its trigger to a
sink. Under a continuous one, Spark would show a query as running that publishes nothing, whatever commits raise."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The stream to write to, and how rows become records.

    `stream`: `namespace/name`. `catalog`: its URL. `time`: the column of an epoch's time. `query`: the writer id under
    whose capability the tasks write. `key`: the column that places a record; without it a task writes to all segments
    in turn. `topic`: the column with the topic of a record's batch; without it the topic is empty.
    `handover`: the address that takes commits for that writer; secret, because anyone who knows it can complete epochs.
    `finish`: whether a batch job's commit finishes the stream. `wait`: seconds for the stream and its publishers to be
    there.
    `trace`: the trace context of the span that is the parent of a batch job's.
    """

    stream: str
    catalog: str
    time: str
    query: str
    key: str | None = None
    topic: str | None = None
    complete: Complete = Complete.BATCH
    handover: str = ""
    finish: bool = False
    wait: float = 30.0
    trace: Handed | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = True) -> "SinkOptions":
        """Read Spark's options, whose names come in lower case. Raises `ConfigError` with every problem."""
        from epochal.client.catalog.url import catalog_url  # here: a commit has parsed options, and needs no client

        given = {name.lower(): value for name, value in options.items()}
        known = [option for option in OPTIONS if (option.streaming if streaming else option.batch)]
        problems = [_unknown(name, known) for name in sorted(given.keys() - {o.name for o in known} - _OF_SPARK)]
        complete = given.get("complete") or Complete.BATCH
        missing = [o.name for o in known if o.default is None and not given.get(o.name)]
        problems += [_missing(name) for name in missing if name != "handover" or "query" not in missing]
        problems += [*_wrong_stream(given.get("stream")), *_wrong_catalog(given.get("catalog"))]
        if complete not in list(Complete):
            problems.append(Problem("complete", f"{complete!r} is not known", "write batch or never"))
        finish, wait = given.get("finish", "false").lower(), given.get("wait", "30")
        if finish not in ("true", "false"):
            problems.append(Problem("finish", f"{finish!r} is not known", "write true or false"))
        if not _is_seconds(wait):
            problems.append(Problem("wait", f"{wait!r} is no time to wait", "write seconds, e.g. 30"))
        if (parent := given.get("traceparent", "")) and not _TRACEPARENT.fullmatch(parent):
            hint = "write .options(**epochal_spark.trace_options()), or 00-<32 hex>-<16 hex>-<2 hex>"
            problems.append(Problem("traceparent", f"{parent!r} is none (W3C Trace Context)", hint))
        if problems:
            raise ConfigError("the options of the sink `epochal` cannot be used:", problems)
        return cls(
            stream=given["stream"],
            catalog=catalog_url(given.get("catalog")),
            time=given["time"],
            query=given["query"] if streaming else given.get("writer") or "spark",
            key=given.get("key") or None,
            topic=given.get("topic") or None,
            complete=Complete(complete),
            handover=given.get("handover", ""),
            finish=finish == "true",
            wait=float(wait),
            trace=Handed(parent, given.get("tracestate", "")) if parent else None,
        )

    def to_spark(self) -> dict[str, str]:
        """The options of a streaming query as Spark takes them."""
        fields = {option.name: getattr(self, option.name) for option in OPTIONS if option.streaming}
        return {name: str(value) for name, value in sorted(fields.items()) if value}


def _unknown(name: str, known: Iterable[Option]) -> Problem:
    other = next((option for option in OPTIONS if option.name == name), None)
    if other is not None:
        kind = "batch writes" if other.batch else "streaming queries"
        return Problem(name, f"is an option of {kind} only", "leave it out")
    return Problem(name, "is not an option of this sink", f"there are {', '.join(sorted(o.name for o in known))}")


def _missing(name: str) -> Problem:
    return Problem(name, "is missing", _PUBLISH if name in ("query", "handover") else f'write .option("{name}", ...)')


def _is_seconds(text: str) -> bool:
    try:
        return 0 <= float(text) < float("inf")
    except ValueError:
        return False


def _wrong_stream(stream: str | None) -> list[Problem]:
    from epochal.resources.names import parse_stream_name

    if not stream:
        return []
    try:
        parse_stream_name(stream)
    except (ConfigError, ManifestError) as error:
        return [Problem("stream", str(error), "write namespace/name")]
    return []


def _wrong_catalog(catalog: str | None) -> list[Problem]:
    from epochal.client.catalog.url import catalog_url

    try:
        catalog_url(catalog)
    except ConfigError as error:
        return [Problem("catalog", str(error))]
    return []
