"""The commands against a real local mode: declare, look, publish, subscribe, take back."""

import itertools
import json
import signal
import subprocess
from pathlib import Path

import pytest
from tests.patience import PATIENCE

from epochal.local.child import console_script


def test_declare_look_and_take_back(run, manifest, tmp_path: Path) -> None:
    file = tmp_path / "stream.yaml"
    file.write_text(manifest("flights"))
    assert run("apply", "-f", file).out == "stream demo/flights created\n"
    assert run("apply", "-f", file).out == "stream demo/flights unchanged\n"
    with file.open("a") as more:
        more.write("  access: {publish: [{serviceAccount: a}]}\n  push: {heartbeat: 2s}\n")
    configured = run("apply", "-f", file)
    assert (configured.status, configured.out) == (0, "stream demo/flights configured\n")
    assert "not in effect yet: demo/flights spec.access: planned" in configured.err
    assert "when they next start" in configured.err

    header, row = run("get", "streams", "-n", "demo").out.splitlines()
    assert header.split() == ["NAMESPACE", "NAME", "READY", "PHASE", "FRONTIER", "WRITERS", "SUBS", "AGE"]
    assert row.split()[:2] == ["demo", "flights"]
    assert run("get", "streams", "-n", "other").out == ""

    described = run("describe", "stream", "demo/flights").out
    for line in (
        "Generation:     2",
        "  push.heartbeat:             2s",
        "Segment 1:",
        "  spec.access: planned: service accounts",
    ):
        assert line in described
    assert run("delete", "-f", file).out == "stream demo/flights deleted\n"
    gone = run("describe", "stream", "demo/flights")
    assert (gone.status, gone.out) == (3, "")
    assert "epochal get streams" in gone.err


def test_a_wrong_manifest_changes_nothing(run, manifest) -> None:
    good = manifest("good", encoding="bytes")
    result = run("apply", "-f", "-", stdin=f"{good}---\n{good.replace('good', 'Bad')}  segmets: 1\n")
    assert (result.status, result.out) == (2, "")
    assert "document 2: metadata.name: must be lower-case letters" in result.err
    assert "document 2: spec.segmets: is not a field; did you mean 'segments'?" in result.err
    assert run("describe", "stream", "demo/good").status == 3


def test_what_cannot_change_is_reported(run, manifest, declared) -> None:
    stream = declared().removeprefix("demo/")
    changed = manifest(stream, encoding="json")
    result = run("apply", "-f", "-", stdin=changed)
    assert (result.status, result.out) == (2, "")
    assert "spec.payload.encoding: cannot change from msgpack to json" in result.err


def test_delete_goes_on_past_a_missing_stream(run, declared) -> None:
    stream = declared()
    result = run("delete", "stream", "demo/none", stream)
    assert (result.status, result.out) == (3, f"stream {stream} deleted\n")


@pytest.mark.parametrize("command", [["pub", "none", "-t", "1", "x"], ["sub", "none"], ["describe", "stream", "none"]])
def test_a_stream_that_does_not_exist_is_reported_at_once(run, command: list[str]) -> None:
    result = run(*command)
    assert (result.status, result.out) == (3, "")
    assert "default/none" in result.err
    assert "epochal get streams" in result.err


def test_publish_and_subscribe(run, declared, tmp_path: Path) -> None:
    stream = declared()
    assert run("pub", stream, "-t", "1", "-k", "JFK", '{"delay": 3}', '"text"', "--advance", "2").status == 0
    assert run("pub", stream, "-t", "2", "-k", "EWR", "[1]", "--topic", "t/x").status == 0
    assert run("pub", stream, "--finish").status == 0

    plain = run("sub", stream, "--since", "start", "--epochs")
    assert (plain.status, plain.out) == (0, '1\t{"delay": 3}\n1\t"text"\n2\t[1]\n')
    assert plain.err == "epoch 1 complete\nepoch 2 complete\n"

    lines = run("sub", stream, "--since", "start", "--epochs", "--json").out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"kind": "epoch", "time": 1, "records": [{"delay": 3}, "text"]},
        {"kind": "epoch", "time": 2, "records": [[1]]},
    ]
    events = [json.loads(line) for line in run("sub", stream, "--since", "start", "--json").out.splitlines()]
    (data,) = [event for event in events if event.get("topic") == "t/x"]
    assert (data.pop("segment"), data.pop("seq") >= 0) in (("0", True), ("1", True))
    assert data == {"kind": "data", "time": 2, "topic": "t/x", "key": "EWR", "records": [[1]]}
    assert events[-1] == {"kind": "frontier", "frontier": []}

    saved = tmp_path / "at.json"
    assert (
        run("sub", stream, "--since", "start", "--epochs", "--count", "1", "--save-cursor", saved).out.count("\n") == 2
    )
    assert run("sub", stream, "--since", saved, "--epochs").out == "2\t[1]\n"

    late = run("pub", stream, "-t", "3", '"x"')
    assert (late.status, late.out) == (1, "")
    assert "what to do: read it" in late.err
    assert "Complete" in run("describe", "stream", stream).out


def test_a_name_that_nearly_is_one_is_suggested(run, declared) -> None:
    stream = declared()
    namespace, name = stream.split("/")
    for given in (f"{namespace}/{name[:-3]}x{name[-2:]}", f"default/{name}"):
        result = run("sub", given)
        assert result.status == 3
        assert f"did you mean {stream}?" in result.err
    assert "did you mean" not in run("sub", f"{namespace}/quite-another").err


def test_a_frontier_is_printed_when_it_moves(run, declared) -> None:
    stream = declared(segments=4)
    assert run("pub", stream, "-t", "1", "1", "--advance", "2").status == 0
    assert run("pub", stream, "--finish").status == 0
    lines = [json.loads(line) for line in run("sub", stream, "--since", "start", "--json").out.splitlines()]
    frontiers = [line["frontier"] for line in lines if line["kind"] == "frontier"]
    assert frontiers[-1] == []
    assert all(one != other for one, other in itertools.pairwise(frontiers))


def test_what_a_reader_of_epochs_waits_for_is_said(run, declared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.cli.commands.sub.SAY_AFTER", 0.2)
    stream = declared(segments=1)
    assert run("pub", stream, "-t", "3", "1", "--advance", "3").status == 0
    result = run("sub", stream, "--since", "start", "--epochs", "--idle", "2")
    assert (result.status, result.out) == (0, "")
    waits = [line for line in result.err.splitlines() if line.startswith("waiting for the next complete epoch: ")]
    assert "segment 0 is at 3: it has had no writer" in waits[-1]
    assert len(waits) <= 2, "once, and once more where the catalog hears a moment later that the writer has left"


def test_a_file_that_is_missing_is_wrong_usage(run, declared, tmp_path: Path) -> None:
    missing = tmp_path / "missing.jsonl"
    for result in (run("pub", declared(), "-t", "1", "-f", missing), run("apply", "-f", missing)):
        assert (result.status, result.out) == (2, "")
        assert str(missing) in result.err


def test_the_count_is_exact_within_a_batch(run, declared) -> None:
    stream = declared("json")
    assert run("pub", stream, "-t", "0", "-k", "k", "1", "2", "3", "--finish").status == 0
    assert run("sub", stream, "--since", "start", "--count", "2").out == "0\t1\n0\t2\n"
    assert run("sub", stream, "--since", "start", "--count", "9", "--raw").out == "1\n2\n3\n"


def test_bytes_pass_through_pipes(declared, catalog: str) -> None:
    """What `sub --raw` prints is what `pub` read, also without a newline at the end, and from a file."""
    stream = declared("bytes")
    command = [console_script("epochal"), "pub", stream, "--catalog", catalog, "-t", "0", "-k", "k", "--finish"]
    subprocess.run(command, input="one\nzwö\n\nlast".encode(), check=True, timeout=PATIENCE)
    command = [console_script("epochal"), "sub", stream, "--catalog", catalog, "--since", "start", "--raw", "--epochs"]
    result = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE)
    assert result.stdout == "one\nzwö\n\nlast\n".encode()


def test_a_time_of_another_shape_is_refused_before_anything_is_sent(run, declared) -> None:
    stream = declared(shape="(int, int)")
    result = run("pub", stream, "-t", "5", '"x"')
    assert (result.status, result.out) == (2, "")
    assert "error: --time: '5' is no time; this stream's have the shape (int, int)" in result.err
    assert "error: --advance: 'x' is no time" in run("pub", stream, "--advance", "x").err
    assert run("pub", stream, "-t", "(1, 2)", '"x"', "--finish").status == 0
    assert run("sub", stream, "--since", "start", "--epochs").out == '(1, 2)\t"x"\n'


def test_a_complete_time_is_answered_with_where_to_look(run, declared) -> None:
    stream = declared(segments=1)
    assert run("pub", stream, "--advance", "6").status == 0
    late = run("pub", stream, "-t", "5", '"x"')
    assert (late.status, late.out) == (2, "")
    assert "what to do: `epochal get stream NAME` shows, as FRONTIER, the least times" in late.err


def test_what_is_no_cursor_is_refused(run, declared, tmp_path: Path) -> None:
    stream = declared()
    (tmp_path / "x").write_bytes(b"\xff{}")
    (tmp_path / "y").write_text("{}")
    for file in ("x", "y"):
        result = run("sub", stream, "--since", tmp_path / file)
        assert (result.status, result.out) == (2, ""), result.err
    missing = run("sub", stream, "--since", tmp_path / "none")
    assert missing.status == 2
    assert "--save-cursor" in missing.err


def test_ctrl_c_ends_a_subscription_with_130(declared, catalog: str) -> None:
    stream = declared()
    command = [console_script("epochal"), "sub", stream, "--catalog", catalog]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as sub:
        assert sub.stderr is not None
        sub.stderr.readline()  # the first frontier: it has joined
        sub.send_signal(signal.SIGINT)
        _, err = sub.communicate(timeout=PATIENCE)
    assert sub.returncode == 130
    assert b"Traceback" not in err
