"""`epochal release`: what it asks, whom it asks, and what the catalog hears."""

import asyncio
import os
import pty
import subprocess
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from tests.patience import PATIENCE

from epochal.catalog_api.requests import ReportedHolder, SegmentReport
from epochal.client.catalog.catalog import CatalogClient
from epochal.local.child import console_script

MANIFEST: dict[str, Any] = {
    "apiVersion": "epochal.dev/v1alpha1",
    "kind": "Stream",
    "spec": {"time": {"shape": "int"}, "payload": {"encoding": "json"}, "progress": {"whenLost": "hold"}},
}


class Publisher:
    """Stands at a catalog of its own for a stream's publisher, and reports whom it waits for."""

    def __init__(self, url: str) -> None:
        self.url, self.name = url, f"s{uuid4().hex[:12]}"
        self.stream = f"demo/{self.name}"

    def __call__(self, *lost: str) -> dict[str, int]:
        """Declare the stream, give each writer a session, and wait for it as lost; what is released."""
        return asyncio.run(self._report(lost))

    async def _report(self, lost: tuple[str, ...]) -> dict[str, int]:
        async with CatalogClient(self.url) as catalog:
            document = {**MANIFEST, "metadata": {"namespace": "demo", "name": self.name}}
            stream, created = await catalog.apply(document, "demo", self.name)
            for writer in lost if created else ():
                await catalog.session("demo", self.name, writer)
            granted = await catalog.register(
                self.name, instance="i", stream=self.stream, uid=stream.uid, segments=["0"],
                addresses={"events": "tcp://h:1", "requests": "tcp://h:2", "ingest": "tcp://h:3"},
            )  # fmt: skip
            holders = [ReportedHolder(5, "lost", writer, 60.0, 90.0) for writer in lost]
            report = SegmentReport(
                granted.segments[0].incarnation, [5], [*lost], counters={"events": 1}, holders=holders
            )
            return dict((await catalog.renew(self.name, granted.token, {"0": report})).released)


@pytest.fixture(scope="module")
def catalog_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = str(tmp_path_factory.mktemp("catalog"))
    command = [console_script("epochal-catalog"), "serve", "--port", "0", "--data", data, "--exit-with-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().split()[1]
        process.stdin.close()


@pytest.fixture
def publisher(catalog_url: str, epochal: Any, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    monkeypatch.setenv("EPOCHAL_CATALOG", catalog_url)  # `epochal` has set another
    return Publisher(catalog_url)


@pytest.mark.rule("E46")
def test_yes_releases_without_a_question(publisher: Publisher, epochal: Any) -> None:
    publisher("w1", "w2")
    told = epochal("describe", "stream", publisher.stream).out
    assert "Degraded:       WriterLost: it waits for w1, w2" in told
    assert "segment 0 is at 5: it has waited for 1m" in told
    result = epochal("release", publisher.stream, "w1", "--yes")
    assert (result.status, result.err) == (0, "")
    released = publisher("w1", "w2")
    assert released.keys() == {"w1"}
    assert result.out == f"writer w1 of {publisher.stream} released (session {released['w1']})\n"
    assert epochal("release", publisher.name, "-n", "demo", "w1", "-y").out == result.out


@pytest.mark.rule("E46")
def test_who_is_not_at_a_terminal_must_say_yes(publisher: Publisher, epochal: Any) -> None:
    publisher("w1")
    result = epochal("release", publisher.stream, "w1", stdin="y\n")
    assert (result.status, result.out) == (2, "")
    assert "standard input is no terminal; add --yes" in result.err
    assert publisher("w1") == {}


@pytest.mark.rule("E46")
@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 130), ("", 130)])
def test_a_terminal_shows_what_will_happen_and_asks(publisher: Publisher, answer: str, status: int) -> None:
    publisher("w1")
    ours, theirs = pty.openpty()
    command = [console_script("epochal"), "release", publisher.stream, "w1"]
    os.write(ours, f"{answer}\n".encode())
    asked = subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=PATIENCE)
    os.close(ours)
    os.close(theirs)
    assert asked.returncode == status, asked.stderr
    assert "lost writer w1 (progress.whenLost: hold)" in asked.stderr
    assert "had not left are aborted, for good" in asked.stderr
    assert "Release w1? [y/N]" in asked.stderr
    assert ("w1" in publisher("w1")) == (answer == "y")


@pytest.mark.rule("E46")
def test_a_terminal_is_not_asked_about_a_writer_that_is_not_waited_for(publisher: Publisher) -> None:
    publisher("w1")
    ours, theirs = pty.openpty()
    command = [console_script("epochal"), "release", publisher.stream, "w2"]
    refused = subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=PATIENCE)
    os.close(ours)
    os.close(theirs)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"error: no segment of {publisher.stream} waits for writer 'w2' as lost\n")
    assert "what to do: `epochal describe stream NAME`" in refused.stderr
    assert "[y/N]" not in refused.stderr


@pytest.mark.rule("E46")
def test_what_cannot_be_released_is_refused_in_words(publisher: Publisher, epochal: Any) -> None:
    publisher("w1")
    unknown = epochal("release", publisher.stream, "nobody", "--yes")
    assert (unknown.status, unknown.out) == (1, "")
    assert "no writer 'nobody' has ever opened" in unknown.err
    publisher()
    back = epochal("release", publisher.stream, "w1", "--yes")
    assert (back.status, back.out) == (1, "")
    assert "what to do: `epochal describe stream NAME`" in back.err
    assert epochal("release", "demo/nothing", "w1", "--yes").status == 3
