"""Web-hooks against a real receiver: what is delivered, how often it is tried, and who may be a receiver."""

import json
import queue
import re
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE

from epochal.client.encoding.encodings import encoder
from epochal.protocol import messages as m


@dataclass
class Delivery:
    """One POST as it came."""

    path: str
    headers: dict[str, str]
    events: list[dict[str, Any]]

    @property
    def seqs(self) -> list[int]:
        return [event["position"][1] for event in self.events]


@dataclass
class Receiver:
    """Takes deliveries; answers with the statuses in `answers`, one after the other, then with 204."""

    server: ThreadingHTTPServer
    came: "queue.Queue[Delivery]" = field(default_factory=queue.Queue)
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    inside: int = 0
    most: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/hook"

    def take(self) -> Delivery:
        return self.came.get(timeout=PATIENCE)

    def until(self, seq: int) -> list[int]:
        """The events of deliveries up to event `seq`."""
        found: list[int] = []
        while not found or found[-1] != seq:
            found += self.take().seqs
        return found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            made.inside += 1
            made.most = max(made.most, made.inside)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.came.put(Delivery(self.path, dict(self.headers), [json.loads(line) for line in body.splitlines()]))
            status, headers, text = made.answers.pop(0) if made.answers else (204, {}, b"")
            if status == 0:
                made.released.wait(PATIENCE)
                status = 204
            self.send_response(status)
            for name, value in {"Content-Length": str(len(text)), **headers}.items():
                self.send_header(name, value)
            made.inside -= 1
            self.end_headers()
            self.wfile.write(text)

        def log_request(self, code: object = "", size: object = "") -> None:
            pass

        def handle(self) -> None:
            with suppress(ConnectionError):
                super().handle()

    made = Receiver(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    made.server.daemon_threads = True
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.released.set()
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@dataclass
class Hooked:
    """A publisher with a writer."""

    publisher: Any
    writer: Any
    ids: int = 0

    def call(self, method: str, path: str = "", body: Any = None, **headers: str) -> tuple[int, Any]:
        url = f"{self.publisher.addresses['http']}/v1/segments/0/webhooks{path}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            url, data=data, method=method, headers={"Content-Type": "application/json", **headers}
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def register(self, callback: str, since: Any = None, subscription: str | None = None) -> tuple[int, Any]:
        self.ids += 1
        subscription = subscription or f"id-{self.ids}"
        return self.call("POST", body={"callback": callback, "since": since, "subscription": subscription})

    def live(self) -> dict[str, Any]:
        return {item["subscription"]: item for item in self.call("GET")[1]["items"]}

    def append(self, *texts: bytes) -> None:
        self.writer.acked(0, *(encoder("bytes")([text]) for text in texts))

    def pull(self, since: str) -> list[int]:
        url = f"{self.publisher.addresses['http']}/v1/segments/0/events?since={since}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return [json.loads(line)["position"][1] for line in answer.read().splitlines()[1:]]


@pytest.fixture
def hooked(start: Any, wires: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Hooked]:
    def hooked(**settings: Any) -> Hooked:
        for name, value in {"webhook_targets": "127.0.0.1", **settings}.items():
            monkeypatch.setenv(f"EPOCHAL_PUBLISHER_{name.upper()}", str(value))
        stream, publisher = start()
        writer = wires.writer(publisher, stream)
        writer.open()
        return Hooked(publisher, writer)

    return hooked


def test_the_key_in_a_callback_is_sent_to_its_receiver_and_shown_to_no_one(hooked: Any, receiver: Receiver) -> None:
    hooks = hooked()
    hooks.append(b"a")
    assert hooks.register(f"{receiver.url}?key=secret", "start", "mine")[0] == 201
    assert receiver.take().path.endswith("?key=secret")
    assert hooks.live()["mine"]["callback"] == receiver.url
    assert "secret" not in hooks.publisher.log.read_text()


@pytest.mark.rule("Q4", "Q5", "Q6")
def test_history_then_what_comes_in_order_each_with_the_subscription(hooked: Any, receiver: Receiver) -> None:
    hooks = hooked()
    hooks.append(b"a", b"b", b"c")
    status, begun = hooks.register(receiver.url, "1.0", "mine")
    assert (status, begun["position"], begun["active"], begun["subscription"]) == (201, [1, 0], [0], "mine")
    first = receiver.take()
    assert first.headers["Epochal-Subscription"] == "mine"
    assert first.headers["Epochal-After"] == "1.0"
    assert first.headers["Content-Type"] == "application/x-ndjson"
    assert first.events == [
        {"position": [1, 1], "kind": "data", "time": 0, "topic": "", "encoding": "base64", "records": ["Yg=="],
         "subscription": "mine"},
        {"position": [1, 2], "kind": "data", "time": 0, "topic": "", "encoding": "base64", "records": ["Yw=="],
         "subscription": "mine"},
    ]  # fmt: skip
    hooks.append(b"d")
    second = receiver.take()
    assert (second.headers["Epochal-After"], second.seqs) == ("1.2", [3])
    hooks.writer.leave(m.Leaving.FINISH)
    assert receiver.take().events[-1]["kind"] == "frontier"


@pytest.mark.rule("Q4", "Q9")
def test_an_id_is_used_once(hooked: Any, receiver: Receiver, wait_until: Any) -> None:
    hooks = hooked()
    assert hooks.register(receiver.url, None, "mine")[0] == 201
    status, problem = hooks.register(receiver.url, None, "mine")
    assert (status, problem["code"]) == (409, "subscription_used")
    assert list(hooks.live()) == ["mine"]
    assert hooks.call("DELETE", "/mine") == (204, None)
    assert hooks.live() == {}
    assert hooks.register(receiver.url, None, "mine")[0] == 409, "nor after it was cancelled"
    status, problem = hooks.call("DELETE", "/mine")
    assert (status, problem["code"]) == (404, "unknown_subscription")
    hooks.register(receiver.url, None, "other")
    hooks.append(b"a")
    assert receiver.take().headers["Epochal-Subscription"] == "other", "nothing goes to the cancelled one"


@pytest.mark.rule("Q5", "Q7")
def test_what_is_not_taken_is_sent_again_before_what_follows(hooked: Any, receiver: Receiver) -> None:
    hooks = hooked()
    receiver.answers += [(500, {}, b"oops"), (307, {"Location": "/elsewhere"}, b""), (404, {}, b"")]
    hooks.append(b"a")
    hooks.register(receiver.url, "start")
    tried = [receiver.take()]
    hooks.append(b"b")
    tried += [receiver.take() for _ in range(3)]
    assert [delivery.seqs for delivery in tried] == [[0]] * 4
    assert {delivery.path for delivery in tried} == {"/hook"}, "a redirect leads nowhere"
    assert receiver.take().seqs == [1]
    assert receiver.most == 1, "one at a time"


@pytest.mark.rule("Q5")
def test_each_event_once_while_more_are_made(hooked: Any, receiver: Receiver) -> None:
    hooks = hooked(answer_bytes=4096)
    hooks.append(*[bytes(100)] * 100)
    writing = threading.Thread(target=lambda: [hooks.append(bytes(100)) for _ in range(200)])
    writing.start()
    assert hooks.register(receiver.url, "start")[0] == 201
    assert receiver.until(299) == list(range(300))
    writing.join(PATIENCE)
    assert receiver.most == 1


@pytest.mark.rule("Q9")
@pytest.mark.parametrize(("status", "body"), [(410, b""), (404, b'{"code": "unknown_subscription"}')])
def test_a_receiver_that_does_not_know_the_id_ends_it(
    hooked: Any, receiver: Receiver, wait_until: Any, status: int, body: bytes
) -> None:
    hooks = hooked()
    receiver.answers.append((status, {}, body))
    hooks.register(receiver.url)
    hooks.append(b"a")
    receiver.take()
    wait_until(lambda: hooks.live() == {})
    assert hooks.publisher.metric("failures_total") == 0


@pytest.mark.rule("Q7", "Q8")
def test_a_subscriber_that_was_given_up_asks_for_what_it_missed_and_subscribes_again(
    hooked: Any, receiver: Receiver, wait_until: Any
) -> None:
    hooks = hooked(webhook_give_up=1)
    hooks.register(receiver.url, "start", "old")
    hooks.append(b"a")
    seen = receiver.until(0)
    receiver.answers += [(503, {}, b"")] * 100
    hooks.append(b"b", b"c")
    wait_until(lambda: "old" not in hooks.live())
    assert hooks.publisher.metric("webhook_deliveries_total") == 1
    assert hooks.publisher.metric("webhook_failures_total") > 1
    assert 'epochal_publisher_webhook_ends_total{reason="given_up"' in given_labels(hooks.publisher)
    (told,) = [line for line in hooks.publisher.log.read_text().splitlines() if "ends: given up" in line]
    assert "WARNING" in told.upper()
    receiver.answers.clear()
    while not receiver.came.empty():
        assert set(receiver.came.get().seqs) <= {1, 2}
    seen += hooks.pull(f"1.{seen[-1]}")
    hooks.append(b"d")  # comes between the question and the new subscription
    status, _ = hooks.register(receiver.url, [1, seen[-1]], "new")
    assert status == 201
    hooks.append(b"e")
    seen += receiver.until(4)
    assert seen == [0, 1, 2, 3, 4]


def given_labels(publisher: Any) -> str:
    """The metrics with their own labels first."""
    text: str = publisher.get("/metrics")[1]
    return re.sub(r'otel_scope_\w+="[^"]*",', "", text)


@pytest.mark.rule("Q8", "Q9")
def test_a_new_subscription_after_the_requested_events_replaces_the_old_one(hooked: Any, receiver: Receiver) -> None:
    hooks = hooked()
    hooks.register(receiver.url, None, "old")
    hooks.append(b"a", b"b")
    assert hooks.pull("start") == [0, 1]
    hooks.append(b"c")
    hooks.register(receiver.url, "1.1", "new")
    hooks.call("DELETE", "/old")
    hooks.append(b"d")
    accepted: list[int] = []
    while not accepted or accepted[-1] != 3:
        delivery = receiver.take()
        if delivery.headers["Epochal-Subscription"] == "new":
            accepted += delivery.seqs
    assert accepted == [2, 3], "what came between is there; what has the old id is told apart"


@pytest.mark.rule("Q7", "Q8")
def test_a_publisher_that_is_killed_loses_its_web_hooks_and_no_event(
    start: Any, wires: Any, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHAL_PUBLISHER_WEBHOOK_TARGETS", "127.0.0.1")
    stream, first = start({"data": tmp_path}, history={"storage": {"size": "1Gi"}})
    hooks = Hooked(first, wires.writer(first, stream))
    hooks.writer.open()
    hooks.register(receiver.url, "start", "old")
    hooks.append(b"a", b"b")
    accepted = receiver.until(1)
    receiver.answers += [(503, {}, b"")] * 100
    hooks.append(b"c")
    receiver.take()
    first.signal(signal.SIGKILL)
    second = stream.start("0", data=tmp_path)
    try:
        receiver.answers.clear()
        again = Hooked(second, wires.writer(second, stream))
        assert again.live() == {}
        again.writer.open(resume=m.Resume(2, (0,), (0,)))
        again.append(b"d")
        accepted += again.pull(f"1.{accepted[-1]}")
        while not receiver.came.empty():
            assert receiver.came.get().headers["Epochal-Subscription"] == "old", "from before the end"
        status, begun = again.register(receiver.url, f"2.{accepted[-1]}", "new")
        assert (status, begun["incarnation"]) == (201, 2)
        again.append(b"e")
        accepted += receiver.until(4)
    finally:
        second.stop()
    assert accepted == [0, 1, 2, 3, 4]


def test_a_receiver_that_hangs_is_left_and_tried_again_and_holds_up_no_stop(hooked: Any, receiver: Receiver) -> None:
    hooks = hooked(webhook_timeout=0.3)
    receiver.answers += [(0, {}, b"")] * 100
    hooks.register(receiver.url)
    hooks.append(b"a")
    assert [receiver.take().seqs for _ in range(2)] == [[0], [0]]
    (hook,) = hooks.live().values()
    assert hook["failures"] >= 1
    hooks.publisher.signal(15)
    assert hooks.publisher.ended() == 0


def test_callbacks_go_nowhere_unless_it_is_allowed(hooked: Any, receiver: Receiver) -> None:
    hooks = hooked(webhook_targets="")
    status, problem = hooks.register(receiver.url)
    assert (status, problem["code"]) == (403, "webhook_target")
    assert hooks.live() == {}


def test_a_name_that_leads_to_loopback_is_refused_when_it_connects(
    hooked: Any, receiver: Receiver, wait_until: Any
) -> None:
    hooks = hooked(webhook_targets="localhost")
    local = receiver.url.replace("127.0.0.1", "localhost")
    assert hooks.register(local, "start", "x")[0] == 201
    hooks.append(b"a")
    wait_until(lambda: hooks.live()["x"]["failures"] >= 2)
    assert "not among the targets" in hooks.live()["x"]["failing"]
    assert receiver.came.empty()


def test_a_name_whose_network_is_named_as_well_is_reached(hooked: Any, receiver: Receiver) -> None:
    hooks = hooked(webhook_targets="localhost,127.0.0.0/8")
    hooks.register(receiver.url.replace("127.0.0.1", "localhost"), "start")
    hooks.append(b"a")
    assert receiver.take().seqs == [0]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"subscription": "a"}, "callback"), ({"callback": "http://127.0.0.1/"}, "subscription"),
        ({"callback": "http://127.0.0.1/", "subscription": "a/b"}, "subscription"),
        ({"callback": "http://127.0.0.1/", "subscription": "a", "since": "x"}, "since"),
        ({"callback": "http://127.0.0.1/", "subscription": "a", "since": [1, 99]}, "since"),
        ({"callback": "http://127.0.0.1/", "subscription": "a", "more": 1}, "more"), ([], "body"),
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_read_is_refused_by_name(hooked_once: Hooked, body: Any, path: str) -> None:
    status, problem = hooked_once.call("POST", body=body)
    assert (status, problem["code"]) == (422, "invalid_request")
    assert path in {item["path"] for item in problem["problems"]}


@pytest.fixture(scope="module")
def hooked_once(request: pytest.FixtureRequest, declare: Any) -> Iterator[Hooked]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPOCHAL_PUBLISHER_WEBHOOK_TARGETS", "127.0.0.1")
        publisher = declare().start()
    yield Hooked(publisher, None)
    publisher.stop()


def test_other_content_is_refused(hooked_once: Hooked) -> None:
    status, problem = hooked_once.call("POST", body={}, **{"Content-Type": "text/plain"})
    assert (status, problem["problems"][0]["path"]) == (422, "Content-Type")


def test_no_more_than_so_many(hooked: Any, receiver: Receiver) -> None:
    hooks = hooked(max_webhooks=1)
    assert hooks.register(receiver.url)[0] == 201
    status, problem = hooks.register(receiver.url)
    assert (status, problem["code"]) == (503, "overloaded")
