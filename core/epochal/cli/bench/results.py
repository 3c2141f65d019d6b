"""What `epochal bench` reports: the columns of its tables, the bars of its histogram, and the same as JSON.

It measures nothing: values in, values out. Names in JSON carry their unit and stay as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from epochal.cli.bench.histogram import Bar, Histogram
from epochal.cli.bench.schedule import SECOND
from epochal.protocol.times import Time, to_json

PERCENTILES = {"p50": 500, "p90": 900, "p99": 990, "p99.9": 999}
"""The percentiles: a name, and how many of 1,000 durations are not longer."""
BAR_WIDTH = 30
"""Characters of the longest bar."""
LATE = SECOND // 1000
"""Nanoseconds after its due moment from which a record counts as sent late."""

Table = tuple[Sequence[str], list[Sequence[str]]]
"""Column names and rows, as `print_table` takes them."""


@dataclass(slots=True)
class Traffic:
    """Records, batches and bytes, and the nanoseconds that they took."""

    records: int = 0
    batches: int = 0
    payload_bytes: int = 0
    nanoseconds: int = 0

    def add(self, records: int, payload_bytes: int, batches: int = 1) -> None:
        """Add some batches."""
        self.records += records
        self.batches += batches
        self.payload_bytes += payload_bytes

    def rate(self, number: int) -> float | None:
        """`number` a second; None if no time has passed."""
        return number * SECOND / self.nanoseconds if self.nanoseconds else None

    def to_json(self) -> dict[str, Any]:
        """Totals and rates."""
        return {
            "seconds": seconds_of(self.nanoseconds),
            "records": self.records,
            "batches": self.batches,
            "payload_bytes": self.payload_bytes,
            "records_per_second": _rounded(self.rate(self.records)),
            "batches_per_second": _rounded(self.rate(self.batches)),
            "payload_bytes_per_second": _rounded(self.rate(self.payload_bytes)),
        }

    def cells(self) -> list[tuple[str, str]]:
        """Column names and their cells."""
        bytes_rate = self.rate(self.payload_bytes)
        return [
            ("SECONDS", f"{self.nanoseconds / SECOND:.1f}"),
            ("RECORDS", f"{self.records:,}"),
            ("RECORDS/S", show_rate(self.rate(self.records))),
            ("BATCHES/S", show_rate(self.rate(self.batches))),
            ("MB/S", show_rate(None if bytes_rate is None else bytes_rate / 1e6)),
        ]


@dataclass(slots=True)
class PubResult:
    """The result of `bench pub`: all appends until the last acknowledgement, and how long some of them took to it."""

    traffic: Traffic = field(default_factory=Traffic)
    acknowledged: Histogram = field(default_factory=Histogram)
    first_time: Time = 0
    next_time: Time = 0
    """The time that the writer has advanced to at the end."""
    epochs: int = 0

    def to_json(self) -> dict[str, Any]:
        """The result as JSON."""
        return {
            **self.traffic.to_json(),
            "epochs": self.epochs,
            "first_time": to_json(self.first_time),
            "next_time": to_json(self.next_time),
            "acknowledgement": distribution(self.acknowledged),
        }

    def tables(self) -> list[Table]:
        """Throughput, percentiles and the histogram."""
        cells = [*self.traffic.cells(), ("EPOCHS", f"{self.epochs:,}")]
        return [_one_row(cells), *_duration_tables("APPEND TO ACK", self.acknowledged)]


@dataclass(slots=True)
class SubResult:
    """The result of `bench sub`: from the arrival of the first batch, which counts for no rate, to that of the last."""

    traffic: Traffic = field(default_factory=Traffic)
    first: Traffic = field(default_factory=Traffic)
    """The first batch alone."""
    lag: Histogram = field(default_factory=Histogram)
    epochs: int = 0
    aborted: int = 0
    gaps: int = 0

    @property
    def _after_first(self) -> Traffic:
        """What arrived in the time that is measured."""
        return Traffic(
            self.traffic.records - self.first.records,
            self.traffic.batches - self.first.batches,
            self.traffic.payload_bytes - self.first.payload_bytes,
            self.traffic.nanoseconds,
        )

    def to_json(self) -> dict[str, Any]:
        """The result as JSON."""
        rates = {name: value for name, value in self._after_first.to_json().items() if name.endswith("_per_second")}
        return {
            **self.traffic.to_json(),
            **rates,
            "epochs": self.epochs,
            "epochs_per_second": _rounded(self.traffic.rate(self.epochs)),
            "aborted_epochs": self.aborted,
            "gaps": self.gaps,
            "lag": distribution(self.lag),
        }

    def tables(self) -> list[Table]:
        """Throughput, and how old the batches were if writers send their clock."""
        rates = dict(self._after_first.cells())
        cells = [(name, text if name == "RECORDS" else rates[name]) for name, text in self.traffic.cells()]
        cells += [("EPOCHS", f"{self.epochs:,}"), ("EPOCHS/S", show_rate(self.traffic.rate(self.epochs)))]
        return [_one_row(cells), *(_duration_tables("LAG", self.lag) if self.lag.count else [])]


@dataclass(slots=True)
class LatencyResult:
    """The result of `bench latency`: durations from when a record was due to its arrival at the reader."""

    rate: int
    expected: int = 0
    """Records that were due up to the end."""
    sent: int = 0
    late: int = 0
    """Records that were sent more than `LATE` after they were due."""
    most_late: int = 0
    """Durations in nanoseconds, of the records that were sent."""
    latency: Histogram = field(default_factory=Histogram)
    nanoseconds: int = 0
    first_time: Time = 0
    next_time: Time = 0

    def add_sent(self, lateness: int) -> None:
        """Count a record that was sent `lateness` nanoseconds after it was due."""
        self.sent += 1
        self.late += lateness > LATE
        self.most_late = max(self.most_late, lateness)

    def to_json(self) -> dict[str, Any]:
        """The result as JSON."""
        return {
            "seconds": seconds_of(self.nanoseconds),
            "rate_per_second": self.rate,
            "expected_records": self.expected,
            "sent_records": self.sent,
            "received_records": self.latency.count,
            "late_records": self.late,
            "late_after_seconds": seconds_of(LATE),
            "most_late_seconds": seconds_of(self.most_late),
            "first_time": to_json(self.first_time),
            "next_time": to_json(self.next_time),
            "latency": distribution(self.latency),
        }

    def tables(self) -> list[Table]:
        """Records, percentiles and the histogram."""
        cells = [
            ("SECONDS", f"{self.nanoseconds / SECOND:.1f}"),
            ("RATE/S", f"{self.rate:,}"),
            ("EXPECTED", f"{self.expected:,}"),
            ("SENT", f"{self.sent:,}"),
            ("RECEIVED", f"{self.latency.count:,}"),
            ("SENT LATE", f"{self.late:,}"),
            ("MOST LATE", show_duration(self.most_late)),
        ]
        return [_one_row(cells), *_duration_tables("APPEND TO READER", self.latency)]


# ---- durations ----


def distribution(times: Histogram) -> dict[str, Any] | None:
    """Percentiles and bars as JSON; None if there is no duration."""
    if not times.count:
        return None
    shares = {f"{name.replace('.', '_')}_seconds": seconds_of(_percentile(times, name)) for name in PERCENTILES}
    bars = [
        {"above_seconds": seconds_of(bar.low), "to_seconds": seconds_of(bar.high), "count": bar.count}
        for bar in times.bars()
    ]
    return {"count": times.count, **shares, "max_seconds": seconds_of(times.most), "histogram": bars}


def show_percentiles(times: Histogram) -> list[str]:
    """The percentiles and the longest duration, for people; `-` where there is none."""
    shown = [*(_percentile(times, name) for name in PERCENTILES), times.most]
    return [show_duration(one) if times.count else "-" for one in shown]


def _percentile(times: Histogram, name: str) -> int:
    return times.percentile(PERCENTILES[name]) or 0


def _duration_tables(name: str, times: Histogram) -> list[Table]:
    columns = [name, *(percentile.upper() for percentile in PERCENTILES), "MAX"]
    tables: list[Table] = [(columns, [[f"{times.count:,} times", *show_percentiles(times)]])]
    if times.count:
        tables.append((["ABOVE", "TO", "COUNT", "SHARE", ""], [_bar_row(bar, times) for bar in _scaled(times)]))
    return tables


def _scaled(times: Histogram) -> list[tuple[Bar, int]]:
    """Each bar, and its length in characters: what is not empty can be seen."""
    bars = times.bars()
    most = max(bar.count for bar in bars)
    return [(bar, -(-bar.count * BAR_WIDTH // most)) for bar in bars]


def _bar_row(scaled: tuple[Bar, int], times: Histogram) -> list[str]:
    bar, length = scaled
    share = f"{100 * bar.count / times.count:6.2f} %"
    return [show_duration(bar.low), show_duration(bar.high), f"{bar.count:,}", share, "#" * length]


def _one_row(cells: Sequence[tuple[str, str]]) -> Table:
    return [name for name, _ in cells], [[text for _, text in cells]]


# ---- numbers ----


def show_duration(nanoseconds: int) -> str:
    """Three digits and a unit.

    >>> [show_duration(nanoseconds) for nanoseconds in (0, 850, 12_345, 999_999, 2_000_000, 61_500_000_000)]
    ['0 us', '0.85 us', '12.3 us', '1 ms', '2 ms', '61.5 s']
    """
    unit, size = next(((unit, size) for unit, size in _UNITS if nanoseconds >= 0.9995 * size), _UNITS[-1])
    value = nanoseconds / size
    text = f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"
    return f"{text} {unit}"


_UNITS = (("s", SECOND), ("ms", SECOND // 1000), ("us", SECOND // 1_000_000))


def show_rate(rate: float | None) -> str:
    """A rate per second; `-` if no time has passed.

    >>> show_rate(83731.4), show_rate(33.25), show_rate(0.0), show_rate(None)
    ('83,731', '33.2', '0', '-')
    """
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 99.95 or not rate else f"{rate:.3g}"


def seconds_of(nanoseconds: int) -> float:
    """Seconds, exact to the nanosecond."""
    return round(nanoseconds / SECOND, 9)


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)
