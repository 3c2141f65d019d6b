"""What `down` removes, of starts that were cut off at any point, and whose it leaves alone. No node has to be there."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.harness import apiserver, node, removal
from tests.cluster.harness.kubernetes import eventually
from tests.cluster.harness.places import CACHE, LOGS
from tests.cluster.harness.programs import running_with, started_at
from tests.cluster.harness.removal import RemainsError
from tests.cluster.harness.settings import Layout

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root makes links and control groups")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A place for a node, with nothing left of it afterwards."""
    place = CACHE / f"removal-{os.getpid()}"
    yield place
    node.down(place)
    place.with_suffix(".lock").unlink(missing_ok=True)
    shutil.rmtree(LOGS / place.name, ignore_errors=True)


def cut_off(directory: Path) -> node.Node:
    """A node whose start went as far as its first process, which waits for the link."""
    directory.mkdir(parents=True)
    layout = Layout(directory, node._reserve_link(directory))
    return node._spawn(layout, Path("kube"))


def there(made: node.Node) -> list[str]:
    """What of a node is on the machine."""
    directory = made.layout.directory
    files = [directory, node._state_path(directory), *removal.groups(made.layout.name)]
    found = [str(path) for path in files if path.exists()]
    found += [f"process {pid}" for pid in running_with(lambda words: str(directory) in words)]
    return found + ([] if removal.owner(made.layout.name) is None else [made.layout.name])


def test_a_start_that_was_cut_off_leaves_nothing_behind(directory: Path) -> None:
    made = cut_off(directory)
    assert len(there(made)) >= 6, "nothing is shown below"
    node.down(directory)
    assert there(made) == []


def test_nothing_is_left_of_a_start_that_was_cut_off_before_it_wrote_its_state(directory: Path) -> None:
    made = cut_off(directory)
    node._state_path(directory).unlink()
    node.down(directory)
    assert there(made) == []


def test_a_frozen_process_ends_too(directory: Path) -> None:
    """A container that is being paused or removed by runc is frozen for that time."""
    made = cut_off(directory)
    freezers = [
        (group / file, value)
        for group in removal.groups(made.layout.name)
        for file, value in (("freezer.state", "FROZEN"), ("cgroup.freeze", "1"))
        if (group / file).exists() and (group / "cgroup.procs").read_text()
    ]
    if not freezers:
        pytest.skip("no control group freezes here")
    for file, value in freezers:
        file.write_text(value)
    node.down(directory)
    assert there(made) == []


def test_a_number_that_is_another_nodes_by_now_is_left_alone(directory: Path) -> None:
    """After the machine has started anew, an old state names a number that anybody may have taken meanwhile."""
    other = directory.with_name(f"{directory.name}-other")
    owned = cut_off(other)
    try:
        before = there(owned)
        directory.mkdir()
        node._State(owned.layout.number, owned.pid, 1).write(directory)  # a process that started at another time
        node.down(directory)
        assert there(owned) == before
        assert not directory.exists()
        assert not node._state_path(directory).exists()
    finally:
        node.down(other)
        shutil.rmtree(LOGS / other.name, ignore_errors=True)
    assert there(owned) == []


def test_what_cannot_be_removed_is_named_and_all_else_is_removed(directory: Path) -> None:
    made = cut_off(directory)
    busy = directory / "busy"
    busy.mkdir()
    (directory / "file").touch()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", busy], check=True)
    try:
        with pytest.raises(RemainsError, match=r"could not be removed:\n.*busy"):
            node.down(directory)
        assert there(made) == [str(directory), str(node._state_path(directory))]
        assert list(directory.iterdir()) == [busy]
    finally:
        subprocess.run(["umount", busy], check=True)
    node.down(directory)
    assert there(made) == []


def test_what_does_not_end_is_named(directory: Path) -> None:
    """A process of somebody else keeps the control group; it is not ended, for it is not the node's."""
    made = cut_off(directory)
    with subprocess.Popen(["sleep", "inf"]) as stranger:
        try:
            group = removal.groups(made.layout.name)[0]
            (group / "cgroup.procs" if (group / "cgroup.procs").exists() else group).write_text(str(stranger.pid))
            with pytest.raises(RemainsError, match=rf"control group {group} with the processes .*\b{stranger.pid}\b"):
                node.down(directory, timeout=0)  # load: it is tried once, whatever the time
            assert stranger.poll() is None
        finally:
            stranger.kill()
    node.down(directory)
    assert there(made) == []


def test_an_api_server_whose_start_was_cut_off_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(apiserver, "CACHE", tmp_path)
    monkeypatch.setattr(apiserver, "_STATE", tmp_path / "api.json")
    data = tmp_path / "api" / "standing" / "etcd"
    (program := tmp_path / "etcd").symlink_to(Path(sys.executable).resolve())
    waits = "import signal; signal.pause()"
    with subprocess.Popen([program, "-c", waits, f"--data-dir={data}"]) as left:
        # A process has no command line yet at the moment at which it has begun.
        assert eventually(lambda: running_with(lambda words: words[0] == str(program))) == {
            left.pid: started_at(left.pid)
        }
        apiserver.down()
        assert started_at(left.pid) is None
