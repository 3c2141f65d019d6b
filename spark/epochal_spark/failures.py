"""Finds Epochal's error in Spark's exception: the driver gets the errors of a query's tasks only as text.

Separate from `publication`, which raises them, because it depends on how Spark and Python print an error.
"""

import re
from typing import Any

from pyspark.errors import PySparkException

from epochal import errors
from epochal.errors import EpochalError

_RAISED = re.compile(
    r"^(?:\S.*?: )?epochal\.errors\.(\w+): (.*?)(?=\s+SQLSTATE: |\n\s*\n|\n\s+at |\n=== |\Z)", re.MULTILINE | re.DOTALL
)
"""The last line of a Python traceback; its message can have several lines, and Spark's own text follows."""
_BECAME = re.compile(
    r"^(?:The above exception was the direct cause|During handling of the above exception)\b", re.MULTILINE
)
"""What Python prints between an exception and the one raised from it: only the last of these was raised."""


def ours(error: PySparkException) -> EpochalError | None:
    """The Epochal error that made a query fail, with its class and its whole message; None for another cause."""
    found = _RAISED.search(_BECAME.split(str(error))[-1])
    if found is None:
        return None
    kind: Any = getattr(errors, found[1], None)
    if not (isinstance(kind, type) and issubclass(kind, EpochalError)):
        return None
    return kind(found[2].strip())
