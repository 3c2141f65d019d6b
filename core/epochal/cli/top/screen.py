"""What a key does in `epochal top`: a state machine without a terminal.

    state      key                     becomes
    list       t, n, r, l              list, in another order
    list       up, down, page          list, with another stream selected
    list       Enter                   stream, if there is one
    list       /                       filter
    list       Escape                  list, without the filter
    filter     a character, Backspace  filter, with another text
    filter     Enter                   list, with the filter
    filter     Escape                  list, without the filter
    stream     up, down, page          stream, further up or down
    stream     Escape, Backspace       list
    list       q                       over
    stream     q                       over

The selected stream is known by its name: it stays selected when rows move.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from epochal.cli.io.keys import Key
from epochal.cli.top.rows import Order

MAX_FILTER = 200
"""Characters of a filter; a stream's name is shorter."""

ORDERS = {"t": Order.TROUBLE, "n": Order.NAME, "r": Order.RATE, "l": Order.LAG}


class Mode(Enum):
    """What is on the screen."""

    LIST = auto()
    FILTER = auto()
    STREAM = auto()
    OVER = auto()


@dataclass(frozen=True, slots=True)
class Screen:
    """A state. `selected`: a stream's name, "" for the first; `scroll`: lines of a stream above the screen."""

    order: Order = Order.TROUBLE
    mode: Mode = Mode.LIST
    filter: str = ""
    selected: str = ""
    scroll: int = 0

    def press(self, key: str, names: Sequence[str], page: int) -> "Screen":
        """The state after a key. `names` are the streams in the list, `page` the lines that it has room for."""
        match self.mode:
            case Mode.LIST:
                return self._in_list(key, names, page)
            case Mode.FILTER:
                return self._in_filter(key)
            case Mode.STREAM:
                return self._in_stream(key, page)
            case Mode.OVER:
                return self

    def place(self, names: Sequence[str]) -> int:
        """The index of the selected stream among `names`; 0 if it has gone."""
        return names.index(self.selected) if self.selected in names else 0

    def _in_list(self, key: str, names: Sequence[str], page: int) -> "Screen":
        if key in ORDERS:
            return replace(self, order=ORDERS[key])
        if key in _steps(page) and names:
            place = self.place(names) + _steps(page)[key]
            return replace(self, selected=names[min(max(place, 0), len(names) - 1)])
        match key:
            case Key.ENTER if names:
                return replace(self, mode=Mode.STREAM, selected=names[self.place(names)], scroll=0)
            case "/":
                return replace(self, mode=Mode.FILTER)
            case Key.ESCAPE:
                return replace(self, filter="")
            case "q":
                return replace(self, mode=Mode.OVER)
            case _:
                return self

    def _in_filter(self, key: str) -> "Screen":
        match key:
            case Key.ENTER:
                return replace(self, mode=Mode.LIST)
            case Key.ESCAPE:
                return replace(self, mode=Mode.LIST, filter="")
            case Key.BACKSPACE:
                return replace(self, filter=self.filter[:-1])
            case _ if len(key) == 1 and len(self.filter) < MAX_FILTER:
                return replace(self, filter=self.filter + key)
            case _:
                return self

    def _in_stream(self, key: str, page: int) -> "Screen":
        if key in _steps(page):
            return replace(self, scroll=max(self.scroll + _steps(page)[key], 0))
        match key:
            case Key.ESCAPE | Key.BACKSPACE:
                return replace(self, mode=Mode.LIST)
            case "q":
                return replace(self, mode=Mode.OVER)
            case _:
                return self


def _steps(page: int) -> dict[str, int]:
    return {Key.UP: -1, Key.DOWN: 1, Key.PAGE_UP: -page, Key.PAGE_DOWN: page}
