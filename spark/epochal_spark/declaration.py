"""The part of a stream's declaration that the sink must match.

The driver, Spark's planner and every task need it.
"""

from dataclasses import dataclass
from typing import Self

from epochal.catalog_api.answers import StreamInfo
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import Problem, SchemaMismatch
from epochal.protocol.times import TimeShape
from epochal.resources.names import parse_stream_name
from epochal.resources.schemas import Schema

CARRIED = ("arrow", "msgpack", "json")
"""Encodings that can carry a row."""


@dataclass(frozen=True, slots=True)
class Declared:
    """Time, encoding and, where it is declared, schema of a stream."""

    shape: TimeShape
    encoding: str
    schema: Schema | None = None

    @classmethod
    def of(cls, info: StreamInfo) -> Self:
        """Read it from the catalog's answer; raises `SchemaMismatch` for an encoding that carries no rows."""
        spec = info.declared().spec
        encoding = str(spec.payload.encoding)
        if encoding not in CARRIED:
            problem = Problem("encoding", f"the stream has {encoding}", f"declare one of {', '.join(CARRIED)}")
            raise SchemaMismatch(f"rows cannot be published to {info.qualified}:", [problem])
        return cls(spec.time.shape, encoding, spec.payload.fields)


async def look_up(catalog: CatalogClient, stream: str, wait: float) -> Declared:
    """Ask the catalog, waiting up to `wait` seconds for the stream and its publishers.

    Raises `StreamNotFound`, `NoPublisher`, `CatalogUnavailable`, `SchemaMismatch`.
    """
    return Declared.of(await catalog.lookup(*parse_stream_name(stream), wait=wait))
