"""The kinds of messages: the number of each on the wire, and what its header's fields may hold."""

from typing import Any, Final

from epochal.protocol import messages as m
from epochal.protocol.wire.fields import (
    Check,
    boolean,
    change,
    count,
    integer,
    leaving,
    long_text,
    many,
    optional,
    position,
    prefixes,
    question,
    resume,
    seconds,
    sized,
    step,
    text,
    time,
    times,
    times_or_none,
    topic,
    trace_or_none,
)

KINDS: Final[dict[int, tuple[type[Any], tuple[Check, ...]]]] = {
    1: (m.Data, (integer, integer, time, topic, count, count)),
    2: (m.Frontier, (integer, integer, many(change))),
    3: (m.Aborted, (integer, integer, times)),
    5: (m.Heartbeat, (integer, integer)),
    6: (m.Snapshot, (integer, integer, sized(16), times, times, times, times_or_none, optional(integer))),
    7: (m.Refused, (integer, text, text)),
    8: (m.Ended, (text,)),
    16: (m.Hello, (integer, many(integer), text, text, sized(16), optional(prefixes), optional(sized(16)), integer)),
    17: (m.Welcome, (integer, integer, sized(8), integer, integer, count, seconds, many(text), boolean, many(text))),
    18: (m.Since, (integer, text, optional(position), count, optional(times), optional(prefixes))),
    19: (m.Credit, (integer, count)),
    20: (m.Opening, (integer, position, times, times, times, times_or_none, integer, times)),
    21: (m.Chunk, (integer, count, boolean, integer)),
    22: (m.Truncated, (integer, position, times)),
    23: (m.Filter, (text, integer, integer, integer, step, topic)),
    24: (m.Confirm, (integer, integer, step, topic)),
    32: (m.Open, (integer, text, text, text, integer, optional(text), optional(resume), boolean)),
    33: (
        m.Opened,
        (
            integer,
            text,
            integer,
            times,
            times,
            integer,
            times,
            times,
            integer,
            boolean,
            optional(integer),
            integer,
            integer,
            boolean,
            boolean,
        ),
    ),
    34: (m.Append, (text, integer, time, topic, count, count)),
    35: (m.Ack, (text, integer, integer, count)),
    36: (m.AppendRefused, (text, integer, text, text)),
    37: (m.Hold, (integer, text, times, integer)),
    38: (m.Abort, (integer, text, times)),
    39: (m.Leave, (integer, text, leaving)),
    40: (m.Done, (integer, text)),
    41: (m.Alive, (text,)),
    42: (m.Lost, (text, text, text)),
    48: (m.Greet, (integer, many(integer), text)),
    49: (m.Greeted, (integer, integer, text, text)),
    50: (m.Ask, (integer, question, text, text, many(long_text), seconds)),
    51: (m.Answer, (integer, long_text)),
    52: (m.Pass, (integer, text, text, text, trace_or_none)),
    53: (m.Cut, (text, text)),
    54: (m.Free, ()),
    55: (m.Passed, (integer,)),
    56: (m.Left, (text, text, integer)),
}
"""kind -> (message type, one check a header field); 4 and the gaps are reserved.

Fields whose type has a default may be missing at the end of a header. The fields of a batch (`Data`, `Append`) are
followed by those of its `Meta` that are set.
"""

KIND_OF: Final = {kind: number for number, (kind, _) in KINDS.items()}
BATCHES: Final = (m.Data, m.Append)
BATCH_FIELDS: Final = 7
"""The kind and the fields of a batch, without its `Meta`."""
WITH_PAYLOAD: Final = (*BATCHES, m.Answer)
WITH_DETAIL: Final = (m.Refused, m.AppendRefused, m.Lost, m.Cut)
