"""A full disk under a stream of local mode: the commands that people ask name it, and those that wait say so."""

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE

from epochal.local.child import console_script

MANIFEST = """
apiVersion: epochal.dev/v1alpha1
kind: Stream
metadata: {name: x, namespace: demo}
spec:
  time: {shape: int}
  payload: {encoding: bytes}
  history: {storage: {size: 1Gi}}
  progress: {whenLost: hold}
"""
REASON = "segment 0: its log cannot be written (No space left on device), and nothing is acknowledged"


@dataclass
class Full:
    """A local mode whose streams are on a disk that something else has filled."""

    run: Any
    ballast: Path


@pytest.fixture
def full(epochal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Full]:
    streams = tmp_path / "streams"
    streams.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(streams)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here: only root may")
    up = [console_script("epochal"), "up", "--data", str(tmp_path), "--port", "0", "--poll-interval", "0.05"]
    try:
        with subprocess.Popen(up, stdout=subprocess.PIPE, text=True) as local:
            assert local.stdout is not None
            ready = re.match(r"epochal ready (\S+)", local.stdout.readline())
            assert ready is not None
            monkeypatch.setenv("EPOCHAL_CATALOG", ready[1])
            try:
                assert epochal("apply", "-f", "-", stdin=MANIFEST).status == 0
                assert epochal("pub", "demo/x", "-t", "1", "first", "--advance", "2").status == 0
                ballast = streams / "ballast"
                file = os.open(ballast, os.O_CREAT | os.O_WRONLY)
                with contextlib.suppress(OSError):
                    while os.write(file, bytes(4096)):
                        pass
                os.close(file)
                # What does not fit into the last page of the log, and waits there from now on:
                assert epochal("pub", "demo/x", "-t", "2", "-q", "--timeout", "1", "x" * 60_000).status == 4
                yield Full(epochal, ballast)
            finally:
                local.kill()
    finally:
        subprocess.run(["umount", "-l", str(streams)], check=True)


@pytest.mark.rule("E10")
def test_everyone_who_is_asked_names_it(full: Full) -> None:
    pub = [console_script("epochal"), "pub", "demo/x", "-t", "3", "second"]
    with subprocess.Popen(pub, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        said = waiting.stderr.readline()  # three seconds later
        assert said == f"waiting for the publishers of demo/x, at most 30 s: {REASON}\n"
        described = full.run("describe", "stream", "demo/x")
        assert re.search(rf"^Degraded: +DiskFull: {re.escape(REASON)}, for \d+ s now$", described.out, re.MULTILINE)
        (row,) = json.loads(full.run("top", "demo/x", "-o", "json").out)["streams"]
        assert row["trouble"] == "full"
        doctor = full.run("doctor", "-o", "json")
        (finding,) = [each for each in json.loads(doctor.out)["findings"] if each["check"] == "disk"]
        assert (finding["verdict"], finding["seen"].startswith(f"demo/x: {REASON}")) == ("fail", True)
        assert doctor.status == 1
        full.ballast.unlink()
        assert waiting.wait(PATIENCE) == 0, "it goes on by itself once there is space"
    assert full.run("pub", "demo/x", "--finish").status == 0
    assert "DiskFull" not in full.run("describe", "stream", "demo/x").out


@pytest.mark.rule("E10")
def test_what_waits_for_it_keeps_its_time_out(full: Full) -> None:
    waiting = [
        subprocess.Popen(
            [console_script("epochal"), *line.split(), "--timeout", "4"], stderr=subprocess.PIPE, text=True
        )
        for line in (
            "pub demo/x -t 3 second",
            "pub demo/x --advance 9",
            "bench pub demo/x --seconds 0.5",
            "bench latency demo/x --seconds 0.5",
        )
    ]
    for each in waiting:
        _, err = each.communicate(timeout=PATIENCE)
        assert each.returncode == 4, err
        assert f"waiting for the publishers of demo/x, at most 4 s: {REASON}\n" in err
        assert f"no publisher of demo/x has confirmed anything for 4 s: {REASON}" in err


@pytest.mark.rule("E4", "E46")
@pytest.mark.parametrize(
    "command", ["pub demo/x -t 3 second", "pub demo/x --advance 9", "bench pub demo/x --seconds 1"]
)
def test_what_runs_out_of_time_is_not_waited_for_as_lost(full: Full, command: str) -> None:
    """The stream keeps what a lost writer holds until that is back, and these commands never are."""
    assert full.run(*command.split(), "--timeout", "1").status == 4
    full.ballast.unlink()
    assert full.run("pub", "demo/x", "-t", "20", "third", "--advance", "21").status == 0
    told = full.run("sub", "demo/x", "--since", "start", "--epochs", "--count", "2", "--idle", str(PATIENCE), "--json")
    events = [(event["kind"], event["time"]) for event in map(json.loads, told.out.splitlines())]
    assert events == [("epoch", 1), ("aborted", 2), ("epoch", 20)]
