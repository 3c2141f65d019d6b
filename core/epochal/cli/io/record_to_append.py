"""The time and the key with which a record is published: from the options, or from the record's own fields.

The inputs know nothing about streams; here an item becomes an append.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from epochal.cli.io.inputs import Item, bad
from epochal.cli.io.records import dumps, json_value, parse_time
from epochal.client.encoding.arrow_schemas import pyarrow, to_arrow
from epochal.errors import RecordTypeError, TimeShapeError
from epochal.protocol.times import Time, TimeShape, less_equal
from epochal.resources.schemas import Schema


@dataclass(slots=True)
class RecordGroup:
    """Records that go out together: one time, one key; `first` and `last` say where they stood."""

    time: Time
    key: bytes | None
    records: list[Any]
    first: Item
    last: Item


@dataclass(slots=True)
class Placing:
    """Puts records where they belong. Either `time` or `time_field` is given; with `in_order` times never go back."""

    shape: TimeShape
    time: Time | None
    time_field: str | None
    key: bytes | None
    key_field: str | None
    in_order: bool
    _latest: Time | None = None

    def start(self) -> None:
        """Begin anew: no time was seen yet."""
        self._latest = None

    def appends(self, items: Iterable[Item]) -> Iterator[RecordGroup]:
        """Group records by time and key, in the order of each first one.

        Raises `RecordTypeError`, which names the record, after those before it were yielded.
        """
        groups: dict[tuple[Time, bytes | None], RecordGroup] = {}
        failed: RecordTypeError | None = None
        for item in items:
            try:
                place = self._time(item), self._key(item)
            except RecordTypeError as error:  # raised below, after the records before it
                failed = error
                break
            group = groups.get(place)
            if group is None:
                groups[place] = RecordGroup(*place, [item.record], item, item)
            else:
                group.records.append(item.record)
                group.last = item
        yield from groups.values()
        if failed is not None:
            raise failed

    def _time(self, item: Item) -> Time:
        if self.time is not None:
            return self.time
        value = _field(item, self.time_field or "")
        try:
            time = parse_time(value, self.shape) if isinstance(value, str) else self.shape.from_json(value)
        except TimeShapeError:
            wrong = f"{self.time_field} is {dumps(json_value(value))[:80]}"
            raise bad(item, f"{wrong}, and this stream's times have the shape {self.shape}") from None
        if self.in_order:
            if self._latest is not None and not less_equal(self._latest, time):
                raise bad(item, f"its time {value} is not at or after {self._latest}, and --in-order promised that")
            self._latest = time
        return time

    def _key(self, item: Item) -> bytes | None:
        if self.key_field is None:
            return self.key
        value = json_value(_field(item, self.key_field))
        return (value if isinstance(value, str) else dumps(value)).encode()


def _field(item: Item, name: str) -> Any:
    if not isinstance(item.record, dict):
        raise bad(item, f"has no field {name}: it is no object")
    if name not in item.record:
        raise bad(item, f"has no field {name}; it has: {', '.join(map(str, item.record))[:200]}")
    return item.record[name]


def arrow_records(append: RecordGroup, schema: Schema | None) -> list[Any]:
    """The rows of an append as one Arrow batch, of the declared schema if there is one."""
    pa = pyarrow()
    try:
        return [pa.RecordBatch.from_pylist(append.records, schema=None if schema is None else to_arrow(schema))]
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError, OverflowError) as error:
        raise RecordTypeError(f"{append.first.where} to {append.last.where}: do not fit the schema: {error}") from None


def encode(append: RecordGroup, encoding: str, schema: Schema | None) -> Sequence[Any]:
    """The records as the writer takes them."""
    return arrow_records(append, schema) if encoding == "arrow" else append.records
