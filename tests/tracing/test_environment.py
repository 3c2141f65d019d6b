"""What the variables of OpenTelemetry ask for, and which of them cannot be used."""

import pytest

from epochal.errors import ConfigError
from epochal.otel.sdk import Exports

BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    ("environ", "traces", "metrics"),
    [
        ({}, None, None),
        ({BASE: "http://c:4318/"}, "http://c:4318/v1/traces", "http://c:4318/v1/metrics"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c/t"}, "https://c/t", None),
        ({BASE: "http://c:4318", "OTEL_METRICS_EXPORTER": "none"}, "http://c:4318/v1/traces", None),
        ({BASE: "http://c:4318", "OTEL_SDK_DISABLED": "true"}, None, None),
        ({BASE: "no address", "OTEL_SDK_DISABLED": "TRUE"}, None, None),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, None, None),
    ],
)
def test_nothing_is_sent_unless_an_endpoint_is_named(environ, traces, metrics):
    assert Exports.read(environ) == Exports(traces, metrics)


@pytest.mark.parametrize(
    ("environ", "field", "hint"),
    [
        ({BASE: "collector:4318"}, BASE, "http://HOST:4318"),
        ({BASE: "http://c:x"}, BASE, "http://HOST:4318"),
        ({BASE: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL", "4318"),
        (
            {BASE: "http://c:1", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "http/protobuf",
        ),
        ({BASE: "http://c:4318", "OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER", "otlp or none"),
    ],
)
def test_what_cannot_be_used_is_named_once_with_the_right_form(environ, field, hint):
    with pytest.raises(ConfigError) as raised:
        Exports.read(environ)
    (problem,) = raised.value.problems
    assert problem.path == field
    assert hint in problem.hint
