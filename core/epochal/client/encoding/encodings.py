"""How records become a payload and back, for each encoding that a stream can declare.

The protocol never looks into a payload (S12): only writers and applications do.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any

import msgpack

from epochal.client.encoding.arrow_schemas import from_arrow, pyarrow, to_arrow
from epochal.client.encoding.plain_columns import check_members
from epochal.errors import ConfigError, PayloadTooLarge, RecordTypeError, RemoteProtocolError, UsageError
from epochal.resources.schemas import Schema, differences

MAX_RECORDS = 1_000_000
"""Records that one payload may claim to hold."""

MAX_NESTING = 100
"""Lists and mappings within each other in one record.

Each reader, in whatever language, walks through a record by calls within calls: most parsers end somewhere between this
and a thousand. Arrow's own limit is 64.
"""

_BYTES = {bytes, bytearray, memoryview}
_pack: Callable[[Any], bytes] = msgpack.Packer(autoreset=True).pack
_pack_strictly: Callable[[Any], bytes] = msgpack.Packer(autoreset=True, strict_types=True).pack
"""Takes no tuples and no derived classes, so that no key of a mapping is packed as a list."""
_CANNOT_PACK = (TypeError, ValueError, OverflowError, RecursionError)


def _encode_bytes(records: Sequence[Any]) -> bytes:
    if wrong := set(map(type, records)) - _BYTES:
        kinds = ", ".join(sorted(kind.__name__ for kind in wrong))
        raise RecordTypeError(f"this stream's encoding is bytes, so a record is bytes, not {kinds}; encode it first")
    return _countable(_packed(records), records)


def _packed(records: Sequence[Any]) -> bytes:
    try:
        return _pack(records)
    except _CANNOT_PACK as error:
        _check_readable(records)
        raise RecordTypeError(f"a record cannot be written as msgpack: {error}") from None


def _encode_msgpack(records: Sequence[Any]) -> bytes:
    try:
        payload, strict = _pack_strictly(records), True
    except _CANNOT_PACK:
        payload, strict = _packed(records), False
    _countable(payload, records)
    heads = _count(payload, _HEADS) - 1
    if heads and (
        (_may_be_too_deep(heads, records) and _is_too_deep(payload))
        or ((not strict or _count(payload, _EXTENSION_HEADS)) and _has_refused_values(payload))
    ):
        _check_readable(records)
    if len(payload) > MAX_RECORDS and _LONG.search(payload) is not None:
        try:
            _decode_msgpack(payload)
        except ValueError as error:
            raise RecordTypeError(f"a record cannot be read again: {error}") from None
    return payload


_EXTENSION_HEADS = bytes([*range(0xC7, 0xCA), *range(0xD4, 0xD9)])
_HEADS = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)]) + _EXTENSION_HEADS
"""The bytes with which maps, arrays and extension types begin in msgpack, and which occur within other values too."""
_LONG = re.compile(rb"\xdd\x00[\x0f-\xff]|\xdd\x01")
"""What the head of an array of more than `MAX_RECORDS` items begins with, in a payload that may be published."""


def _count(payload: bytes, heads: bytes) -> int:
    return len(payload) - len(payload.translate(None, heads))


def _may_be_too_deep(heads: int, records: Sequence[Any]) -> bool:
    """Whether so many heads of lists and mappings allow more than `MAX_NESTING` levels in one record."""
    if heads > MAX_NESTING and set(map(type, records)) <= {dict, list, tuple}:
        heads -= len(records) - 1  # each of the others has one
    return heads > MAX_NESTING


def _is_too_deep(packed: bytes) -> bool:
    """Whether lists and mappings in a record are nested more than `MAX_NESTING` deep, or this cannot be determined.

    msgpack's parser counts the levels, with a limit of its own: the payload is put into so many lists that only the
    allowed levels are left, and skipped, which makes no objects.
    """
    room = _room()
    return room is None or _is_beyond_limit(room, packed)


@cache
def _room() -> bytes | None:
    """The heads of as many lists as leave msgpack's parser the levels that a payload may have.

    `None` where the parser is the one in pure Python, which has no limit but the interpreter's.
    """
    if msgpack.Unpacker.__module__ == "msgpack.fallback":
        return None
    too_deep = _LIST * (1 + MAX_NESTING + 1) + _NIL  # the list of records is a level too
    lists = bisect_left(range(_FAR), True, key=lambda count: _is_beyond_limit(_LIST * count, too_deep))
    return _LIST * lists if lists < _FAR else None


_LIST, _NIL = b"\x91", b"\xc0"
_FAR = 4096
"""Levels that no version of msgpack's parser in C is known to reach; 1.2 ends at 1024."""


def _is_beyond_limit(*parts: bytes) -> bool:
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    for part in parts:
        unpacker.feed(part)
    try:
        unpacker.skip()
    except msgpack.StackError:
        return True
    return False


def _has_refused_values(payload: bytes) -> bool:
    """Whether a reader refuses an extension type, or a list as a key, which a tuple becomes."""
    try:
        _unpack(payload, raw=True)  # texts need not be decoded for that
    except (TypeError, ValueError):
        return True
    return False


def _encode_json(records: Sequence[Any]) -> bytes:
    try:
        payload = json.dumps(records, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        if not isinstance(error, UnicodeError):
            _check_readable(records)
        raise RecordTypeError(f"a record cannot be written as JSON: {error}") from None
    if _may_be_too_deep(payload.count(b"[") + payload.count(b"{") - 1, records):
        try:
            doubtful = _is_too_deep(_pack(records))  # a fraction of what json takes
        except _CANNOT_PACK:  # integers of more than 64 bits
            doubtful = True
        if doubtful:
            _check_readable(records)
    return payload


_NESTED = (dict, list, tuple)
"""What msgpack and json write as mappings and lists, and classes derived from these."""
_EXTENSIONS = (msgpack.ExtType, msgpack.Timestamp)
_NO_KEYS = (tuple, *_EXTENSIONS)
"""Types that can be keys in Python, but do not come back from msgpack as keys."""


def _check_readable(records: Sequence[Any]) -> None:
    """Raise `RecordTypeError` that names the first record that readers refuse, and why.

    Walks through all records in Python: only for what cheaper checks of the payload have found, or cannot tell.
    """
    for index, record in enumerate(records):
        level, depth = [record], 0
        while level:
            if any(isinstance(value, _EXTENSIONS) for value in level):
                raise RecordTypeError(f"record {index} has a value of an extension type, which readers do not take")
            level = [value for value in level if isinstance(value, _NESTED)]
            depth += bool(level)
            if depth > MAX_NESTING:
                raise RecordTypeError(
                    f"record {index} has more than {MAX_NESTING} lists and mappings within each other, which readers "
                    "do not take; make it flatter, or publish it as a text"
                )
            keys = chain.from_iterable(value for value in level if isinstance(value, dict))
            if (wrong := next((key for key in keys if isinstance(key, _NO_KEYS)), None)) is not None:
                kind = type(wrong).__name__
                raise RecordTypeError(f"record {index} has a {kind} as a key, which readers do not take")
            level = list(chain.from_iterable(value.values() if isinstance(value, dict) else value for value in level))


def _countable(payload: bytes, records: Sequence[Any]) -> bytes:
    """Return the payload; raises `PayloadTooLarge` for more records than a reader takes at once."""
    if len(records) > MAX_RECORDS:
        raise PayloadTooLarge(
            f"{len(records)} records in one append; at most {MAX_RECORDS} are read: append less at once"
        )
    return payload


class _ArrowEncoder:
    """Record batches as one IPC stream; each batch is of the declared schema, where there is one (S28)."""

    def __init__(self, declared: Schema | None) -> None:
        self._arrow = pyarrow()
        self._declared = declared
        self._accepted = None if declared is None else to_arrow(declared)

    def __call__(self, records: Sequence[Any]) -> bytes:
        pa = self._arrow
        for record in records:
            if not isinstance(record, pa.RecordBatch):
                kind = type(record).__name__
                raise RecordTypeError(
                    f"this stream's encoding is arrow, so a record is a pyarrow.RecordBatch, not {kind}"
                )
        if len({record.schema for record in records}) != 1:
            raise RecordTypeError("the record batches of one append share one schema, and there is at least one")
        self._check(records[0].schema)
        sink = pa.BufferOutputStream()
        try:
            for record in records:
                record.validate(full=True)  # as readers do
            with pa.ipc.new_stream(sink, records[0].schema) as stream:
                for record in records:
                    stream.write_batch(record)
        except pa.ArrowException as error:
            raise RecordTypeError(f"a record batch cannot be written: {error}") from None
        payload: bytes = sink.getvalue().to_pybytes()
        for record in records:
            if record.num_rows > _most_rows(payload):
                raise PayloadTooLarge(
                    f"a record batch of {record.num_rows} rows; at most {MAX_RECORDS} are read: append less at once"
                )
        return payload

    def _check(self, schema: Any) -> None:
        if self._accepted is not None and schema.equals(self._accepted):
            return
        names = schema.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise RecordTypeError(f"a record batch has two columns {twice[0]!r}; give each a name of its own")
        try:
            for field in schema:
                check_members(field.type, field.name)
        except UsageError as error:
            raise RecordTypeError(f"a record batch cannot be read as records: {error}") from None
        if self._declared is None:
            self._accepted = schema
            return
        try:
            problems = differences(self._declared, from_arrow(schema))
        except ConfigError as error:
            problems = list(error.problems)
        if problems:
            wrong = "; ".join(map(str, problems))
            raise RecordTypeError(f"a record batch is not of the schema that the stream declares: {wrong}")
        self._accepted = schema  # differs only in what a declaration does not say


def _no_extension(code: int, data: bytes) -> object:
    raise ValueError(f"a value is of the extension type {code}")


_unpack = partial(msgpack.unpackb, strict_map_key=False, max_ext_len=0, ext_hook=_no_extension)
"""As readers do; `max_ext_len` lets extension types without data pass, `ext_hook` does not see timestamps."""


def _decode_msgpack(payload: bytes) -> list[Any]:
    decoded = _unpack(payload, max_array_len=MAX_RECORDS)
    if not isinstance(decoded, list):
        raise ValueError(f"a list of records was expected, not {type(decoded).__name__}")
    return decoded


def _decode_bytes(payload: bytes) -> list[Any]:
    records = msgpack.unpackb(payload, max_array_len=MAX_RECORDS, max_map_len=0, max_ext_len=0)
    if not isinstance(records, list) or set(map(type, records)) - {bytes}:
        raise ValueError("a list of byte strings was expected")
    return records


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _decode_json(payload: bytes) -> list[Any]:
    decoded = json.loads(payload, parse_constant=_no_number)
    if not isinstance(decoded, list):
        raise ValueError(f"a list of records was expected, not {type(decoded).__name__}")
    return decoded


def _decode_arrow(payload: bytes) -> list[Any]:
    pa = pyarrow()
    if any(_is_compressed(message) for message in pa.ipc.MessageReader.open_stream(payload)):
        # No writer of this library compresses, and a kilobyte could unpack to gigabytes.
        raise ValueError("its buffers are compressed")
    batches = list(pa.ipc.open_stream(payload))
    for batch in batches:
        if batch.num_rows > _most_rows(payload):
            raise ValueError(f"{batch.num_rows} rows are claimed by {len(payload)} bytes")
        batch.validate(full=True)  # else a wrong offset would be followed to other memory when a record is read
    return batches


def _most_rows(payload: bytes) -> int:
    """Rows of one record batch that a reader believes a payload of this size to hold."""
    return max(MAX_RECORDS, 8 * len(payload))


_DICTIONARY, _RECORDS = 2, 3


def _is_compressed(message: Any) -> bool:
    """Whether an IPC message of Arrow declares compression; pyarrow reports that only after it has unpacked it.

    Reads the flatbuffer of its metadata: Message.header_type is field 1, .header 2; DictionaryBatch.data is field 1;
    RecordBatch.compression is field 3.
    """
    metadata = message.metadata.to_pybytes()
    table = int.from_bytes(metadata[:4], "little")
    kind = metadata[_field(metadata, table, 1)]
    if kind not in (_DICTIONARY, _RECORDS):
        return False
    batch = _follow(metadata, _field(metadata, table, 2))
    if kind == _DICTIONARY:
        batch = _follow(metadata, _field(metadata, batch, 1))
    return _field(metadata, batch, 3) != 0


def _field(buffer: bytes, table: int, number: int) -> int:
    """The position of a table's field; 0 where it has none."""
    vtable = table - int.from_bytes(buffer[table : table + 4], "little", signed=True)
    slot = 4 + 2 * number
    if slot >= int.from_bytes(buffer[vtable : vtable + 2], "little"):
        return 0
    offset = int.from_bytes(buffer[vtable + slot : vtable + slot + 2], "little")
    return table + offset if offset else 0


def _follow(buffer: bytes, at: int) -> int:
    return at + int.from_bytes(buffer[at : at + 4], "little")


_ENCODERS: dict[str, Callable[[Sequence[Any]], bytes]] = {
    "bytes": _encode_bytes,
    "msgpack": _encode_msgpack,
    "json": _encode_json,
}
_DECODERS: dict[str, Callable[[bytes], list[Any]]] = {
    "bytes": _decode_bytes,
    "msgpack": _decode_msgpack,
    "json": _decode_json,
    "arrow": _decode_arrow,
}


def encoder(encoding: str, schema: Schema | None = None) -> Callable[[Sequence[Any]], bytes]:
    """Turn records into a payload.

    Raises `RecordTypeError` for a record that the encoding cannot carry, or that readers do not take (`MAX_NESTING`),
    `PayloadTooLarge` for more than `MAX_RECORDS`, and then sends nothing. Arrow batches are checked against `schema`;
    records of msgpack and json are by `record_checks`. `ConfigError` for arrow without pyarrow.
    """
    return _ArrowEncoder(schema) if encoding == "arrow" else _ENCODERS[encoding]


def decoder(encoding: str) -> Callable[[bytes], list[Any]]:
    """Turn a payload into records; raises `RemoteProtocolError` for a payload that is not of the declared encoding.

    `ConfigError` for arrow without pyarrow.
    """
    if encoding == "arrow":
        pyarrow()
    decode = _DECODERS[encoding]

    def checked(payload: bytes) -> list[Any]:
        try:
            return decode(payload)
        except Exception as error:  # each library has its own kinds
            raise RemoteProtocolError(f"a payload is not {encoding} as the stream declares it: {error}") from None

    return checked
