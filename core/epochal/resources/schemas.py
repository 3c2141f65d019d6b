"""`payload.schema` of a stream: the fields of its records, with their types.

Writers, subscribers, the catalog and Spark compare schemas without pyarrow: a type is a text with a small grammar,
close to Arrow's own notation.

    bool  int8 ... int64  uint8 ... uint64  float32  float64  string  binary  date32
    timestamp[s|ms|us|ns]  timestamp[us, UTC]  decimal128(10, 2)  list<T>  struct<name: T, other: T>
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from epochal.errors import ManifestError, Problem
from epochal.resources.problems import nearest, show

PLAIN = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float32", "float64", "string", "binary", "date32",
)  # fmt: skip
UNITS = ("s", "ms", "us", "ns")
KINDS = (*PLAIN, "timestamp", "decimal128", "list", "struct")

MAX_FIELDS = 2_000
MAX_TYPE = 4_096
"""Characters in the text of one field's type."""
MAX_DEPTH = 16
MAX_NAME = 255
MAX_PRECISION = 38

_TOKEN = re.compile(r"\s*([<>\[\](),:]|[^<>\[\](),:]+)")


@dataclass(frozen=True, slots=True)
class Plain:
    """A type without parameters."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Timestamp:
    """Units since 1970. With a zone it is an instant, always counted in UTC; without one, the time of a wall clock."""

    unit: str
    zone: str = ""

    def __str__(self) -> str:
        return f"timestamp[{self.unit}, {self.zone}]" if self.zone else f"timestamp[{self.unit}]"


@dataclass(frozen=True, slots=True)
class Decimal:
    """A number with `precision` digits, `scale` of them after the decimal point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal128({self.precision}, {self.scale})"


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of any length with items of one type, which may be null."""

    item: "Type"

    def __str__(self) -> str:
        return f"list<{self.item}>"


@dataclass(frozen=True, slots=True)
class Struct:
    """Named members, each of which may be null."""

    members: "tuple[tuple[str, Type], ...]"

    def __str__(self) -> str:
        return f"struct<{', '.join(f'{name}: {kind}' for name, kind in self.members)}>"


Type: TypeAlias = Plain | Timestamp | Decimal | ListOf | Struct


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record."""

    name: str
    type: Type
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of a record, in order.

    >>> schema = Schema.parse({"fields": [{"name": "delay", "type": "int32"}]})
    >>> schema.to_document()
    {'fields': [{'name': 'delay', 'type': 'int32', 'nullable': True}]}
    """

    fields: tuple[Field, ...]

    @classmethod
    def parse(cls, document: object, path: str = "payload.schema") -> Self:
        """Read a schema as it is in a manifest; raises `ManifestError` with every wrong field, under `path`."""
        problems: list[Problem] = []
        fields = tuple(_read_fields(document, path, problems))
        if problems:
            raise ManifestError("the schema is not valid", problems)
        return cls(fields)

    def to_document(self) -> dict[str, Any]:
        """The normalised form: JSON-safe, each type in its one spelling, `nullable` always present."""
        return {
            "fields": [
                {"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in self.fields
            ]
        }


def parse_type(text: str) -> Type:
    """Read one type; raises `ValueError` that says what is wrong.

    >>> str(parse_type("struct<at:timestamp[ms,UTC],fares:list<decimal128(9,2)>>"))
    'struct<at: timestamp[ms, UTC], fares: list<decimal128(9, 2)>>'
    """
    if len(text) > MAX_TYPE:
        raise ValueError(f"a type has at most {MAX_TYPE} characters")
    reader = _Reader([token.strip() for token in _TOKEN.findall(text) if token.strip()])
    kind = reader.type(0)
    if reader.next() is not None:
        raise ValueError(f"'{reader.next()}' is too much after {str(kind)[:60]}")
    return kind


def differences(declared: Schema | None, wanted: Schema | None, path: str = "payload.schema") -> list[Problem]:
    """Where `wanted` differs from the stream's schema, by field; empty if no schema is wanted (S28)."""
    if wanted is None or declared == wanted:
        return []
    if declared is None:
        return [Problem(path, "the stream declares none", "leave schema out, or declare one in the manifest")]
    return list(_differences(declared, wanted, path))


def _differences(declared: Schema, wanted: Schema, path: str) -> Iterator[Problem]:
    has = {field.name: field for field in declared.fields}
    wants = {field.name: field for field in wanted.fields}
    for name, field in wants.items():
        where = f"{path}.fields.{name}"
        if name not in has:
            yield Problem(where, "the stream has no such field", nearest(name, list(has)))
            continue
        if has[name].type != field.type:
            yield Problem(f"{where}.type", f"the stream has {has[name].type}, not {field.type}")
        if has[name].nullable != field.nullable:
            yield Problem(f"{where}.nullable", f"the stream has {show(has[name].nullable)}, not {show(field.nullable)}")
    for name in has.keys() - wants.keys():
        yield Problem(f"{path}.fields.{name}", f"the stream has this field ({has[name].type}) too", "name it as well")
    if list(has) != list(wants) and has.keys() == wants.keys():
        yield Problem(f"{path}.fields", f"the stream has them in the order {', '.join(has)}")


def _read_fields(document: object, path: str, problems: list[Problem]) -> Iterator[Field]:
    if not isinstance(document, Mapping):
        problems.append(Problem(path, f"must be a mapping with the field fields, not {show(document)}"))
        return
    problems.extend(_unknown(document, ("fields",), path))
    items = document.get("fields")
    if not isinstance(items, list | tuple) or not items:
        hint = 'e.g. [{"name": "delay", "type": "int32"}]'
        problems.append(Problem(f"{path}.fields", f"must be a list of at least one field, not {show(items)}", hint))
        return
    if len(items) > MAX_FIELDS:
        problems.append(Problem(f"{path}.fields", f"has {len(items)} fields", f"at most {MAX_FIELDS}"))
        return
    names: dict[str, int] = {}
    for index, item in enumerate(items):
        field = _read_field(item, f"{path}.fields[{index}]", problems)
        if field is None:
            continue
        if field.name in names:
            where = f"{path}.fields[{index}].name"
            problems.append(Problem(where, f"'{field.name}' is the name of fields[{names[field.name]}] already"))
        names.setdefault(field.name, index)
        yield field


def _read_field(item: object, path: str, problems: list[Problem]) -> Field | None:
    if not isinstance(item, Mapping):
        problems.append(Problem(path, f"must be a mapping of name, type and nullable, not {show(item)}"))
        return None
    before = len(problems)
    problems.extend(_unknown(item, ("name", "type", "nullable"), path))
    name, text, nullable = item.get("name"), item.get("type"), item.get("nullable", True)
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        problems.append(Problem(f"{path}.name", f"must be a text of 1 to {MAX_NAME} characters, not {show(name)}"))
    if not isinstance(nullable, bool):
        problems.append(Problem(f"{path}.nullable", f"must be true or false, not {show(nullable)}"))
    kind: Type | None = None
    if isinstance(text, str):
        try:
            kind = parse_type(text)
        except ValueError as error:
            problems.append(Problem(f"{path}.type", f"{show(text)} is no type: {error}", _nearest_kind(text)))
    else:
        problems.append(Problem(f"{path}.type", f"must be a type, not {show(text)}", f"known: {', '.join(KINDS)}"))
    if len(problems) > before or not isinstance(name, str) or not isinstance(nullable, bool) or kind is None:
        return None
    return Field(name, kind, nullable)


def _unknown(item: Mapping[Any, Any], known: tuple[str, ...], path: str) -> Iterator[Problem]:
    for key in item:
        if key not in known:
            yield Problem(f"{path}.{str(key)[:80]}", "is not a field", nearest(str(key), known))


def _nearest_kind(text: str) -> str:
    hint = nearest(re.split(r"[<\[(:,]", text.strip(), maxsplit=1)[0].strip(), KINDS)
    return hint if hint.startswith("did") else f"known: {', '.join(KINDS)}"


class _Reader:
    """Reads the tokens of one type from left to right."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def next(self) -> str | None:
        """The next token, without taking it; None at the end."""
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _word(self) -> str:
        token = self.next()
        if token is None:
            raise ValueError("it ends too early")
        self._at += 1
        return token

    def _expect(self, wanted: str) -> None:
        token = self.next()
        if token != wanted:
            raise ValueError(f"'{wanted}' is missing" + (f" before '{token}'" if token is not None else " at its end"))
        self._at += 1

    def _name(self) -> str:
        name = self._word()
        if name in "<>[](),:" or len(name) > MAX_NAME:
            raise ValueError(f"'{name[:40]}' cannot name a member")
        return name

    def type(self, depth: int) -> Type:
        """Take the tokens of one whole type."""
        if depth > MAX_DEPTH:
            raise ValueError(f"types nest at most {MAX_DEPTH} deep")
        word = self._word()
        match word:
            case "timestamp":
                return self._timestamp()
            case "decimal128":
                return self._decimal()
            case "list":
                self._expect("<")
                item = self.type(depth + 1)
                self._expect(">")
                return ListOf(item)
            case "struct":
                return self._struct(depth)
        if word not in PLAIN:
            raise ValueError(f"'{word[:40]}' is not known")
        return Plain(word)

    def _timestamp(self) -> Timestamp:
        self._expect("[")
        unit = self._word()
        if unit not in UNITS:
            raise ValueError(f"a timestamp counts one of {', '.join(UNITS)}, not '{unit[:40]}'")
        zone = []
        if self.next() == ",":
            self._at += 1
            while self.next() not in ("]", None):  # a zone may be an offset, as in +02:00
                zone.append(self._word())
            if not zone:
                raise ValueError("a zone is missing after the comma")
        self._expect("]")
        return Timestamp(unit, "".join(zone))

    def _decimal(self) -> Decimal:
        self._expect("(")
        precision = self._number("precision", 1, MAX_PRECISION)
        self._expect(",")
        scale = self._number("scale", -MAX_PRECISION, MAX_PRECISION)
        self._expect(")")
        return Decimal(precision, scale)

    def _number(self, what: str, least: int, most: int) -> int:
        text = self._word()
        if not re.fullmatch(r"-?[0-9]{1,3}", text) or not least <= int(text) <= most:
            raise ValueError(f"a {what} is a number from {least} to {most}, not '{text[:40]}'")
        return int(text)

    def _struct(self, depth: int) -> Struct:
        self._expect("<")
        members: list[tuple[str, Type]] = []
        while True:
            name = self._name()
            if any(name == known for known, _ in members):
                raise ValueError(f"the member '{name}' is there twice")
            self._expect(":")
            members.append((name, self.type(depth + 1)))
            if self.next() != ",":
                break
            self._at += 1
        self._expect(">")
        return Struct(tuple(members))
