"""docs/http.md as it is typed: each example runs against a real publisher, and its codes are those that there are."""

import json
import os
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from tests.patience import PATIENCE

from epochal.errors import CorruptLog, HistoryTruncated, Unavailable
from epochal.protocol import messages as m
from epochal.service.errors import Overloaded, ShuttingDown
from epochal.service.origins import ForeignOrigin, UnknownHost
from epochal_publisher.http.errors import STATUS

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
EXAMPLES: dict[str, str] = dict(re.findall(r"<!-- example: (\w+) -->\n```bash\n(.*?)```", PAGE, re.DOTALL))


class Typist:
    """Runs examples with the variables that the page speaks of."""

    def __init__(self, **variables: str) -> None:
        self._variables = variables
        self.typed: set[str] = set()

    def __call__(self, name: str, status: int = 0) -> str:
        self.typed.add(name)
        done = subprocess.run(
            ["bash", "-c", EXAMPLES[name]], env={**os.environ, **self._variables}, capture_output=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        return done.stdout.decode()


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("bash")), reason="the examples are for bash and curl")
@pytest.mark.rule("Q3", "Q4", "Q6")
def test_the_examples_run_and_answer_as_the_page_says(start: Any, wires: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_PUBLISHER_WEBHOOK_TARGETS", "127.0.0.1")
    delivered: list[tuple[str, bytes]] = []
    came = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            delivered.append((self.headers["Epochal-Subscription"], body))
            self.send_response(204)
            self.end_headers()
            came.set()

        def log_request(self, code: object = "", size: object = "") -> None:
            pass

    stream, publisher = start(payload={"encoding": "json"})
    writer = wires.writer(publisher, stream)
    writer.open()
    payload = b'[{"flight":"UA1545"}]'
    writer.line.send(m.Append("0", 0, 0, b"gate/JFK", 1, google_crc32c.value(payload), payload))
    writer.line.await_(m.Ack)
    writer.advance(1)
    receiver = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=receiver.serve_forever)
    thread.start()
    try:
        typed = Typist(
            CATALOG=stream.catalog, STREAM=stream.name, PUBLISHER=publisher.addresses["http"],
            CALLBACK=f"http://127.0.0.1:{receiver.server_port}/hook", SEGMENTS="0",
        )  # fmt: skip
        if shutil.which("jq"):
            assert typed("address").split() == ["0", publisher.addresses["http"]]
        shown = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
        assert shown is not None
        assert typed("events") == shown[1], "exactly what the page shows"
        threading.Timer(1, lambda: writer.advance(2)).start()
        assert [json.loads(line)["kind"] for line in typed("behind").splitlines()] == ["opening", "frontier"]
        assert int(typed("msgpack")) > 100
        if shutil.which("jq"):
            (epoch,) = re.findall(r"```json\n(\{\"time.*?\n)```", PAGE)
            assert typed("epochs") == epoch, "exactly what the page shows"
        followed = typed("follow", status=28)  # it would go on
        assert re.findall("^id: (.*)$", followed, re.MULTILINE) == ["1.-1", "1.0", "1.1", "1.2"]
        assert json.loads(typed("register"))["position"] == [1, -1]
        assert came.wait(PATIENCE)
        subscription, body = delivered[0]
        assert (subscription, len(body.splitlines())) == ("mine-1", 3)
        assert json.loads(typed("list"))["items"][0]["subscription"] == "mine-1"
        assert json.loads(typed("list").replace("}{", "}\n{").splitlines()[0])["items"] == []
    finally:
        receiver.shutdown()
        receiver.server_close()
        thread.join()
    assert typed.typed | {"address", "epochs"} == set(EXAMPLES)


def test_every_refusal_is_in_the_table() -> None:
    table = {
        (int(status), code)
        for status, codes in re.findall(r"^\| (\d{3}) \| (.*?) \|", PAGE.split("## Limits and errors")[1], re.MULTILINE)
        for code in re.findall(r"`(\w+)`", codes)
    }
    known = {(status, error.code) for error, status in STATUS.items()} | {
        (503, Overloaded.code), (503, ShuttingDown.code), (503, Unavailable.code), (410, HistoryTruncated.code),
        (500, CorruptLog.code), (421, UnknownHost.code), (403, ForeignOrigin.code),
    }  # fmt: skip
    assert table == known
