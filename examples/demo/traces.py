"""Finds in Zipkin one trace that leads through all parts, and shows it at the end of either demo."""

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from urllib.parse import urlencode

STEPS = ("batch", "commit", "send", "forward", "append", "process")
"""First words of the spans' names, from the driver to the subscriber."""
PATIENCE = 60.0
"""Seconds in which spans arrive: those who send them wait some seconds for more."""
_LOOK = 0.5
Span = dict[str, Any]
"""As Zipkin has it."""


class FoundTrace(NamedTuple):
    """A trace, and one hour that is in it."""

    trace_id: str
    hour: int
    spans: list[Span]

    def count(self, step: str) -> int:
        """How many spans of this kind it has."""
        return sum(_step(span) == step for span in self.spans)

    def tagged(self, step: str, tag: str) -> set[str]:
        """What the spans of this kind say of themselves under this name."""
        return {span["tags"][tag] for span in self.spans if _step(span) == step and tag in span.get("tags", {})}


def _step(span: Span) -> str:
    return str(span.get("name", "")).partition(" ")[0]


def find(zipkin: str, stream: str, enough: Callable[[FoundTrace], bool], patience: float = PATIENCE) -> FoundTrace:
    """The first trace that leads from a micro-batch to what is processed, and of which `enough` holds.

    `zipkin` is where its API is, such as http://127.0.0.1:9411. Raises `TimeoutError` if there is none within
    `patience` seconds; the message says what the best one had.
    """
    deadline = time.monotonic() + patience
    while True:
        traces = [found for spans in _ask(zipkin, stream) if (found := _whole(spans)) is not None]
        for found in traces:
            if enough(found):
                return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"no trace has all that it should have; {len(traces)} were found{_best(traces)}")
        time.sleep(_LOOK)


def _best(traces: Iterable[FoundTrace]) -> str:
    best = max(traces, key=lambda found: len(found.spans), default=None)
    return "" if best is None else f", the longest with {said(best)}"


def said(found: FoundTrace) -> str:
    """How many spans of which kind, in words."""
    return ", ".join(f"{count} {step}" for step in STEPS if (count := found.count(step)))


def _ask(zipkin: str, stream: str) -> list[list[Span]]:
    query = urlencode({"spanName": f"process {stream}", "limit": 500, "lookback": 24 * 3600 * 1000})
    try:
        with urllib.request.urlopen(f"{zipkin}/api/v2/traces?{query}", timeout=30) as answer:
            return list(json.load(answer))
    except urllib.error.URLError:  # it is busy; asked again
        return []


def _whole(spans: list[Span]) -> FoundTrace | None:
    """The trace with one of its hours, if it has a batch and an hour that was processed."""
    hours = [json.loads(span["tags"]["epochal.time"]) for span in spans if _step(span) == "process"]
    if not hours or not any(_step(span) == "batch" for span in spans):
        return None
    return FoundTrace(spans[0]["traceId"], max(hours), spans)


def show(found: FoundTrace, address: str, *, stays: bool = False) -> None:
    """Print the address of the trace; with a terminal keep it there until Enter, unless Zipkin `stays`."""
    hour = (
        f"{found.hour // 10**6}-{found.hour // 10**4 % 100:02}-{found.hour // 100 % 100:02}, {found.hour % 100:02}:00"
    )
    print(f"\none trace leads from Spark's driver to what was processed: {said(found)} spans")
    print(f"the micro-batch that published the hour of {hour}:\n  {address}/zipkin/traces/{found.trace_id}", flush=True)
    if not stays and sys.stdin.isatty() and sys.stdout.isatty():
        print("it can be looked at until you press Enter ", end="", flush=True)
        sys.stdin.readline()
