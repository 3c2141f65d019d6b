"""The wire vectors, which any implementation can run: valid ones are read and written byte by byte, others refused."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from epochal.errors import RemoteProtocolError
from epochal.protocol import messages as m
from epochal.protocol import wire

FILE = Path(__file__).with_name("wire-vectors.json")
VECTORS = json.loads(FILE.read_text())


def frames_of(vector):
    return list(map(value_of, vector["frames"]))


def value_of(field):
    match field:
        case {"hex": text, "fill": byte, "count": count}:
            return bytes.fromhex(text) + bytes.fromhex(byte) * count
        case {"hex": text}:
            return bytes.fromhex(text)
        case list():
            return tuple(map(value_of, field))
    return field


def meta_of(trace, tracestate, key, published, headers, *rest) -> m.Meta:
    source, ignored = rest if len(rest) == 2 else (None, *rest)  # the older vectors do not name it
    return m.Meta(trace, tracestate, key, published, headers, source, ignored)


def message_of(described) -> Any:
    kind, _ = wire.KINDS[described["kind"]]
    fields = {name: value_of(field) for name, field in described["fields"].items()}
    for name, make in (
        ("position", m.Position), ("first_available", m.Position), ("resume", m.Resume), ("meta", meta_of),
    ):  # fmt: skip
        if fields.get(name) is not None:
            fields[name] = make(*fields[name])
    return kind(**fields)


@pytest.mark.rule("S34", "S12")
@pytest.mark.parametrize("vector", VECTORS["valid"], ids=lambda vector: vector["name"])
def test_a_valid_vector_is_read_and_written(vector):
    prefix, frames = value_of(vector["prefix"]), frames_of(vector)
    messages = [message_of(described) for described in vector["messages"]]
    found = list(wire.decode(frames, prefix=len(prefix)))
    assert found == messages
    assert [type(message).__name__ for message in found] == [each["message"] for each in vector["messages"]]
    assert wire.encode(*messages, prefix=prefix) == [frames]


@pytest.mark.parametrize("vector", VECTORS["lenient"], ids=lambda vector: vector["name"])
def test_what_a_batch_says_wrongly_of_itself_is_left_out_and_the_batch_is_read(vector):
    meta = None if vector["meta"] is None else meta_of(*value_of(vector["meta"]))
    assert list(wire.decode(frames_of(vector))) == [m.Data(7, 6, 3, b"", 1, 0, b"", meta)]


@pytest.mark.parametrize("vector", VECTORS["invalid"], ids=lambda vector: vector["name"])
def test_an_invalid_vector_is_refused_with_its_error(vector):
    with pytest.raises(RemoteProtocolError) as caught:
        list(wire.decode(frames_of(vector)))
    assert caught.value.code == vector["error"]


def test_every_kind_has_a_vector():
    shown = {each["kind"] for vector in VECTORS["valid"] for each in vector["messages"]}
    assert shown == set(wire.KINDS)
    assert VECTORS["version"] == m.VERSION


def test_the_file_is_what_the_tool_writes():
    tool = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "wire_vectors.py"))
    assert tool["vectors"]() == VECTORS
