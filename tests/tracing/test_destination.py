"""The set-up against real sockets: what is sent, under which name, and how long a collector can hold anybody up."""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.tracing.receiver import receiving

from epochal.otel import sdk
from epochal.otel.destination import Collector
from epochal.otel.span_processor import Sender

SETUP = """
import sys
from epochal.otel import sdk
from opentelemetry import metrics, trace
made = sdk.start("a-service", quick=True)
with trace.get_tracer("t").start_as_current_span("work"):
    metrics.get_meter("t").create_counter("c").add(3)
print(made is not None and made.flush(), {k: v for k, v in made.tracers.resource.attributes.items()} if made else {})
"""


async def program(script: str, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=subprocess.PIPE, env={"PATH": "/usr/bin", **environment}
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def test_what_the_environment_names_is_sent():
    async with receiving() as received:
        out = await program(
            SETUP,
            OTEL_EXPORTER_OTLP_ENDPOINT=received.url,
            OTEL_RESOURCE_ATTRIBUTES="k8s.pod.name=p-1,host.name=h-1",
        )
        (work,) = await received.until("work")
        counted = await received.until_metric("c")
    assert out.startswith("True ")
    assert "'k8s.pod.name': 'p-1'" in out
    assert "'host.name': 'h-1'" in out, "the environment wins"
    assert "'service.name': 'a-service'" in out
    assert not work.parent_span_id
    assert counted.sum.data_points[0].as_int == 3


async def test_samplers_and_the_switch_are_honoured():
    async with receiving() as received:
        where = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.url}
        await program(SETUP, **where, OTEL_TRACES_SAMPLER="always_off")
        await received.until_metric("c")
        assert await program(SETUP, **where, OTEL_SDK_DISABLED="true") == "False {}\n"
        assert not received.spans


async def test_a_provider_of_the_program_is_left_as_it_is():
    script = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
mine = TracerProvider()
trace.set_tracer_provider(mine)
from epochal.otel import sdk
made = sdk.start("x")
assert trace.get_tracer_provider() is mine and made.tracers is None and sdk.provider() is mine
"""
    await program(script, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{free_port()}")


def served(answer: Callable[[BaseHTTPRequestHandler], None]) -> tuple[ThreadingHTTPServer, str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"


def status(number: int, seconds: float = 0.0) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(seconds)
        handler.send_response(404 if handler.path.endswith("metrics") else number)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


@pytest.fixture
def sender(monkeypatch):
    def make(url: str) -> tuple[Sender, TracerProvider]:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        collector = Collector(f"{url}/v1/traces", f"{url}/v1/metrics", 2.0)
        assert collector.reader is not None
        meters = MeterProvider([collector.reader], shutdown_on_exit=False)
        meters.get_meter("t").create_counter("c").add(1)
        sender = Sender(collector)
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(sender)
        return sender, tracers

    return make


def test_a_collector_of_traces_alone_makes_no_noise(sender, caplog):
    caplog.set_level(logging.DEBUG, "opentelemetry")
    server, url = served(status(200))
    made, tracers = sender(url)
    for _ in range(2):
        tracers.get_tracer("t").start_span("a").end()
        assert made.flush()
    server.shutdown()
    server.server_close()
    assert not caplog.records


@pytest.mark.clock
@pytest.mark.parametrize(("collector", "dropped"), [("away", 0), ("busy", 0), ("refusing", 1), ("black hole", 0)])
def test_one_that_does_not_take_them_costs_one_flush(sender, caplog, collector, dropped):
    answers = {"busy": status(503), "refusing": status(400), "black hole": status(200, 12.0)}
    server = None
    url = f"http://127.0.0.1:{free_port()}"
    if collector in answers:
        server, url = served(answers[collector])
    made, tracers = sender(url)
    tracers.get_tracer("t").start_span("a").end()

    def took() -> float:
        began = time.monotonic()
        assert not made.flush()
        return time.monotonic() - began

    assert took() < 10  # 2 s, and what a busy machine adds
    assert min(took() for _ in range(3)) < 0.5
    assert made.dropped == dropped
    assert [record.name for record in caplog.records] == ["epochal.otel"], "one line of ours, none of the exporter"
    if server is not None:
        server.shutdown()
        server.server_close()


async def test_a_child_forked_by_a_program_that_starts_others_does_not_hang():
    script = """
import subprocess
from epochal.otel import sdk
from opentelemetry import trace
sdk.start("x", quick=True)
trace.get_tracer("t").start_span("a").end()
for _ in range(20):  # as PySpark does for its JVM: forked, with Python run in the child
    subprocess.run(["true"], preexec_fn=lambda: None, check=True)
"""
    async with asyncio.timeout(PATIENCE):
        await program(script, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 2.0),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "30"}, 30.0),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "0.5"}, 0.5),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "5", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "9"}, 9.0),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "10000"}, 60.0),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, 2.0),
    ],
)
def test_the_end_of_a_task_waits_as_long_as_the_environment_says_and_never_for_hours(
    given: dict[str, str], seconds: float
) -> None:
    assert sdk.send_patience(given) == seconds
