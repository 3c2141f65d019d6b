"""Tables of results: on the terminal, and in docs/performance.md between the marks that name them.

Apart from the measures so that a figure in the documentation was written by the run that measured it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable


@dataclass(frozen=True, slots=True)
class Table:
    """`name` is the mark in the documentation; `reason` says why there are no rows."""

    name: str
    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    reason: str = ""

    def show(self, console: Console) -> None:
        """Print it."""
        if self.reason:
            console.print(f"{self.name}: not measured: {self.reason}", markup=False)
            return
        shown = RichTable(*self.headings, title=self.title, title_justify="left")
        for row in self.rows:
            shown.add_row(*row)
        console.print(shown)

    def markdown(self) -> str:
        """As it stands in the documentation."""
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write(page: Path, tables: Sequence[Table], machine: str) -> None:
    """Put tables between their marks in `page`; raises `RuntimeError` for a table that the page has no place for."""
    text = page.read_text()
    for table in tables:
        if not table.reason:
            text = _replaced(text, table.name, table.markdown())
    page.write_text(_replaced(text, "machine", machine))


def _replaced(text: str, name: str, content: str) -> str:
    marks = re.compile(rf"(<!-- measured: {re.escape(name)} -->\n)(?:(?!<!--).)*?(\n<!-- end -->)", re.DOTALL)
    text, places = marks.subn(lambda found: f"{found[1]}\n{content}\n{found[2]}", text)
    if places != 1:
        raise RuntimeError(f"the page has {places} places for {name}, not one")
    return text
