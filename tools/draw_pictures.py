"""Draws the pictures of the README and the documentation into docs/pictures.

    python tools/draw_pictures.py

`time.svg` is drawn from docs/pictures/time.json, a run that `tools/record_time.py` recorded, and `deaths.svg` from the
table in docs/concepts.md. A test compares the files with what is drawn.
"""

import itertools
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from svg import Area, Canvas

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
OUTCOMES = {"whole": "whole", "aborted": "aborted"}
"""The style of an epoch by what a subscriber was given."""


def draw_time(events: Sequence[dict[str, Any]]) -> str:
    """Three writers, the frontier of their stream and a subscriber, over the seconds of a recorded run."""
    canvas = Canvas(940, 380, "A frontier waits for the slowest writer; an epoch becomes whole, another is aborted.")
    left, right = 118.0, 922.0
    scale = (right - left - 84) / events[-1]["at"]
    given = {event["time"]: event["what"] for event in events if event["who"] == "reader"}
    lanes = {"w1": 40.0, "w2": 84.0, "w3": 128.0, "frontier": 196.0, "reader": 276.0}
    names = {"w1": "writer 1", "w2": "writer 2", "w3": "writer 3", "frontier": "frontier", "reader": "subscriber"}
    for who, y in lanes.items():
        canvas.text(20, y + 5, names[who], "bold")

    def x_of(event: dict[str, Any]) -> float:
        return float(left + 12 + scale * event["at"])

    # What each move of the frontier comes from, and leads to: drawn first, so that it is behind all else.
    moves = [event for event in events if event["who"] == "frontier"]
    advances = [event for event in events if event["what"] == "advance"]
    for move in moves[1:]:
        cause = min(advances, key=lambda event: abs(event["at"] - move["at"]))
        canvas.path((x_of(move), lanes[cause["who"]] + 12), (x_of(move), 254), style="dashed")
    for who in ("w1", "w2", "w3"):
        mine = [event for event in events if event["who"] == who]
        end = right if mine[-1]["what"] != "fail" else x_of(mine[-1])
        canvas.path((left, lanes[who]), (end, lanes[who]), arrow=False)
        for event in mine:
            _draw_step(canvas, event, x_of(event), lanes[who], given)
        slow = max(itertools.pairwise(mine), key=lambda pair: pair[1]["at"] - pair[0]["at"])
        if who == "w3":
            canvas.text(
                (x_of(slow[0]) + x_of(slow[1])) / 2, lanes[who] - 8, "slow: it still holds 1", "faint", "middle"
            )
    for number, move in enumerate(moves):
        start, end = x_of(move), x_of(moves[number + 1]) if number + 1 < len(moves) else right
        text = f"{move['time']}: waits for writer 3" if end - start > 200 else str(move["time"])
        canvas.box(Area(start, 180, end, 212), [text], "blue")
    for event in events:
        if event["who"] == "reader":
            lines = [f"epoch {event['time']} {event['what']}"]
            lines.append(f"{event['records']} records" if event["records"] else "nothing given")
            x = x_of(event)
            canvas.box(Area(x - 66, 256, x + 66, 298), lines, OUTCOMES[event["what"]], bold=True)
    _draw_seconds(canvas, events[-1]["at"], left + 12, scale, 320)
    canvas.box(Area(118, 342, 142, 364), ["2"], "aborted")
    canvas.box(Area(146, 342, 170, 364), ["3"], "whole")
    canvas.text(178, 358, "records at time 2, at time 3")
    canvas.text(390, 358, "→3", "bold")
    canvas.text(418, 358, "nothing more from this writer before 3")
    canvas.text(700, 358, "as recorded, in seconds", "faint")
    return canvas.svg()


def _draw_step(canvas: Canvas, event: dict[str, Any], x: float, y: float, given: dict[int, str]) -> None:
    """What a writer does: records as a box, an advance as an arrow, a fault as a cross."""
    match event["what"]:
        case "append":
            canvas.box(Area(x - 11, y - 11, x + 11, y + 11), [str(event["time"])], OUTCOMES[given[event["time"]]])
        case "advance":
            canvas.path((x, y - 9), (x, y + 9), arrow=False)
            canvas.text(x, y - 12, f"→{event['time']}", "bold", "middle")
        case _:
            canvas.path((x - 7, y - 7), (x + 7, y + 7), style="fault", arrow=False)
            canvas.path((x - 7, y + 7), (x + 7, y - 7), style="fault", arrow=False)
            canvas.text(x, y + 25, "fails", "bold", "middle")


def _draw_seconds(canvas: Canvas, last: float, left: float, scale: float, y: float) -> None:
    for half in range(int(last * 2) + 1):
        x = left + scale * half / 2
        canvas.path((x, y - 14), (x, y - 9), arrow=False)
        canvas.text(x, y + 4, f"{half / 2:g} s", "faint", "middle", 11)


def draw_epoch() -> str:
    """The four states of an epoch, and what leads from one to another."""
    canvas = Canvas(900, 262, "An epoch is latent, then active, and ends completed or aborted.")
    canvas.box(Area(20, 62, 220, 126), ["latent", "records can come,", "none has come"], bold=True)
    canvas.box(Area(350, 62, 550, 126), ["active", "some records are here,", "more can come"], "active", bold=True)
    canvas.box(Area(680, 62, 880, 126), ["completed", "nothing more can come:", "given whole"], "whole", bold=True)
    canvas.box(Area(350, 176, 550, 240), ["aborted", "never whole: no record", "is given"], "aborted", bold=True)
    canvas.path((220, 94), (350, 94))
    canvas.text(285, 86, "first records", "ink", "middle")
    canvas.path((550, 94), (680, 94))
    canvas.text(615, 86, "frontier passes", "ink", "middle")
    canvas.path((120, 62), (120, 32), (780, 32), (780, 62))
    canvas.text(450, 25, "the frontier passes a time without records", "ink", "middle")
    canvas.path((450, 126), (450, 176))
    canvas.text(464, 146, "a writer is lost, fails, or aborts it;")
    canvas.text(464, 165, "its publisher lost its memory")
    canvas.path((120, 126), (120, 208), (350, 208))
    canvas.text(130, 201, "publisher lost its memory")
    return canvas.svg()


def draw_join() -> str:
    """What a subscriber takes from the snapshot by which it joins one segment."""
    canvas = Canvas(900, 272, "A subscriber joins after a snapshot, and is given whole epochs only.")
    canvas.text(16, 45, "log of a segment", "bold")
    before, after = ["1", "→2", "2", "→3", "3", "5"], ["3", "6", "→6", "6", "→7"]
    join = 156 + 52 * len(before) + 26
    for number, label in enumerate([*before, *after]):
        x = 156 + 52 * number + (60 if number >= len(before) else 0)
        canvas.box(Area(x, 26, x + 44, 54), [label], "blue" if label.startswith("→") else "plain")
    canvas.path((join, 20), (join, 84), style="dashed")
    canvas.box(
        Area(join - 150, 86, join + 150, 130), ["snapshot as it joins", "frontier 3; begun: 3 and 5"], "blue", bold=True
    )
    canvas.text(join + 170, 112, "from here on, events are pushed")
    canvas.path((join, 130), (join, 164))
    canvas.text(16, 190, "epochs", "bold")
    styles = ["plain"] * 3 + ["active"] * 3 + ["whole"] * 4
    for time, style in enumerate(styles):
        canvas.box(Area(156 + 72 * time, 170, 220 + 72 * time, 200), [str(time)], style)
    for left, right, lines in (
        (156, 364, ("complete before it came:", "only with since=")),
        (372, 580, ("begun, or before one", "that has begun: skipped")),
        (588, 868, ("given whole, each once,", "when the frontier passes")),
    ):
        canvas.path((left, 212), (right, 212), arrow=False)
        for number, line in enumerate(lines):
            canvas.text((left + right) / 2, 234 + 19 * number, line, "ink", "middle")
    return canvas.svg()


def draw_held() -> str:
    """Which writer the frontier of a stream waits for, and how that ends."""
    canvas = Canvas(900, 320, "The frontier is at the least time that a writer holds.")
    canvas.text(16, 61, "epochs", "bold")
    styles = {10: "whole", 11: "whole", 12: "active", 13: "active", 14: "plain", 15: "plain"}
    for time, style in styles.items():
        x = 130 + 124 * (time - 10)
        words = {"whole": "complete", "active": "waits", "plain": "can still come"}
        canvas.box(Area(x, 36, x + 116, 80), [str(time), words[style]], style, bold=True)
    edge = 130 + 124 * 2 - 4
    canvas.path((edge, 12), (edge, 96), style="strong", arrow=False)
    canvas.text(edge + 10, 24, "frontier: 12, the least time that is held", "bold")
    canvas.text(16, 151, "writers", "bold")
    canvas.box(Area(edge + 4, 126, edge + 120, 170), ["writer 3", "holds 12"], "active", bold=True)
    canvas.path((edge + 62, 126), (edge + 62, 80))
    canvas.box(Area(edge + 235, 126, edge + 385, 170), ["writers 1 and 2", "hold 14"], bold=True)
    canvas.path((edge + 310, 126), (edge + 310, 80))
    canvas.text(16, 232, "how it ends", "bold")
    for left, lines in (
        (130, ("it advances", "epochs 12 and 13", "become whole")),
        (380, ("it is lost: release", "what it had begun is", "aborted, time goes on")),
        (630, ("it is lost: hold", "time waits until it is back,", "or epochal release")),
    ):
        style = {"it advances": "whole", "it is lost: release": "aborted", "it is lost: hold": "active"}[lines[0]]
        canvas.box(Area(left, 204, left + 236, 268), lines, style, bold=True)
    canvas.text(
        130, 302, "epochal describe stream, epochal top and a metric name writer 3, and since when it holds 12."
    )
    return canvas.svg()


def draw_deaths(page: str) -> str:
    """What each death takes, from the table of the concepts."""
    found = re.search(r"\| what dies \|.*\n\|-.*\n((?:\|.*\n)+)", page)
    assert found is not None, "docs/concepts.md has no table of what dies"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]
    canvas = Canvas(900, 64 + 52 * len(rows), "What is lost with each kind of death, by how a stream is stored.")
    for column, name in enumerate(("memory", "interval", "batch")):
        canvas.text(367 + 206 * column, 34, name, "bold", "middle")
    for number, (who, *cells) in enumerate(rows):
        top = 48 + 52 * number
        canvas.text(16, top + 27, re.sub(r" *\(.*\)", "", who).removeprefix("the "), "bold")
        for column, cell in enumerate(cells):
            gone = "gone" in cell
            style = "whole" if cell == "nothing lost" else "aborted" if gone else "active"
            lines = cell.replace("its own open", "its open").split(", ")
            canvas.box(Area(270 + 206 * column, top, 464 + 206 * column, top + 44), lines, style)
    return canvas.svg()


WAYS: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "a record",
        (
            ("writer.append()", "client/writer", "blue"), ("numbers, window", "protocol/writer", "blue"),
            ("ingest socket", "sockets", "whole"), ("event, frontier", "protocol/publisher", "whole"),
            ("whole epochs", "protocol/subscriber", "blue"), ("sub.epochs()", "client/subscriber", "blue"),
        ),
    ),
    (
        "a look-up",
        (
            ("writer opens", "client", "blue"), ("who serves it?", "client/catalog", "blue"),
            ("HTTP request", "catalog: api", "active"), ("leases, segments", "catalog: domain", "active"),
            ("answer as bytes", "catalog: runtime", "active"), ("connects", "client", "blue"),
        ),
    ),
    (
        "a manifest",
        (
            ("kubectl apply", "API server", "plain"), ("a change is seen", "operator", "violet"),
            ("declared", "catalog: storage", "active"), ("what should run", "resources/cluster", "violet"),
            ("what differs", "resources/cluster", "violet"), ("a pod serves", "publisher", "whole"),
        ),
    ),
)  # fmt: skip
"""The ways through the code: each step, where it is, and the style of the process in which it runs."""


def draw_parts() -> str:
    """Which process sends what to which other one."""
    canvas = Canvas(
        900, 372, "Programs append to publishers, subscribers read from them, and the catalog knows where all are."
    )
    for x, name in ((16, "programs"), (390, "publishers"), (720, "subscribers")):
        canvas.text(x, 26, name, "bold")
    canvas.box(Area(16, 40, 250, 130), [])
    canvas.text(28, 58, "a pod", "faint")
    for row in range(2):
        canvas.box(Area(28, 68 + 28 * row, 88, 92 + 28 * row), ["task"], "blue")
        canvas.path((88, 80 + 28 * row), (150, 90 + 8 * row))
    canvas.box(Area(150, 76, 240, 112), ["sidecar"], "whole")
    canvas.box(Area(16, 150, 250, 194), ["any program", "without a sidecar"], "blue")
    canvas.box(Area(390, 50, 540, 110), ["segment 0", "its log"], "whole", bold=True)
    canvas.box(Area(390, 138, 540, 198), ["segment 1", "its log"], "whole", bold=True)
    canvas.path((240, 86), (390, 72))
    canvas.text(315, 66, "appends", "ink", "middle")
    canvas.path((390, 96), (240, 102), style="dashed")
    canvas.text(315, 118, "acknowledged", "ink", "middle")
    canvas.path((250, 172), (390, 168))
    for top, name in ((44, "service"), (99, "dashboard"), (154, "job")):
        canvas.box(Area(720, top, 884, top + 38), [name], "blue")
    canvas.path((540, 70), (720, 63))
    canvas.text(630, 56, "events, frontiers", "ink", "middle")
    canvas.path((540, 96), (720, 116), style="dashed")
    canvas.text(630, 130, "history", "ink", "middle")
    canvas.path((540, 168), (720, 173))
    canvas.box(Area(390, 272, 540, 312), ["catalog"], "active", bold=True)
    canvas.path((465, 198), (465, 272))
    canvas.text(474, 240, "lease, address, frontier")
    canvas.path((133, 194), (133, 292), (390, 292))
    canvas.text(142, 284, "who serves demo/flights?")
    canvas.path((802, 192), (802, 292), (540, 292))
    canvas.text(792, 284, "the same question", "ink", "end")
    canvas.box(Area(16, 330, 250, 362), ["kubectl apply -f stream.yaml"])
    canvas.path((250, 346), (390, 346))
    canvas.box(Area(390, 330, 540, 362), ["operator"], "violet")
    canvas.path((465, 330), (465, 312))
    canvas.text(552, 350, "declares streams, and runs publishers as pods")
    return canvas.svg()


def draw_ways() -> str:
    """The three ways through the code, by the processes that they cross."""
    canvas = Canvas(960, 330, "A record, a look-up and a manifest on their ways through the code.")
    for number, (name, steps) in enumerate(WAYS):
        top = 18 + 92 * number
        canvas.text(16, top + 12, name, "bold")
        for column, (what, where, style) in enumerate(steps):
            x = 12 + 158 * column
            canvas.box(Area(x, top + 22, x + 144, top + 68), [what, where], style)
            if column:
                canvas.path((x - 14, top + 45), (x, top + 45))
    for number, (style, name) in enumerate(
        (("blue", "your program"), ("whole", "publisher"), ("active", "catalog"), ("violet", "operator"))
    ):
        x = 150 + 170 * number
        canvas.box(Area(x, 300, x + 20, 318), [], style)
        canvas.text(x + 28, 314, name)
    return canvas.svg()


def pictures() -> dict[str, Callable[[], str]]:
    """What draws each file."""
    return {
        "time.svg": lambda: draw_time(json.loads((PICTURES / "time.json").read_text())),
        "epoch.svg": draw_epoch,
        "join.svg": draw_join,
        "held.svg": draw_held,
        "deaths.svg": lambda: draw_deaths((ROOT / "docs" / "concepts.md").read_text()),
        "parts.svg": draw_parts,
        "ways.svg": draw_ways,
    }


def main() -> int:
    """Draw all."""
    for name, draw in pictures().items():
        (PICTURES / name).write_text(draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())
