"""Records beside the schema of their stream: what is right passes, and what is not is named."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochal
from epochal.client.encoding.record_checks import RecordChecks, record_checks
from epochal.errors import RecordTypeError
from epochal.resources.schemas import Schema

FIELDS = {
    "delay": ("int8", True), "count": ("uint16", False), "share": ("float32", True), "late": ("bool", True),
    "origin": ("string", True), "raw": ("binary", True), "at": ("timestamp[us, UTC]", True),
    "fare": ("decimal128(9, 2)", True), "stops": ("list<int8>", True), "leg": ("struct<to: string, n: int8>", True),
}  # fmt: skip
SCHEMA = Schema.parse({"fields": [{"name": n, "type": t, "nullable": null} for n, (t, null) in FIELDS.items()]})
RIGHT = {
    "delay": -128, "count": 65535, "share": 1, "late": True, "origin": "JFK", "raw": b"\xff", "at": "2026-01-01",
    "fare": "9.50", "stops": [1, None], "leg": {"to": "EWR"},
}  # fmt: skip


@pytest.mark.rule("S28")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"delay": 128}, "its field delay must be int8, not the number 128"),
        ({"delay": True}, "its field delay must be int8, not true"),
        ({"delay": 1.0}, "its field delay must be int8, not the number 1.0"),
        ({"count": None}, "its field count is missing; it must be uint16, and is declared as not null"),
        ({"count": -1}, "its field count must be uint16, not the number -1"),
        ({"share": "1"}, "its field share must be float32, not the text '1'"),
        ({"late": 1}, "its field late must be bool, not the number 1"),
        ({"origin": b"JFK"}, "its field origin must be string, not "),
        ({"raw": "text"}, "its field raw must be binary, not the text 'text'"),
        ({"at": True}, "its field at must be timestamp[us, UTC], not true"),
        ({"fare": []}, "its field fare must be decimal128(9, 2), not a list"),
        ({"stops": [1, 2, 300]}, "its field stops[2] must be int8, not the number 300"),
        ({"stops": 1}, "its field stops must be list<int8>, not the number 1"),
        ({"leg": {"to": 5}}, "its field leg.to must be string, not the number 5"),
        ({"leg": {"ot": "x"}}, "its field leg has a member ot, which the stream does not declare; "),
        ({"leg": "x"}, "its field leg must be struct<to: string, n: int8>, not the text 'x'"),
        ({"dealy": 1}, "it has a field dealy, which the stream does not declare; did you mean 'delay'?"),
    ],
)
def test_the_first_wrong_record_is_named_with_its_field(change: dict[str, Any], reason: str) -> None:
    checks = RecordChecks(SCHEMA, "msgpack")
    assert checks.fault([RIGHT, RIGHT]) is None
    fault = checks.fault([RIGHT, {**RIGHT, **change}, {"x": 1}])
    assert fault is not None
    assert (fault.index, fault.reason[: len(reason)]) == (1, reason)


@pytest.mark.parametrize("record", ["text", 5, None, ["delay"]])
def test_a_record_is_a_mapping(record: Any) -> None:
    fault = RecordChecks(SCHEMA, "json").fault([record])
    assert fault is not None
    assert "a record is a mapping" in fault.reason


def test_what_only_looks_unusual_is_right() -> None:
    class Row(dict[str, Any]):
        pass

    class Code(str):
        __slots__ = ()

    assert RecordChecks(SCHEMA, "msgpack").fault([Row(RIGHT), {**RIGHT, "origin": Code("JFK")}]) is None


def test_json_carries_bytes_as_text_and_other_encodings_are_not_compared() -> None:
    checks = record_checks(SCHEMA, "json")
    assert checks is not None
    assert checks.fault([{"count": 1, "raw": "/w=="}]) is None
    assert checks.fault([{"count": 1, "raw": b"\xff"}]) is not None
    assert [record_checks(SCHEMA, "arrow"), record_checks(SCHEMA, "bytes"), record_checks(None, "json")] == [None] * 3


_VALUES = st.sampled_from([None, True, 0, 127, 128, -129, 1.5, "", "x", b"x", [], [1], [None, "x"], {}, {"n": 300}])
_RECORDS = st.lists(st.dictionaries(st.sampled_from([*FIELDS, "other"]), _VALUES, max_size=4), max_size=6)


@given(_RECORDS)
def test_records_are_judged_together_as_each_alone(records: list[dict[str, Any]]) -> None:
    records = [{"count": 1, **record} for record in records]
    checks = RecordChecks(SCHEMA, "msgpack")
    alone = [index for index, record in enumerate(records) if checks._judge(record)]
    fault = checks.fault(records)
    assert [fault.index] == alone[:1] if fault is not None else not alone
    assert [checks._are_right([record]) for record in records] == [not checks._judge(record) for record in records]


@pytest.mark.rule("S28")
@pytest.mark.parametrize("linger", [0.0, 0.01])
async def test_a_writer_refuses_records_that_the_stream_does_not_declare(services, linger: float) -> None:
    schema = {"fields": [{"name": "delay", "type": "int32"}]}
    stream = await services.stream(payload={"encoding": "json", "schema": schema})
    async with epochal.connect(services.url) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        async with client.writer(stream, linger=linger) as writer:
            for wrong in ({"delay": "late"}, {"dealy": 3}, "late"):
                with pytest.raises(RecordTypeError, match="record 1 is not what test/"):
                    await writer.append(0, [{"delay": 3}, wrong])
                with pytest.raises(RecordTypeError):
                    writer.append_nowait(0, [wrong])
            await writer.append(0, [{"delay": 3}, {}])
            await writer.finish()
        epoch = await anext(sub.epochs())
        assert isinstance(epoch, epochal.Epoch)
        assert list(epoch.records()) == [{"delay": 3}, {}], "and nothing of what was refused"


async def test_the_check_can_be_left_out(services) -> None:
    schema = {"fields": [{"name": "delay", "type": "int32"}]}
    stream = await services.stream(payload={"encoding": "json", "schema": schema})
    async with epochal.connect(services.url) as client, client.writer(stream, validate=False) as writer:
        await writer.append(0, ["late"])
