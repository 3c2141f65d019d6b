"""What a caller expects a stream to be declared as, in each form that the API accepts.

Writers and subscriptions compare it with the declaration in the same way: at the look-up, before anything is connected
(S28).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from epochal.client.encoding.arrow_schemas import from_arrow, is_arrow
from epochal.errors import ConfigError, ManifestError
from epochal.resources.schemas import Schema

SchemaLike: TypeAlias = Schema | Mapping[str, Any] | Any
"""A `Schema`, its form in a manifest, or a `pyarrow.Schema` (not named here: it need not be installed)."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the stream must be declared as; what is None may be anything."""

    time_shape: str | None = None
    encoding: str | None = None
    schema: Schema | None = None

    def document(self) -> dict[str, Any] | None:
        """The schema in its form in a manifest."""
        return None if self.schema is None else self.schema.to_document()


NOTHING = Expected()


def read_schema(given: SchemaLike | None) -> Schema | None:
    """The schema, in whichever form it was given; raises `ConfigError` with every wrong field."""
    if given is None or isinstance(given, Schema):
        return given
    if is_arrow(given):
        return from_arrow(given)
    try:
        return Schema.parse(given, "schema")
    except ManifestError as error:
        raise ConfigError("schema= is not valid", error.problems) from None
