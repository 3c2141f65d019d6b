"""Writers and readers of the chaos kit, in a pod, with a history that the kit's checker judges.

The actors and the checker are those of `tests/chaos`, untouched; here is only how they get into a pod and their history
out of it. Apart from what is done to the stream meanwhile, which is the test's part.
"""

import os
import signal
from pathlib import Path
from typing import Any

from tests.chaos.checker import check, counts
from tests.chaos.history import NEMESIS, Recorder, read
from tests.cluster.harness.kubernetes import Kubernetes, eventually
from tests.cluster.harness.places import ROOT
from tests.cluster.harness.pods import pod
from tests.cluster.harness.release import PATIENCE
from tests.cluster.harness.toolbox import IMAGE

WRITERS = ("w1", "w2")
READERS = ("r1", "r2")
SPEC: dict[str, Any] = {
    "payload": {"encoding": "msgpack"},
    "segments": 3,
    # Nobody may be given up: whatever is aborted that no writer asked for is a fault.
    "progress": {"minWriters": len(WRITERS), "writerTimeout": "10m"},
}
"""What the kit's actors need of a stream."""
_KIT = ("history.py", "pipeline.py")
_HISTORY = "/tmp/history"
_MAIN = f"""
import multiprocessing, sys, time
from pathlib import Path
from tests.chaos import pipeline

PAUSE = 0.3

def act(part, since):
    pipeline.PAUSE = PAUSE
    pipeline.write(part) if since is None else pipeline.read(part, since)

if __name__ == "__main__":
    url, stream, seed = sys.argv[1:]
    directory = Path("{_HISTORY}")
    directory.mkdir(exist_ok=True)
    start = multiprocessing.get_context("spawn").Process
    parts = [(name, None) for name in {WRITERS}] + [(name, "start") for name in {READERS}]
    actors = [start(target=act, args=(pipeline.Part(url, stream, n, 0, directory, seed), s), name=n) for n, s in parts]
    for actor in actors:
        actor.start()
    for actor in actors:
        actor.join()
    (directory / "ended").write_text(" ".join(f"{{each.name}}={{each.exitcode}}" for each in actors))
    time.sleep(86400)
"""


class Load:
    """Two writers and two readers of one stream, each a process in one pod."""

    def __init__(self, cluster: Kubernetes, namespace: str, directory: Path, name: str = "load") -> None:
        """`directory`: where the history is put together."""
        self.cluster, self.namespace, self.directory, self.name = cluster, namespace, directory, name
        self._nemesis = Recorder(directory, NEMESIS)

    def start(self, stream: str, catalog: str) -> None:
        """Begin; returns when everybody works. `stream` is `NAMESPACE/NAME`."""
        sources = ROOT / "tests" / "chaos"
        files = {name: (sources / name).read_text() for name in _KIT} | {"main.py": _MAIN}
        kit = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.name}, "data": files}
        items = [{"key": name, "path": f"tests/chaos/{name}"} for name in _KIT] + [
            {"key": "main.py", "path": "main.py"}
        ]
        container = {
            "image": IMAGE,
            "command": ["python", "/kit/main.py", catalog, stream, stream],
            "env": [{"name": "PYTHONPATH", "value": "/kit"}],
            "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}, {"name": "kit", "mountPath": "/kit"}],
        }
        volumes = [
            {"name": "scratch", "emptyDir": {}},
            {"name": "kit", "configMap": {"name": self.name, "items": items}},
        ]
        document = pod(self.name, "", container=container, volumes=volumes)
        self.cluster.apply(kit, document, namespace=self.namespace)
        self.cluster.wait(f"pod/{self.name}", "condition=Ready", self.namespace, PATIENCE)
        self.goes_on()

    def tell(self, op: str, **data: Any) -> None:
        """Write down what is done to others; on this machine, whose monotonic clock the pod shares."""
        self._nemesis.write(op, **data)

    def goes_on(self) -> None:
        """Wait until every reader has been given three more epochs than now, so every writer has written as many."""
        before = self._given()
        eventually(lambda: all(now >= then + 3 for now, then in zip(self._given(), before, strict=True)), PATIENCE, 1.0)

    def finish(self) -> tuple[list[str], dict[str, Any]]:
        """Have the writers finish and the readers read to the end; what was broken, and how much happened."""
        self.tell("over")
        self._run("touch", f"{_HISTORY}/over")
        ended = eventually(self._ended, PATIENCE, 1.0)
        for name in (*WRITERS, *READERS):
            (self.directory / f"{name}.jsonl").write_text(self._run("cat", f"{_HISTORY}/{name}.jsonl"))
        history = read(self.directory)
        broken = [f"{rule}: {detail}" for rule, detail in check(history)]
        broken += [f"{each} in place of 0" for each in ended.split() if not each.endswith("=0")]
        return broken, counts(history)

    def _ended(self) -> str:
        return self._run("sh", "-c", f"cat {_HISTORY}/ended || true")

    def _given(self) -> list[int]:
        """How many epochs each reader was given."""
        files = [f"{_HISTORY}/{name}.jsonl" for name in READERS]
        said = self._run(
            "sh", "-c", f"mkdir -p {_HISTORY}; touch {' '.join(files)}; grep -c ',\"epoch\",' {' '.join(files)} || true"
        )
        return [int(line.rpartition(":")[2]) for line in said.split()]

    def _run(self, *command: str) -> str:
        return self.cluster.kubectl("exec", "-n", self.namespace, self.name, "--", *command)


def kill_9(document: dict[str, Any]) -> None:
    """SIGKILL to the processes of a pod's containers, which run on this machine; its sandbox lives on."""
    uid = document["metadata"]["uid"]
    killed = [pid for pid in _processes(uid) if _command(pid) not in ("", "/pause")]
    assert killed, f"no process of pod {uid}"
    for pid in killed:
        os.kill(pid, signal.SIGKILL)


def _processes(uid: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            if uid in path.read_text():
                found.append(int(path.parent.name))
        except OSError:  # it has ended
            continue
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
    except OSError:
        return ""
