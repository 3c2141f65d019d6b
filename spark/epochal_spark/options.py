"""The options of the sink, read and checked as a whole.

Apart from the sink because they are read in several processes (driver, planner, commit) that must understand them
alike, and because all problems are told at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from epochal.errors import ConfigError, ManifestError, Problem
from epochal.resources import parse_stream_name


class Complete(StrEnum):
    """What the commit of a micro-batch completes."""

    BATCH = "batch"
    """Every time up to the greatest one published so far: later batches hold later times only."""
    NEVER = "never"
    """Nothing: the driver says so itself, by `Publication.advance()`."""


_OF_SPARK = frozenset({"checkpointlocation", "path", "queryname"})
"""What Spark itself may put among the options of a sink."""

_KNOWN = frozenset({"stream", "catalog", "time", "key", "complete", "query", "handover"})


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """`df.writeStream.format("epochal").option(...)`; `epochal_spark.publish` sets all of them.

    `stream`: `namespace/name`. `catalog`: its URL. `time`: the column of an epoch's time. `key`: the column that places
    a record; without it a task writes to one segment. `query`: the writer id under whose capability the tasks write.
    `handover`: where the driver's writer is told of commits; secret, because whoever knows it can complete epochs.
    """

    stream: str
    catalog: str
    time: str
    query: str
    key: str | None = None
    complete: Complete = Complete.BATCH
    handover: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Read Spark's options, whose names come in lower case. Raises `ConfigError` with every problem."""
        given = {name.lower(): value for name, value in options.items()}
        problems = [_unknown(name) for name in sorted(given.keys() - _KNOWN - _OF_SPARK)]
        problems += [_missing(name) for name in ("stream", "catalog", "time", "query") if not given.get(name)]
        problems += _wrong_stream(given.get("stream"))
        complete = given.get("complete", Complete.BATCH)
        if complete not in list(Complete):
            problems.append(Problem("complete", f"{complete!r} is not known", "write batch or never"))
        elif complete == Complete.BATCH and not given.get("handover"):
            problems.append(
                Problem(
                    "handover", "is missing", "start the query by epochal_spark.publish(), which holds its capability"
                )
            )
        if problems:
            raise ConfigError("the options of the sink `epochal` cannot be used:", problems)
        return cls(
            stream=given["stream"],
            catalog=given["catalog"],
            time=given["time"],
            query=given["query"],
            key=given.get("key") or None,
            complete=Complete(complete),
            handover=given.get("handover") or None,
        )

    def to_spark(self) -> dict[str, str]:
        """The options as Spark takes them."""
        fields = {name: getattr(self, name) for name in _KNOWN}
        return {name: str(value) for name, value in sorted(fields.items()) if value is not None}


def _unknown(name: str) -> Problem:
    return Problem(name, "is not an option of this sink", f"there are {', '.join(sorted(_KNOWN))}")


def _missing(name: str) -> Problem:
    return Problem(name, "is missing", f'give it by .option("{name}", ...) or use epochal_spark.publish()')


def _wrong_stream(stream: str | None) -> list[Problem]:
    if not stream:
        return []
    try:
        parse_stream_name(stream)
    except (ConfigError, ManifestError) as error:
        return [Problem("stream", str(error), "write namespace/name")]
    return []
