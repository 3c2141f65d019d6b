"""The OpenAPI document against the routes that the application really has."""

import re
from typing import Any

from pydantic.json_schema import models_json_schema

from epochal_catalog import models, openapi


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
