"""The OpenAPI document of a publisher against its routes, and what it answers against the document."""

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from epochal_publisher.http import openapi
from epochal_publisher.http.errors import STATUS
from epochal_publisher.http.server import PublisherHttp
from epochal_publisher.publisher import PublisherProcess
from epochal_publisher.segments.lease import PublisherLease
from epochal_publisher.settings import Settings


@pytest.fixture
def document(shared: Any) -> dict[str, Any]:
    status, body = shared.publisher.get("/v1/openapi.json")
    assert status == 200
    read: dict[str, Any] = json.loads(body)
    return read


async def test_every_route_is_in_the_document_and_the_other_way_round(document: dict[str, Any]) -> None:
    settings = Settings.read(catalog="http://127.0.0.1:1", stream="a/b", segments="0", publisher="p")
    publisher = PublisherProcess(settings, PublisherLease(settings))
    try:
        async with PublisherHttp(settings, publisher) as server:
            routed = {
                (route.method.lower(), route.resource.canonical)
                for route in server._listener.app.router.routes()
                if route.resource is not None and route.method != "HEAD"
            }
    finally:
        publisher.close()
    assert {(method, path) for path, methods in document["paths"].items() for method in methods} == routed


def test_the_document_is_openapi_3_1_and_its_references_lead_somewhere(document: dict[str, Any]) -> None:
    OPENAPI_31_VALIDATOR.validate(document)
    references = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert references <= set(document["components"]["schemas"])
    names = [operation.name for operation in openapi.OPERATIONS]
    assert len(set(names)) == len(names)


def test_every_refusal_has_its_status_in_the_document() -> None:
    described = {status for operation in openapi.OPERATIONS for status in operation.errors}
    assert described == set(STATUS.values())


def test_answers_are_what_the_document_says(shared: Any, wires: Any, document: dict[str, Any]) -> None:
    def checks(name: str, value: Any) -> None:
        schemas = document["components"]["schemas"]
        jsonschema_rs.validate({"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}, value)

    publisher, segment = shared.publisher, shared.segment()
    writer = wires.writer(publisher, shared.stream, segment)
    writer.open()
    writer.acked(0, b"\x91\xc4\x01a")
    writer.advance(1)
    first, *events = map(json.loads, publisher.get(f"/v1/segments/{segment}/events")[1].splitlines())
    checks("Opening", first)
    assert len(events) == 2
    for event in events:
        checks("Event", event)
    checks("Problem", json.loads(publisher.get("/v1/segments/none/events")[1]))
    checks("Problem", json.loads(publisher.get(f"/v1/segments/{segment}/events?since=x")[1]))
    checks("Webhooks", json.loads(publisher.get(f"/v1/segments/{segment}/webhooks")[1]))
    with pytest.raises(jsonschema_rs.ValidationError):
        checks("Opening", events[0])
