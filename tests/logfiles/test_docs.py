"""docs/log.md against real files: its tables of bytes read them."""

import re
import struct
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "log.md"
TYPES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q", "8 bytes": "8s"}


def layout(name: str) -> list[tuple[str, str]]:
    """(field, type) of a table."""
    table = re.search(rf"<!-- layout: {name} -->\n\n((?:\|.*\n)+)", PAGE.read_text(encoding="utf-8"))
    assert table is not None
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table[1].splitlines()[2:]]
    return [(field, kind) for field, kind, _ in cells]


def read(name: str, data: bytes) -> dict[str, Any]:
    """What stands at the start of `data`, read by the page's own table."""
    fields = layout(name)
    parts = struct.Struct(">" + "".join(TYPES[kind] for _, kind in fields))
    values: dict[str, Any] = dict(zip([field for field, _ in fields], parts.unpack_from(data), strict=True))
    return {**values, "size": parts.size}


@pytest.fixture
def files(bench: Any) -> tuple[bytes, bytes]:
    """A sealed file of two frames and its index."""
    with bench.begin(file_bytes=300) as log:
        bench.append(log, 10, 20, notes=b"notes")
        bench.fill(log, 1, 300)
        path = bench.files()[0]
        return path.read_bytes(), path.with_suffix(".index").read_bytes()


def test_the_page_reads_a_header_frames_and_a_footer(files: tuple[bytes, bytes]) -> None:
    data, _ = files
    header = read("header", data)
    assert (header["magic"], header["version"], header["base"]) == (b"EPOCHLOG", 1, 0)
    at = header["size"] + header["public length"] + header["machine length"] + 4
    seen = []
    while data[at : at + 4] == 0xE70CF4A3.to_bytes(4, "big"):
        frame = read("frame", data[at:])
        seen.append((frame["flags"], frame["count"], frame["base"], frame["notes length"], frame["synced"] == at))
        at += frame["size"] + frame["notes length"] + frame["events length"]
    assert seen == [(1, 0, 0, 1, True), (0, 2, 0, 5, True), (0, 1, 2, 0, True)]
    footer = read("footer", data[at:])
    assert (footer["magic"], footer["frames"], footer["last"], footer["length"]) == (0xE70C5EA1, 3, 2, at)
    assert at + footer["size"] == len(data)


def test_the_page_reads_an_index(files: tuple[bytes, bytes]) -> None:
    data, index = files
    head = read("index", index)
    footer = read("footer", data[-sum(struct.calcsize(">" + TYPES[kind]) for _, kind in layout("footer")) :])
    assert (head["magic"], head["version"], head["length"]) == (b"EPOCHIDX", 1, footer["length"])
    assert index[head["size"]] == 0x92, "msgpack: an array of two"
