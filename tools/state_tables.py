"""Draw the state tables of the protocol's machines in the pages that describe them.

Run as `python tools/state_tables.py`. A page has the drawing between two comments, `<!-- states: NAME -->` and
`<!-- end of states -->`; what is between them is replaced. tests/tools/test_state_tables.py fails while a page differs
from the table in the code.
"""

import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from epochal.protocol.publisher.completion import COMPLETION_TRANSITIONS
from epochal.protocol.publisher.writer_state import PRESENCE_TRANSITIONS
from epochal.protocol.subscriber.follower_states import FOLLOWER_TRANSITIONS
from epochal.protocol.transitions import Transitions
from epochal.protocol.writer.session_states import WRITER_TRANSITIONS

ROOT = Path(__file__).parents[1]


class Drawing(NamedTuple):
    """Where one table is drawn."""

    page: str
    transitions: Transitions[Any, Any]


DRAWINGS = {
    "follower": Drawing("docs/protocol.md", FOLLOWER_TRANSITIONS),
    "writer": Drawing("docs/protocol.md", WRITER_TRANSITIONS),
    "presence": Drawing("docs/protocol.md", PRESENCE_TRANSITIONS),
    "completion": Drawing("docs/protocol.md", COMPLETION_TRANSITIONS),
}
"""By the name that the comment in the page has."""


def diagram(transitions: Transitions[Any, Any]) -> list[str]:
    """Mermaid's text for the states and the names of the events, without the ends that the table below lists."""
    events: dict[tuple[str, str], list[str]] = {}
    for state, event, after in transitions.rows():
        if after in transitions.table:
            events.setdefault((state.value, after.value), []).append(_name(event))
    edges = [f"    {state} --> {after}: {'<br>'.join(names)}" for (state, after), names in events.items()]
    return ["```mermaid", "stateDiagram-v2", f"    [*] --> {transitions.start.value}", *edges, "```"]


def table(transitions: Transitions[Any, Any]) -> list[str]:
    """All transitions as rows of Markdown; states in which an event leads to the same one share a row."""
    states: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for state, event, after in transitions.rows():
        states.setdefault((event, after), []).append(state.value)
    rows = [f"| {', '.join(froms)} | {_name(event)} | {event.value} | {after.value} |"
            for (event, after), froms in states.items()]  # fmt: skip
    return ["| state | event | what happens | next state |", "|---|---|---|---|", *rows]


def _name(event: StrEnum) -> str:
    return event.name.lower().replace("_", " ")


def drawn(text: str, drawings: Iterable[str]) -> str:
    """The text of a page with the named drawings as the code has them. Raises `ValueError` where one has no place."""
    for name in drawings:
        transitions = DRAWINGS[name].transitions
        lines = ["", *diagram(transitions), "", *table(transitions), ""]
        begin, end = f"<!-- states: {name} -->\n", "<!-- end of states -->"
        before, found, rest = text.partition(begin)
        if not found or end not in rest:
            raise ValueError(f"the page has no place for the states of {name!r}: {begin.strip()} ... {end}")
        text = before + begin + "\n".join([*lines, end]) + rest.partition(end)[2]
    return text


def pages() -> dict[Path, str]:
    """Each page that has drawings, with the text that it should have."""
    names: dict[str, list[str]] = {}
    for name, drawing in DRAWINGS.items():
        names.setdefault(drawing.page, []).append(name)
    return {ROOT / page: drawn((ROOT / page).read_text(), on_page) for page, on_page in names.items()}


def main() -> int:
    """Write the pages that differ."""
    for page, text in pages().items():
        if page.read_text() != text:
            page.write_text(text)
            print(f"{page.relative_to(ROOT)}: drawn again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
