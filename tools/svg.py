"""Small drawings as SVG, for light and dark, whose texts overlap nothing.

A canvas raises `LayoutError` for a text that leaves it, does not fit into its box, or touches another text. Fonts
differ from machine to machine, so widths are estimated by those of a wide one (DejaVu Sans).
"""

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
SIZE = 13
LINE = 17
"""Pixels from one line of text to the next."""
PADDING = 8

_LIGHT = {
    "canvas": ("#ffffff", "#d0d7de"),
    "plain": ("#f6f8fa", "#818b98"),
    "active": ("#fff8c5", "#9a6700"),
    "whole": ("#dafbe1", "#1a7f37"),
    "aborted": ("#ffebe9", "#cf222e"),
    "blue": ("#ddf4ff", "#0969da"),
    "violet": ("#fbefff", "#8250df"),
}
_DARK = {
    "canvas": ("#0d1117", "#3d444d"),
    "plain": ("#1c2128", "#9198a1"),
    "active": ("#2e2a1f", "#d29922"),
    "whole": ("#12261e", "#3fb950"),
    "aborted": ("#2d1719", "#f85149"),
    "blue": ("#121d2f", "#4493f8"),
    "violet": ("#211830", "#ab7df8"),
}
_NARROW, _WIDE = frozenset("iljtfrI.,:;|'!()[] "), frozenset("mwMW%@→←")


class LayoutError(Exception):
    """A text does not fit where it is put."""


class Area(NamedTuple):
    """A rectangle of the canvas, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def touches(self, other: "Area") -> bool:
        """Whether both have a point in common."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def holds(self, other: "Area") -> bool:
        """Whether the other one is within this one."""
        across = self.left <= other.left and other.right <= self.right
        return across and self.top <= other.top and other.bottom <= self.bottom


def text_width(text: str, style: str = "ink", size: float = SIZE) -> float:
    """About how wide a text is in a wide font."""
    return (
        size
        * (1.08 if style == "bold" else 1)
        * sum(0.4 if each in _NARROW else 0.95 if each in _WIDE else 0.72 if each.isupper() else 0.62 for each in text)
    )


class Canvas:
    """A drawing of a size in pixels. `title` says in a sentence what it shows, for readers who do not see it."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._width, self._height, self._title = width, height, title
        self._shapes: list[str] = []
        self._texts: list[tuple[Area, str]] = []

    def text(
        self, x: float, y: float, text: str, style: str = "ink", anchor: str = "start", size: float = SIZE
    ) -> None:
        """One line of text on the base line `y`; `anchor` says which end of it, or its middle, is at `x`."""
        width = text_width(text, style, size)
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        area = Area(left, y - 0.8 * size, left + width, y + 0.25 * size)
        if not Area(0, 0, self._width, self._height).holds(area):
            raise LayoutError(f"this text leaves the canvas: {text}")
        for other, there in self._texts:
            if area.touches(other):
                raise LayoutError(f"these texts touch: {there} | {text}")
        self._texts.append((area, text))
        place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size:g}"'
        self._shapes.append(f'<text class="{style}" {place}>{escape(text)}</text>')

    def box(self, area: Area, lines: Sequence[str], style: str = "plain", *, bold: bool = False) -> None:
        """A box with lines of text in its middle; with `bold` the first one is a heading."""
        left, top, right, bottom = area
        size = f'width="{right - left:g}" height="{bottom - top:g}" rx="5"'
        self._shapes.append(f'<rect class="{style}" x="{left:g}" y="{top:g}" {size}/>')
        first = (top + bottom) / 2 - (len(lines) - 1) * LINE / 2 + 0.35 * SIZE
        if len(lines) * LINE > bottom - top:
            raise LayoutError(f"these lines are higher than their box: {lines}")
        for number, line in enumerate(lines):
            style_of = "bold" if bold and not number else "ink"
            if text_width(line, style_of) + PADDING > right - left:
                raise LayoutError(f"this line is wider than its box: {line}")
            self.text((left + right) / 2, first + number * LINE, line, style_of, "middle")

    def path(self, *points: tuple[float, float], style: str = "line", arrow: bool = True) -> None:
        """Straight lines from point to point, with an arrow at the end."""
        steps = " ".join(f"{x:g},{y:g}" for x, y in points)
        head = ' marker-end="url(#head)"' if arrow else ""
        self._shapes.append(f'<polyline class="{style}" points="{steps}"{head}/>')

    def svg(self) -> str:
        """The document."""
        width, height = self._width, self._height
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
                f' height="{height}" role="img">',
                f"<title>{escape(self._title)}</title>",
                f"<style>\n{_style()}</style>",
                '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"'
                ' orient="auto"><path class="head" d="M0,0 L10,5 L0,10 z"/></marker>',
                f'<rect class="canvas" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
                *self._shapes,
                "</svg>\n",
            ]
        )


def _style() -> str:
    common = (
        f"text {{ font-family: {FONT}; }}\n.bold {{ font-weight: 600; }}\n"
        ".line, .strong, .dashed, .fault { fill: none; stroke-width: 1.4; }\n"
        ".strong, .fault { stroke-width: 3; }\n.dashed { stroke-dasharray: 4 4; }\n"
    )
    dark = _colours(_DARK, "#f0f6fc", "#9198a1")
    return f"{common}{_colours(_LIGHT, '#1f2328', '#59636e')}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"


def _colours(kinds: dict[str, tuple[str, str]], ink: str, faint: str) -> str:
    shapes = "".join(f".{name} {{ fill: {fill}; stroke: {line}; }}\n" for name, (fill, line) in kinds.items())
    lines = f".line, .dashed {{ stroke: {faint}; }}\n.strong {{ stroke: {kinds['blue'][1]}; }}\n"
    lines += f".fault {{ stroke: {kinds['aborted'][1]}; }}\n"
    return f"{shapes}.ink, .bold {{ fill: {ink}; }}\n.faint, .head {{ fill: {faint}; }}\n{lines}"
