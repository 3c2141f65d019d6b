"""The command: settings, signals, standard streams, exit codes."""

import re
import signal
import socket
import subprocess

import pytest
from tests.patience import PATIENCE

from epochal.protocol import messages as m


def run(command, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [command, "serve", *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False, env=env
    )


def test_all_wrong_settings_are_reported_at_once(publisher_command):
    ended = run(
        publisher_command, "--stream", "no-namespace", "--events-port", "70000", EPOCHAL_PUBLISHER_MAX_PAYLOAD="x"
    )
    assert ended.returncode == 1
    for name in ("catalog", "stream", "segments", "publisher", "events_port", "max_payload"):
        assert name in ended.stderr
    assert "EPOCHAL_PUBLISHER_CATALOG" in ended.stderr


def test_a_stream_or_segment_that_is_not_declared_is_reported(publisher_command, catalog, declare):
    given = ("--catalog", catalog, "--publisher", "lost")
    ended = run(publisher_command, *given, "--stream", "test/unknown", "--segments", "0")
    assert ended.returncode == 1
    assert "test/unknown" in ended.stderr
    assert re.search(r"version 0\.\S+ \((compiled|pure Python)\)\n", ended.stderr)
    ended = run(publisher_command, *given, "--stream", declare().name, "--segments", "17")
    assert ended.returncode == 1
    assert "17" in ended.stderr


def test_a_taken_port_is_reported(publisher_command, catalog, declare):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for option in ("--events-port", "--http-port"):
            ended = run(
                publisher_command, "--catalog", catalog, "--publisher", "p", "--stream", declare().name,
                "--segments", "0", option, port,
            )  # fmt: skip
            assert ended.returncode == 1
            assert "cannot listen" in ended.stderr


@pytest.mark.parametrize("how", ["signal", "standard input"])
def test_a_stop_aborts_what_is_open_flushes_and_deregisters(start, wires, how, wait_until, monkeypatch):
    monkeypatch.setenv("EPOCHAL_PUBLISHER_DRAIN_TIMEOUT", "600")  # nothing here delays it
    stream, publisher = start()
    writer, subscriber = wires.writer(publisher, stream), wires.subscriber(publisher, stream)
    writer.open()
    writer.acked(0, b"done")
    writer.advance(1)
    writer.acked(1, b"half")
    subscriber.join()
    writer.append(1, b"in flight")
    if how == "signal":
        publisher.signal(signal.SIGTERM)
    else:
        publisher.popen.stdin.close()
    events = [subscriber.next_event()]
    while not isinstance(events[-1], m.Aborted):
        events.append(subscriber.next_event())
    assert events[-1].times == (1,)
    assert publisher.ended() == 0
    assert stream.segment()["publisher"] is None
    assert stream.segment()["lower"] == [1]


def test_a_stop_while_the_catalog_is_away_is_not_held_up(publisher_command, tmp_path, wait_until):
    log = tmp_path / "log"
    with log.open("w") as stderr, subprocess.Popen(
        [publisher_command, "serve", "--catalog", "http://127.0.0.1:9", "--stream", "a/b", "--segments", "0",
         "--publisher", "p"],
        stderr=stderr,
    ) as process:  # fmt: skip
        wait_until(lambda: "no catalog answers" in log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
