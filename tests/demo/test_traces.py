"""`make demo DEMO_ARGS=--traces`: what it ends with, and what it takes for a trace that leads through everything."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

import pytest
from examples.demo import traces
from tests.cluster.harness.places import ROOT
from tests.patience import PATIENCE


class Zipkin(BaseHTTPRequestHandler):
    """Zipkin's answer about traces."""

    traces: ClassVar[list[list[dict[str, Any]]]] = []
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = json.dumps(self.traces).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


@pytest.fixture
def zipkin() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Zipkin) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def span(name: str, trace: str = "a", **tags: str) -> dict[str, Any]:
    return {"traceId": trace, "name": name, "tags": tags}


def process(hour: int, trace: str = "a") -> dict[str, Any]:
    return span("process demo/flights", trace, **{"epochal.time": str(hour)})


def test_a_trace_is_taken_once_it_has_enough(zipkin: str) -> None:
    other = [process(2013010105, "b"), span("send demo/flights", "b")]  # a trace without a batch
    whole = [span("batch 0"), span("send demo/flights", **{"host.name": "x"}), process(2013010123), process(2013010105)]
    Zipkin.traces = [other, whole]
    found = traces.find(zipkin, "demo/flights", lambda found: found.count("send") == 1, 0)
    assert (found.trace_id, found.hour, found.tagged("send", "host.name")) == ("a", 2013010123, {"x"})
    assert "spanName=process+demo%2Fflights" in Zipkin.asked[-1]
    assert traces.said(found) == "1 batch, 1 send, 2 process"


def test_where_none_has_enough_it_says_what_the_longest_has(zipkin: str) -> None:
    Zipkin.traces = [[span("batch 0"), process(2013010105)]]
    with pytest.raises(TimeoutError, match=r"1 were found, the longest with 1 batch, 1 process"):
        traces.find(zipkin, "demo/flights", lambda found: found.count("send") > 0, 0)
    Zipkin.traces = []
    with pytest.raises(TimeoutError, match=r"0 were found$"):
        traces.find(zipkin, "demo/flights", lambda _: True, 0)


def test_a_zipkin_that_stays_is_not_awaited(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    found = traces.FoundTrace("a", 2013010105, [])
    traces.show(found, "http://127.0.0.1:9411", stays=True)
    assert not terminal.asked
    assert capsys.readouterr().out.endswith("05:00:\n  http://127.0.0.1:9411/zipkin/traces/a\n")
    traces.show(found, "http://127.0.0.1:1", stays=False)
    assert terminal.asked
    assert "until you press Enter" in capsys.readouterr().out


class Terminal:
    """Somebody at a keyboard who presses Enter."""

    asked = False

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        self.asked = True
        return "\n"


@pytest.mark.long
def test_the_demo_ends_with_the_address_of_a_trace_that_leads_through_all_processes() -> None:
    command = [sys.executable, "-m", "examples.demo", "--traces", "--days", "3", "--no-kill"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 3,
        check=False,
    )
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert re.search(r"from the start +57 of 57 hours \(100 %\) +every number equal", said), said
    found = re.search(r"1 batch, 1 commit, 2 send, (\d+) forward, (\d+) append, (\d+) process spans\n", said)
    assert found, said
    assert min(map(int, found.groups())) >= 1
    assert re.search(r"the hour of 2013-01-0\d, \d\d:00:\n +http://127\.0\.0\.1:\d+/zipkin/traces/[0-9a-f]{32}\n", said)
