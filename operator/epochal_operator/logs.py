"""The log as one JSON object a line.

Apart from the entry point because it is a format; who collects logs can tell fields apart then.
"""

import json
import logging
from datetime import UTC, datetime

from epochal.otel.logs import ids


class JsonLines(logging.Formatter):
    """Time, level, logger, message and, where there are such, the trace and the stack."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (found := ids()) is not None:
            told["trace_id"], told["span_id"] = found
        if record.exc_info:
            told["stack"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)


def write_json() -> None:
    """Have every line of this process written so."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines())
