"""What a web page in somebody's browser can do to a catalog on the same machine: nothing."""

from typing import Any

import pytest

from epochal.service.origins import UnknownHost

STREAM = "/v1/streams/demo/flights"


@pytest.mark.parametrize("path", ["/v1/streams", "/metrics", "/healthz"])
async def test_a_name_that_leads_here_by_dns_rebinding_is_not_answered(start: Any, path: str) -> None:
    async with start() as client:
        answer = await client("GET", path, headers={"Host": "evil.example:8700"})
        assert (answer.status, answer.code) == (421, UnknownHost.code)
        assert "EPOCHAL_CATALOG_HOSTS" in answer.body["detail"]


async def test_a_name_that_is_set_is_answered(start: Any) -> None:
    async with start(hosts=("mine.example",)) as client:
        assert (await client("GET", "/v1/streams", headers={"Host": "mine.example"})).status == 200


async def test_a_foreign_page_declares_and_deletes_nothing(start: Any) -> None:
    async with start() as client:
        assert (await client.apply()).status == 201
        foreign = {"Origin": "http://evil.example"}
        for method, path in (("DELETE", STREAM), ("POST", f"{STREAM}/writers/w/release")):
            answer = await client(method, path, headers=foreign)
            assert (answer.status, answer.code) == (403, "foreign_origin")
        assert (await client("GET", STREAM)).status == 200


async def test_a_body_must_be_called_json(start: Any) -> None:
    async with start() as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            answer = await client("PUT", STREAM, data=b"{}", headers={"Content-Type": kind})
            assert (answer.status, answer.code) == (422, "invalid_request")
            assert answer.body["problems"][0]["path"] == "Content-Type"
        assert (await client("GET", STREAM)).status == 404
