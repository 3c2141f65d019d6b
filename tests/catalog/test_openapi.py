"""The OpenAPI document against the routes that the application really has."""

import re
from typing import Any

import pytest
from jsonschema_rs import meta
from pydantic.json_schema import models_json_schema
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from epochal_catalog.api import models, openapi


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


async def test_the_served_schemas_are_those_that_the_tests_check_answers_with(client: Any) -> None:
    served = (await client("GET", "/openapi.json")).body["components"]["schemas"]
    for name, schema in served.items():
        _, made = models_json_schema(
            [(getattr(models, name), "validation")], ref_template="#/components/schemas/{model}"
        )
        assert made["$defs"][name] == schema


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
