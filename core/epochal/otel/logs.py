"""The trace that a line of the log belongs to.

Separate from the services because each of their log formats writes it in its own way.
"""

import logging
import sys


def ids() -> tuple[str, str] | None:
    """Trace id and span id of the current span, as text; None outside of any span."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


class Traced(logging.Formatter):
    """A formatter that adds ` trace_id=... span_id=...` to a line that was written within a span."""

    def format(self, record: logging.LogRecord) -> str:
        """One record; a stack trace, if there is one, comes after the ids."""
        found = ids()
        if found is not None:
            record = logging.makeLogRecord(vars(record))
            record.msg, record.args = f"{record.getMessage()} trace_id={found[0]} span_id={found[1]}", ()
        return super().format(record)
