"""Health, readiness and metrics of a running publisher."""

import re
import socket

from epochal.service.telemetry import DURATION_BOUNDS


def test_health_readiness_and_metrics(shared, wires):
    publisher, segment = shared.publisher, shared.segment()
    writer = wires.writer(publisher, shared.stream, segment)
    writer.open()
    wires.subscriber(publisher, shared.stream, segment).join()
    writer.acked(0, b"x" * 100, b"y" * 100, records=20)
    assert publisher.get("/healthz") == (200, "ok\n")
    assert publisher.get("/readyz") == (200, "ok\n")
    assert publisher.get("/nothing")[0] == 404
    shown = {
        name: publisher.metric(name, segment)
        for name in (
            "events_total", "appends_total", "records_total", "subscribers", "writers", "joins_total",
            "history_events", "incarnation",
        )
    }  # fmt: skip
    assert shown == {
        "events_total": 2, "appends_total": 2, "records_total": 40, "subscribers": 1, "writers": 1, "joins_total": 1,
        "history_events": 2, "incarnation": 1,
    }  # fmt: skip
    assert publisher.metric("history_size_bytes", segment) >= 200
    assert publisher.metric("pushed_size_bytes_total", segment) >= 200
    assert publisher.metric("frontier_age_seconds", segment) >= 0
    assert publisher.metric("discarded_peers") >= 0


def test_durations_are_distinguished_from_milliseconds_to_minutes(shared):
    assert shared.publisher.get("/healthz")[0] == 200
    text = shared.publisher.get("/metrics")[1]
    buckets = re.findall(r'http_server_request_duration_seconds_bucket{.*http_route="/healthz".*le="([^"]+)"', text)
    assert [*map(float, buckets)] == [*DURATION_BOUNDS, float("inf")]


def test_the_writer_that_holds_time_back_is_named(shared, wires):
    publisher, segment = shared.publisher, shared.segment()
    wires.writer(publisher, shared.stream, segment).open()
    _, text = publisher.get("/metrics")
    held = [line for line in text.splitlines() if line.startswith("epochal_publisher_held_seconds{")]
    (mine,) = (line for line in held if f'segment="{segment}"' in line)
    assert 'kind="writer"' in mine
    assert 'writer=""' not in mine
    assert float(mine.rpartition(" ")[2]) >= 0


def test_the_catalog_shows_the_counters(shared, wires, wait_until):
    publisher, segment = shared.publisher, shared.segment()
    writer = wires.writer(publisher, shared.stream, segment)
    writer.open()
    writer.acked(0, b"x")
    wait_until(lambda: shared.stream.segment(segment)["counters"].get("appends") == 1)
    assert shared.stream.segment(segment)["counters"]["records"] == 1


def test_other_bytes_on_the_http_port_disturb_no_one(shared):
    host, port = shared.publisher.addresses["http"].removeprefix("http://").split(":")
    for junk in (b"\x01P" + bytes(16), b"\xff" * 10_000, b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 100):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(junk)
    assert shared.publisher.get("/healthz")[0] == 200
