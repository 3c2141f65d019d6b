"""The OpenAPI document against the routes that the application really has."""

import json
import re
from typing import Any

import pytest
from jsonschema_rs import meta
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from epochal.catalog_api.answers import PublisherInfo, StreamInfo
from epochal_catalog.api import openapi


async def test_every_route_is_in_the_document_and_the_other_way_round(client: Any) -> None:
    router = client.server.http.app.router
    routed = {
        (route.method.lower(), route.resource.canonical)
        for route in router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    document = (await client("GET", "/openapi.json")).body
    described = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert described == routed
    assert document["openapi"] == "3.1.0"


async def test_every_reference_in_the_document_leads_somewhere(client: Any) -> None:
    document = (await client("GET", "/openapi.json")).body
    references = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert references == set(document["components"]["schemas"])


async def test_what_look_ups_show_is_what_the_shared_values_are_sent_as(client: Any) -> None:
    uid = (await client.apply(watermark={"noteTime": "frontier"})).body["uid"]
    granted = (await client.register("p", uid)).body
    holder = {"time": 4, "kind": "writer", "writer": "w", "seconds": 1.0, "silent": None}
    report = {"incarnation": 1, "lower": [4], "writers": ["w"], "counters": {"events": 3}, "holders": [holder]}
    await client.renew("p", granted["token"], s0={**report, "below": [2]})
    stream = (await client("GET", "/v1/streams/demo/flights")).body
    assert stream["held_back"]
    assert stream["not_in_effect"]
    assert json.dumps(StreamInfo.from_json(stream).to_json()) == json.dumps(stream)
    [publisher] = (await client("GET", "/v1/publishers")).body["items"]
    assert json.dumps(PublisherInfo.from_json(publisher).to_json()) == json.dumps(publisher)


def test_operations_have_names_of_their_own_and_say_how_they_fail() -> None:
    names = [operation.name for operation in openapi.OPERATIONS]
    assert len(set(names)) == len(names)
    for operation in openapi.OPERATIONS:
        assert operation.body is None or 422 in operation.errors


async def test_the_document_is_openapi_3_1(client: Any) -> None:
    document = (await client("GET", "/openapi.json")).body
    OPENAPI_31_VALIDATOR.validate(document)
    with pytest.raises(ValueError, match="paths"):
        OPENAPI_31_VALIDATOR.validate({**document, "paths": {"no-slash": {}}})
    operations = (operation for methods in document["paths"].values() for operation in methods.values())
    token = document["components"]["schemas"]["Renew"]["properties"]["token"]
    assert (token["type"], token["minimum"], token["maximum"]) == ("integer", 0, 2**63 - 1)
    schemas = [parameter["schema"] for operation in operations for parameter in operation["parameters"]]
    for schema in (*schemas, *document["components"]["schemas"].values()):
        meta.validate(schema)


async def test_the_longest_wait_of_the_document_is_the_setting(start: Any) -> None:
    async with start(max_wait=7.5) as client:
        document = (await client("GET", "/openapi.json")).body
        parameters = document["paths"]["/v1/streams/{namespace}/{name}/segments"]["get"]["parameters"]
        assert next(item for item in parameters if item["name"] == "wait")["schema"]["maximum"] == 7.5
        assert (await client.lookup(wait="7.6")).code == "invalid_request"


@pytest.mark.parametrize(("token", "status"), [(3.0, 404), (3.5, 422), (-1, 422), (True, 422), ("3", 422)])
async def test_a_whole_number_may_be_written_with_a_point(client: Any, token: Any, status: int) -> None:
    assert (await client("PUT", "/v1/publishers/p", {"token": token})).status == status
