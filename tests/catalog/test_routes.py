"""The HTTP interface, against a real server on a free port."""

import asyncio
import json
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest
from tests.patience import PATIENCE


async def test_two_streams_cannot_have_one_port(client: Any) -> None:
    ports = {"relays": 1, "relayHttpPort": 8801, "publishers": {"httpPort": 8802}}
    assert (await client.apply("demo/flights", **ports)).status == 201
    refused = await client.apply("demo/delays", publishers={"httpPort": 8801})
    assert (refused.status, refused.code) == (422, "invalid_manifest")
    assert refused.body["problems"] == [
        {"path": "spec.publishers.httpPort", "reason": "is 8801, as spec.relayHttpPort of demo/flights is",
         "hint": "choose another port"}
    ]  # fmt: skip
    assert (await client.apply("demo/delays", publishers={"httpPort": 8803})).status == 201
    assert (await client.apply("demo/delays", publishers={"httpPort": 8802})).status == 422
    changed = {"relays": 1, "relayHttpPort": 8802, "publishers": {"httpPort": 8801}}
    assert (await client.apply("demo/flights", **changed)).status == 200, "its own ports it may change as it likes"


async def test_apply_creates_then_changes_then_leaves_alone(client: Any) -> None:
    first = await client.apply(segments=3)
    again = await client.apply(segments=3)
    changed = await client.apply(segments=3, progress={"minWriters": 2})
    assert (first.status, again.status, changed.status) == (201, 200, 200)
    assert [answer.body["generation"] for answer in (first, again, changed)] == [1, 1, 2]
    assert len({answer.body["uid"] for answer in (first, again, changed)}) == 1
    assert first.body["phase"] == "Pending"
    bounds = [(int(item["lo"]), int(item["hi"])) for item in first.body["segments"]]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == 2**64
    assert all(before[1] == after[0] for before, after in pairwise(bounds))


async def test_an_immutable_field_is_refused_and_nothing_changes(client: Any) -> None:
    await client.apply()
    refused = await client.apply(time={"shape": "(int, int)"}, segments=2)
    assert (refused.status, refused.code) == (409, "immutable_field")
    assert {item["path"] for item in refused.body["problems"]} == {"spec.time.shape", "spec.segments"}
    shown = await client("GET", "/v1/streams/demo/flights")
    assert (shown.body["generation"], len(shown.body["segments"])) == (1, 1)


async def test_a_wrong_manifest_is_refused_with_every_problem(client: Any) -> None:
    refused = await client.apply(segments=0, nonsense=1)
    assert (refused.status, refused.code) == (422, "invalid_manifest")
    assert {item["path"] for item in refused.body["problems"]} >= {"spec.segments", "spec.nonsense"}
    assert (await client("GET", "/v1/streams")).body["items"] == []


async def test_the_manifest_must_be_of_the_stream_in_the_path(client: Any, document: Any) -> None:
    refused = await client("PUT", "/v1/streams/demo/other", document("test/flights"))
    assert refused.code == "invalid_manifest"
    assert [item["path"] for item in refused.body["problems"]] == ["metadata.namespace", "metadata.name"]


async def test_fields_that_are_planned_are_accepted_and_named(client: Any) -> None:
    shown = (await client.apply(watermark={"noteTime": "frontier"})).body["not_in_effect"]
    assert [(item["path"], item["value"]["noteTime"]) for item in shown] == [("spec.watermark", "frontier")]
    assert shown[0]["note"].startswith("planned")
    assert (await client.apply()).body["not_in_effect"] == []


async def test_the_path_gives_a_missing_namespace(client: Any, document: Any) -> None:
    body = document("demo/flights")
    del body["metadata"]["namespace"]
    assert (await client("PUT", "/v1/streams/demo/flights", body)).body["namespace"] == "demo"


@pytest.mark.rule("S26", "S32")
async def test_a_stream_that_is_created_again_has_a_new_uid_and_its_old_publisher_is_notified(client: Any) -> None:
    old = (await client.apply()).body["uid"]
    granted = (await client.register("p", old)).body
    assert (await client("DELETE", "/v1/streams/demo/flights")).status == 204
    gone = await client.renew("p", granted["token"])
    assert (gone.status, gone.code) == (410, "stream_gone")
    new = (await client.apply()).body
    assert new["uid"] != old
    assert new["segments"][0]["publisher"] is None
    assert (await client.renew("p", granted["token"])).code == "stream_gone"
    assert (await client.register("p", old)).code == "stream_gone"
    listed = (await client("GET", "/v1/streams")).body
    assert [item["uid"] for item in listed["items"]] == [new["uid"]]
    assert (await client("GET", "/v1/publishers")).body["items"][0]["superseded"]


@pytest.mark.rule("S27")
async def test_a_lookup_without_wait_answers_at_once(client: Any) -> None:
    missing = await client.lookup()
    assert (missing.status, missing.code) == (404, "stream_not_found")
    assert "get streams" in missing.body["detail"]
    await client.apply()
    empty = await client.lookup()
    assert (empty.status, empty.code, empty.body["retryable"]) == (503, "no_publisher", True)
    assert int(empty.headers["Retry-After"]) >= 1


@pytest.mark.rule("S27")
async def test_all_waiting_lookups_resolve_once_every_segment_is_served(client: Any, waiters: Any) -> None:
    lookups = [asyncio.create_task(client.lookup(wait="60")) for _ in range(20)]  # before the stream exists
    await waiters(client, 20)
    uid = (await client.apply(segments=2)).body["uid"]
    await client.register("a", uid, "0")
    await waiters(client, 20)
    assert not any(task.done() for task in lookups)
    await client.register("b", uid, "1")
    answers = await asyncio.wait_for(asyncio.gather(*lookups), PATIENCE)
    assert {answer.status for answer in answers} == {200}
    assert [item["publisher"]["id"] for item in answers[0].body["segments"]] == ["a", "b"]
    assert answers[0].body["stream"]["phase"] == "Ready"
    await waiters(client, 0)


@pytest.mark.rule("S27")
async def test_a_waiting_lookup_of_nothing_is_answered_after_the_wait(client: Any) -> None:
    assert (await client.lookup(wait="0.05")).code == "stream_not_found"
    await client.apply()
    assert (await client.lookup(wait="0.05")).code == "no_publisher"


@pytest.mark.rule("S27")
async def test_who_has_lost_a_publisher_is_answered_when_there_is_another(client: Any, waiters: Any) -> None:
    """Also while other segments have none, and never with the one that was lost."""
    assert (await client.lookup(wait="60", segment="0", token="0")).code == "stream_not_found"
    uid = (await client.apply(segments=2)).body["uid"]
    waiting = asyncio.create_task(client.lookup(wait="60", segment="0", token="0"))
    await waiters(client, 1)
    await client.register("b", uid, "1")
    old = (await client.register("old", uid, "0")).body["token"]
    assert (await waiting).body["segments"][0]["publisher"]["token"] == old
    unchanged = await client.lookup(wait="0.05", segment="0", token=str(old))
    assert (unchanged.status, unchanged.body["segments"][0]["publisher"]["token"]) == (200, old)
    waiting = asyncio.create_task(client.lookup(wait="60", segment="0", token=str(old)))
    await waiters(client, 1)
    await client.renew("old", old, s0={"incarnation": 1})
    await client.register("b", uid, "1")  # of the other segment
    await waiters(client, 1)
    assert not waiting.done()
    new = (await client.register("new", uid, "0")).body["token"]
    assert (await waiting).body["segments"][0]["publisher"]["token"] == new
    assert (await client.lookup(wait="60", segment="0", token=str(old))).status == 200
    assert (await client.lookup(wait="60", segment="none", token="0")).status == 200, "nothing to wait for"
    assert (await client.lookup(segment="0")).body["problems"][0]["path"] == "token"
    assert (await client.lookup(token=str(old))).body["problems"][0]["path"] == "segment", "a token of what?"
    assert (await client.lookup(token="-1")).body["problems"][0]["path"] == "token"
    waiting = asyncio.create_task(client.lookup(wait="60", segment="0", token=str(new)))
    await waiters(client, 1)
    await client("DELETE", "/v1/streams/demo/flights")
    assert (await waiting).code == "stream_not_found"


@pytest.mark.rule("S27")
async def test_who_only_comes_back_leaves_half_of_the_room_to_those_who_begin(start: Any, waiters: Any) -> None:
    async with start(max_waiters=4) as client:
        uid = (await client.apply(segments=2)).body["uid"]
        token = str((await client.register("a", uid, "0")).body["token"])
        back = [asyncio.create_task(client.lookup(wait="60", segment="0", token=token)) for _ in range(2)]
        await waiters(client, 2)
        assert (await client.lookup(wait="60", segment="0", token=token)).status == 200, "at once, with the old one"
        begin = [asyncio.create_task(client.lookup(wait="60")) for _ in range(2)]
        await waiters(client, 4)
        await client.register("b", uid, "1")
        await client.register("c", uid, "0")
        assert [(await each).status for each in (*back, *begin)] == [200] * 4


async def test_a_name_that_nearly_is_one_is_suggested(client: Any) -> None:
    for name in ("fares", "flights", "gates"):
        await client.apply(f"demo/{name}")
    for wrong, hint in (("flihgts", "demo/flights? "), ("fligths", "demo/flights? "), ("quite-another", None)):
        detail = (await client("GET", f"/v1/streams/demo/{wrong}")).body["detail"]
        assert (f"did you mean {hint}" in detail) if hint else ("did you mean" not in detail), detail
    assert "did you mean demo/gates?" in (await client("GET", "/v1/streams/other/gates")).body["detail"]


@pytest.mark.rule("S27")
async def test_a_lookup_whose_client_goes_away_is_removed(client: Any, waiters: Any) -> None:
    await client.apply()
    lookups = [asyncio.create_task(client.lookup(wait="60")) for _ in range(5)]
    await waiters(client, 5)
    for task in lookups:
        task.cancel()
    await asyncio.gather(*lookups, return_exceptions=True)
    await waiters(client, 0)


@pytest.mark.rule("S27")
async def test_the_number_of_waiting_lookups_is_bounded(start: Any, waiters: Any) -> None:
    async with start(max_waiters=1) as client:
        first = asyncio.create_task(client.lookup(wait="60"))
        await waiters(client, 1)
        refused = await client.lookup(wait="60")
        assert (refused.status, refused.code) == (503, "overloaded")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await waiters(client, 0)


@pytest.mark.parametrize("wait", ["-1", "301", "nan", "soon"])
async def test_a_wait_out_of_bounds_is_refused(client: Any, wait: str) -> None:
    refused = await client.lookup(wait=wait)
    assert (refused.status, refused.code) == (422, "invalid_request")


@pytest.mark.rule("S28")
async def test_a_lookup_with_another_schema_is_refused_before_any_wait(client: Any, waiters: Any) -> None:
    early = asyncio.create_task(client.lookup(wait="60", time="(int, int)"))
    await waiters(client, 1)
    await client.apply()
    assert (await asyncio.wait_for(early, PATIENCE)).code == "schema_mismatch"
    schema = json.dumps({"fields": [{"name": "delay", "type": "int32"}]})
    refused = await client.lookup(wait="60", time="int", encoding="json", schema=schema)
    assert (refused.status, refused.code) == (409, "schema_mismatch")
    assert [item["path"] for item in refused.body["problems"]] == ["payload.encoding", "payload.schema"]
    assert (await client.lookup(time="int", encoding="msgpack")).code == "no_publisher"
    assert (await client.lookup(time="text")).code == "invalid_request"
    wrong = await client.lookup(schema='{"fields": [{"name": "delay", "type": "in32"}]}')
    assert (wrong.code, wrong.body["problems"][0]["path"]) == ("invalid_request", "schema.fields[0].type")


@pytest.mark.rule("S28")
async def test_a_schema_is_compared_field_by_field(client: Any) -> None:
    declared = {"fields": [{"name": "delay", "type": "int32"}, {"name": "tail", "type": "string"}]}
    await client.apply(payload={"encoding": "msgpack", "schema": declared})
    assert (await client.lookup(schema=json.dumps(declared))).code == "no_publisher"  # the right one
    other = {"fields": [{"name": "delay", "type": "string"}, {"name": "tail", "type": "string"}]}
    refused = await client.lookup(schema=json.dumps(other))
    assert (refused.status, refused.code) == (409, "schema_mismatch")
    assert [item["path"] for item in refused.body["problems"]] == ["payload.schema.fields.delay.type"]


@pytest.mark.rule("E6")
async def test_sessions_rise_for_each_writer_and_start_again_with_a_new_stream(client: Any) -> None:
    assert (await client.session_of("w")).code == "stream_not_found"
    uid = (await client.apply()).body["uid"]
    assert [(await client.session_of("q%2F0")).body["session"] for _ in range(3)] == [1, 2, 3]
    assert (await client.session_of("q")).body == {"session": 1, "uid": uid, "first": True, "before": None}
    assert (await client.session_of("q%2F0")).body == {"session": 4, "uid": uid, "first": False, "before": 3}
    await client("DELETE", "/v1/streams/demo/flights")
    new = (await client.apply()).body["uid"]
    assert (await client.session_of("q%2F0")).body == {"session": 1, "uid": new, "first": True, "before": None}


@pytest.mark.rule("E6")
async def test_a_number_asked_for_ahead_is_given_only_after_the_newest(client: Any) -> None:
    """Else it would fence a session that has opened meanwhile."""
    await client.apply()
    path = "/v1/streams/demo/flights/writers/w/sessions"
    assert (await client("POST", f"{path}?after=1")).code == "writer_fenced"
    assert [(await client.session_of("w")).body["session"] for _ in range(2)] == [1, 2]
    refused = await client("POST", f"{path}?after=1")
    assert (refused.status, refused.code) == (409, "writer_fenced")
    assert "is 2, not 1" in refused.body["detail"]
    assert (await client("POST", f"{path}?after=2")).body["session"] == 3
    assert (await client("POST", f"{path}?after=x")).status == 422


@pytest.mark.parametrize("name", ["", "x" * 254, "clear\x1b[2J", "\u202eright to left"])
async def test_who_comes_has_a_printable_name(client: Any, name: str) -> None:
    uid = (await client.apply()).body["uid"]
    for refused in (
        await client.register(name, uid),
        await client("POST", "/v1/streams/demo/flights/subscriptions", {"subscriber": name, "uid": uid}),
    ):
        assert (refused.status, refused.code) == (422, "invalid_request")
    if name:
        assert (await client.session_of(quote(name, safe=""))).code == "invalid_request"


@pytest.mark.rule("E12")
async def test_a_newer_registration_supersedes_the_older(client: Any) -> None:
    uid = (await client.apply()).body["uid"]
    old = (await client.register("old", uid)).body
    new = (await client.register("new", uid)).body
    assert new["token"] > old["token"]
    assert new["segments"][0]["incarnation"] == old["segments"][0]["incarnation"] + 1 == 2
    refused = await client.renew("old", old["token"], s0={"incarnation": 1})
    assert (refused.status, refused.code, refused.body["retryable"]) == (409, "superseded", False)
    assert (await client.finish("old", old, "0", 1)).code == "superseded"
    assert (await client.renew("new", new["token"], s0={"incarnation": 1})).code == "superseded"
    assert (await client.renew("new", new["token"], s0={"incarnation": 2})).body == {
        "ttl": 1.0,
        "complete": False,
        "recorded": {"0": -1},
        "released": {},
    }
    assert (await client.lookup()).body["segments"][0]["publisher"]["id"] == "new"


@pytest.mark.rule("E12", "S29")
async def test_only_the_holder_of_the_token_can_renew_or_leave(client: Any) -> None:
    uid = (await client.apply()).body["uid"]
    first = (await client.register("p", uid)).body["token"]
    token = (await client.register("p", uid)).body["token"]
    for wrong, code in ((first, "superseded"), (token + 1, "unknown_publisher")):
        assert (await client.renew("p", wrong)).code == code
        assert (await client("DELETE", f"/v1/publishers/p?token={wrong}")).code == code
    assert (await client("DELETE", "/v1/publishers/p")).code == "invalid_request"
    assert (await client("DELETE", f"/v1/publishers/p?token={token}")).status == 204
    assert (await client.renew("p", token)).code == "unknown_publisher"
    assert (await client.lookup()).code == "no_publisher"
    assert (await client.register("p", uid)).body["token"] > token


@pytest.mark.rule("E12")
async def test_leases_that_are_renewed_together_are_judged_each_by_itself(client: Any) -> None:
    granted = {}
    for name in "abcd":
        uid = (await client.apply(f"demo/{name}")).body["uid"]
        granted[name] = (await client.register(name, uid, name=f"demo/{name}")).body
    uid = (await client.apply("demo/b")).body["uid"]
    await client.register("b", uid, name="demo/b")  # supersedes
    await client("DELETE", "/v1/streams/demo/c")

    def lease(name: str, **report: Any) -> dict[str, Any]:
        incarnation = granted[name]["segments"][0]["incarnation"]
        reports = {"0": {"incarnation": incarnation, **report}} if report else {}
        return {"publisher": name, "token": granted[name]["token"], "segments": reports}

    asked = [lease("a", lower=[4]), lease("b", lower=[5]), lease("c"), lease("d", lower=["no time"])]
    asked.append({"publisher": "nobody", "token": 1, "segments": {}})
    answer = await client("PUT", "/v1/publishers", {"leases": asked})
    renewed, *refused = answer.body["items"]
    assert (answer.status, renewed["problem"], renewed["renewed"]["recorded"]) == (200, None, {"0": -1})
    assert [item["problem"]["code"] for item in refused] == [
        "superseded", "stream_gone", "invalid_request", "unknown_publisher"
    ]  # fmt: skip
    alone = [await client.renew(each["publisher"], each["token"], s0=each["segments"].get("0")) for each in asked[1:2]]
    assert [each.body for each in alone] == [refused[0]["problem"]], "as it would be told alone"
    lowers = [(await client.lookup(f"demo/{name}")).body["segments"][0]["lower"] for name in "abd"]
    assert lowers == [[4], None, None]
    assert (await client("PUT", "/v1/publishers", {"leases": []})).status == 422


async def test_a_registration_must_name_what_exists(client: Any) -> None:
    assert (await client.register("p", "u")).code == "stream_not_found"
    uid = (await client.apply()).body["uid"]
    assert (await client.register("p", uid, "7")).code == "segment_not_found"
    refused = await client("POST", "/v1/publishers", {"publisher": "", "segments": []})
    assert (refused.status, refused.code) == (422, "invalid_request")
    assert {item["path"] for item in refused.body["problems"]} >= {"publisher", "uid", "segments", "addresses"}


@pytest.mark.rule("E7")
async def test_completion_is_recorded_once_all_segments_are_finishing_and_never_undone(client: Any) -> None:
    uid = (await client.apply(segments=2)).body["uid"]
    granted = (await client.register("p", uid, "0", "1")).body
    assert (await client.finish("p", granted, "0", 1)).body == {"complete": False}
    assert (await client.finish("p", granted, "0", 2, finishing=False)).body == {"complete": False}  # an open came
    assert (await client.finish("p", granted, "1", 1)).body == {"complete": False}
    assert (await client.finish("p", granted, "0", 1)).body == {"complete": False}  # stale: it was cancelled by 2
    assert (await client.session_of("w")).status == 201
    assert (await client.finish("p", granted, "0", 3)).body == {"complete": True}
    assert (await client.finish("p", granted, "0", 4, finishing=False)).body == {"complete": True}
    assert (await client.renew("p", granted["token"])).body["complete"]
    refused = await client.session_of("w")
    assert (refused.status, refused.code) == (409, "stream_complete")
    found = await client.lookup()
    assert (found.status, found.body["stream"]["phase"]) == (200, "Complete")
    assert (await client.register("q", uid, "0")).body["segments"][0]["complete"]


@pytest.mark.rule("E7", "E12")
async def test_a_new_incarnation_numbers_its_finishing_marks_from_the_start_and_inherits_the_last(client: Any) -> None:
    uid = (await client.apply(segments=2)).body["uid"]
    old = (await client.register("p", uid, "0", "1")).body
    await client.finish("p", old, "0", 9)
    new = (await client.register("p", uid, "0", "1")).body
    assert [item["finishing"] for item in new["segments"]] == [True, False]
    assert (await client.finish("p", new, "0", 0, finishing=False)).status == 200
    assert (await client.finish("p", new, "1", 0)).body == {"complete": False}
    assert (await client.finish("p", new, "0", 1)).body == {"complete": True}


@pytest.mark.rule("E7", "E12")
async def test_a_finishing_mark_of_another_incarnation_is_refused_and_completes_nothing(client: Any) -> None:
    uid = (await client.apply(segments=2)).body["uid"]
    granted = (await client.register("p", uid, "0", "1")).body
    assert (await client.finish("p", granted, "0", 1)).body == {"complete": False}
    for other in (-1, 1):
        segments = [{**item, "incarnation": item["incarnation"] + other} for item in granted["segments"]]
        refused = await client.finish("p", {**granted, "segments": segments}, "1", 1)
        assert (refused.status, refused.code) == (409, "superseded")
        cancelled = await client.finish("p", {**granted, "segments": segments}, "0", 2, finishing=False)
        assert cancelled.code == "superseded"
    shown = (await client("GET", "/v1/streams/demo/flights")).body
    assert (shown["phase"], [item["finishing"] for item in shown["segments"]]) == ("Ready", [True, False])
    assert (await client.finish("p", granted, "1", 1)).body == {"complete": True}


@pytest.mark.rule("E11")
async def test_reports_are_shown_and_handed_to_the_next_incarnation(client: Any) -> None:
    uid = (await client.apply(time={"shape": "(int, int)"})).body["uid"]
    granted = (await client.register("p", uid)).body
    assert granted["segments"][0]["lower"] is None
    report = {"incarnation": 1, "lower": [[3, 0], [0, 5]], "writers": ["b", "a/1"], "counters": {"events": 7}}
    await client.renew("p", granted["token"], s0=report)
    await client.renew("p", granted["token"], s0={"incarnation": 1})  # says nothing: nothing changes
    shown = (await client("GET", "/v1/streams/demo/flights")).body
    assert shown["writers"] == ["a/1", "b"]
    assert shown["segments"][0]["lower"] == [[3, 0], [0, 5]]
    assert shown["segments"][0]["counters"] == {"events": 7}
    wrong = await client.renew("p", granted["token"], s0={"incarnation": 1, "lower": [3]})
    assert (wrong.code, wrong.body["problems"][0]["path"]) == ("invalid_request", "segments.0.lower")
    taken = (await client.register("q", uid)).body["segments"][0]
    assert (taken["lower"], taken["writers"], taken["incarnation"]) == ([[3, 0], [0, 5]], ["a/1", "b"], 2)


async def test_a_json_body_is_needed(client: Any) -> None:
    for raw in (b"", b"{", b"[NaN]", b"[" * 100_000, b"\xff"):
        refused = await client("POST", "/v1/publishers", data=raw)
        assert (refused.status, refused.code) == (422, "invalid_request"), raw[:10]


async def test_a_number_beyond_the_database_is_refused(client: Any) -> None:
    assert (await client.renew("p", 2**63)).code == "invalid_request"


async def test_unknown_paths_and_methods_say_what_there_is(client: Any) -> None:
    assert (await client("GET", "/v1/nothing")).code == "no_such_route"
    refused = await client("POST", "/v1/streams")
    assert (refused.status, refused.code) == (405, "method_not_allowed")
    assert "GET" in refused.headers["Allow"]


async def test_health_and_metrics(client: Any) -> None:
    await client.apply()
    assert (await client("GET", "/healthz")).body == {"status": "ok"}
    assert (await client("GET", "/readyz")).body == {"status": "ready"}
    text = (await client("GET", "/metrics")).body.decode()
    assert "epochal_catalog_streams 1.0" in text or "epochal_catalog_streams{" in text
    assert 'http_route="/v1/streams/{namespace}/{name}"' in text


@pytest.mark.rule("E6")
async def test_a_writer_that_never_comes_again_is_forgotten(start: Any) -> None:
    """Each program without an id of its own is another writer: they would fill the database."""
    writers = "/v1/streams/demo/flights/writers"
    async with start() as client:
        await client.apply()
        number = (await client("POST", f"{writers}/a/sessions")).body["session"]
        assert (await client("DELETE", f"{writers}/a", params={"session": str(number + 1)})).code == "writer_fenced"
        assert (await client("DELETE", f"{writers}/a", params={"session": str(number)})).status == 204
        assert (await client("GET", writers)).body["items"] == []
        assert (await client("DELETE", f"{writers}/a", params={"session": str(number)})).code == "writer_not_found"
        assert (await client("DELETE", f"{writers}/a")).body["problems"][0]["path"] == "session"
        first = (await client("POST", f"{writers}/b/sessions")).body["session"]
        second = (await client("POST", f"{writers}/b/sessions")).body["session"]
        for session in (first, second):  # the next one must know that there was an earlier one
            refused = await client("DELETE", f"{writers}/b", params={"session": str(session)})
            assert (refused.status, refused.code) == (409, "writer_fenced")
    async with start() as client:
        assert [writer["writer"] for writer in (await client("GET", writers)).body["items"]] == ["b"]
