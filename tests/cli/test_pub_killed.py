"""`pub` killed in the middle: what is complete stays, what is half is never taken for whole, and how to go on."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from tests.patience import PATIENCE

from epochal.local.child import console_script

RECORDS = b'{"h": 1, "n": 1}\n{"h": 1, "n": 2}\n{"h": 2, "n": 3}\n'


def published_and_killed(run, manifest, catalog: str, name: str, timeout: str) -> str:
    """A stream at which `pub --writer w1` was killed when hour 1 was complete, and hour 2 half published."""
    text = manifest(name, segments=1) + f"  progress: {{writerTimeout: {timeout}}}\n"
    assert run("apply", "-f", "-", stdin=text).status == 0
    stream = f"demo/{name}"
    following = [console_script("epochal"), "sub", stream, "--since", "start", "--raw", "--count", "3"]
    command = [console_script("epochal"), "pub", stream, "--time-field", "h", "--in-order", "--writer", "w1"]
    with subprocess.Popen([*command, "--catalog", catalog], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as pub:
        assert pub.stdin is not None
        pub.stdin.write(RECORDS)
        pub.stdin.flush()
        subprocess.run([*following, "--catalog", catalog], capture_output=True, timeout=PATIENCE, check=True)
        pub.kill()
    return stream


def events(stream: str, catalog: str, *options: str) -> Iterator[dict[str, Any]]:
    """What a subscriber is told from the start, as it comes."""
    command = [console_script("epochal"), "sub", stream, "--since", "start", "--json", *options, "--catalog", catalog]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sub:
        assert sub.stdout is not None
        try:
            yield from map(json.loads, sub.stdout)
        finally:
            sub.kill()


@pytest.mark.rule("E3")
def test_the_epoch_under_way_is_aborted_and_later_ones_follow(run, manifest, catalog: str) -> None:
    stream = published_and_killed(run, manifest, catalog, "killed-and-gone", "1s")
    assert {"kind": "aborted", "time": 2} in events(stream, catalog)  # as soon as its writer is given up
    again = run("pub", stream, "-t", "2", '"x"', "--writer", "w1")
    assert (again.status, again.out) == (1, "")
    assert "what to do: publish at a later time" in again.err
    assert run("pub", stream, "-t", "3", '"x"', "--writer", "w1", "--finish").status == 0
    whole, half, after = events(stream, catalog, "--epochs")
    assert [record["n"] for record in whole["records"]] == [1, 2]
    assert half == {"kind": "aborted", "time": 2}
    assert after == {"kind": "epoch", "time": 3, "records": ["x"]}


@pytest.mark.long
@pytest.mark.rule("E6")
def test_the_same_writer_that_comes_back_in_time_goes_on(run, manifest, catalog: str) -> None:
    stream = published_and_killed(run, manifest, catalog, "killed-and-back", "30s")
    rest = '{"h": 2, "n": 4}\n{"h": 3, "n": 5}\n'
    command = [console_script("epochal"), "pub", stream, "--time-field", "h", "--in-order", "--writer", "w1"]
    subprocess.run([*command, "--finish", "--catalog", catalog], input=rest.encode(), timeout=PATIENCE, check=True)
    told = events(stream, catalog, "--epochs")
    assert [[record["n"] for record in epoch["records"]] for epoch in told] == [[1, 2], [3, 4], [5]]
