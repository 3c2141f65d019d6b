"""Writers and readers of the chaos kit, in a pod, with a history that the kit's checker judges.

The actors and the checker are those of `tests/chaos`, unchanged. This module only brings them into a pod and their
history out of it. The test itself decides what is done to the stream meanwhile.
"""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.checker import check, counts
from tests.chaos.history import NEMESIS, Recorder, read
from tests.cluster.harness.kubernetes import Kubernetes, eventually
from tests.cluster.harness.places import ROOT
from tests.cluster.harness.pods import pod
from tests.cluster.harness.release import POD_PATIENCE
from tests.cluster.harness.toolbox import IMAGE

WRITERS = ("w1", "w2")
READERS = {"r1": "auto", "r2": "auto"}
"""Names, and the way that each takes: `direct`, `relay:NAME`, ...; empty: as the client has it."""
SPEC: dict[str, Any] = {
    "payload": {"encoding": "msgpack"},
    "segments": 3,
    # With this time-out no writer is lost, so an epoch that is aborted although no writer asked for that is a fault.
    "progress": {"minWriters": len(WRITERS), "writerTimeout": "10m"},
}
"""The stream that the kit's actors need."""
_KIT = ("history.py", "pipeline.py")
_HISTORY = "/tmp/history"
_MAIN = f"""
import json, multiprocessing, sys, time
from pathlib import Path
from tests.chaos import pipeline

def act(part, since, pause):
    pipeline.PAUSE = pause
    pipeline.write(part) if since is None else pipeline.read(part, since)

if __name__ == "__main__":
    url, stream, seed, pause, writers, readers = sys.argv[1:]
    directory = Path("{_HISTORY}")
    directory.mkdir(exist_ok=True)
    start = multiprocessing.get_context("spawn").Process

    def begin(name, since, via="auto"):
        part = pipeline.Part(url, stream, name, 0, directory, seed, via=via)
        actor = start(target=act, args=(part, since, float(pause)), name=name)
        actor.start()
        return actor

    actors = [begin(name, None) for name in json.loads(writers)]
    actors += [begin(name, "start", via) for name, via in json.loads(readers).items()]
    while any(actor.is_alive() for actor in actors):
        for asked in directory.glob("*.join"):
            asked.unlink()
            actors.append(begin(asked.stem, "start"))
        time.sleep(0.1)
    (directory / "ended").write_text(" ".join(f"{{each.name}}={{each.exitcode}}" for each in actors))
    time.sleep(86400)
"""


class Load:
    """Writers and readers of one stream, and readers that join later, each a process in one pod."""

    def __init__(
        self,
        cluster: Kubernetes,
        namespace: str,
        directory: Path,
        name: str = "load",
        *,
        image: str = IMAGE,
        pause: float = 0.3,
        writers: Sequence[str] = WRITERS,
        readers: Mapping[str, str] = READERS,
    ) -> None:
        """Nothing runs yet.

        Args:
            cluster: Where the pod is to be.
            namespace: The pod's namespace.
            directory: Where the history is put together; loads of one stream share it.
            name: The pod's name.
            image: Whose client the actors use.
            pause: Seconds between a writer's appends, at most.
            writers: Their names.
            readers: Theirs, each with its way.
        """
        self.cluster, self.namespace, self.directory, self.name = cluster, namespace, directory, name
        self._image, self._pause, self._writers, self._readers = image, pause, writers, readers
        self._joined: list[str] = []
        directory.mkdir(exist_ok=True)
        self._nemesis = Recorder(directory, NEMESIS)

    def start(self, stream: str, catalog: str) -> None:
        """Begin; returns when all of them work. `stream` is `NAMESPACE/NAME`."""
        sources = ROOT / "tests" / "chaos"
        files = {name: (sources / name).read_text() for name in _KIT} | {"main.py": _MAIN}
        kit = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.name}, "data": files}
        items = [{"key": name, "path": f"tests/chaos/{name}"} for name in _KIT] + [
            {"key": "main.py", "path": "main.py"}
        ]
        actors = json.dumps(self._writers), json.dumps(self._readers)
        container = {
            "image": self._image,
            "command": ["python", "/kit/main.py", catalog, stream, stream, str(self._pause), *actors],
            "env": [{"name": "PYTHONPATH", "value": "/kit"}],
            "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}, {"name": "kit", "mountPath": "/kit"}],
        }
        volumes = [
            {"name": "scratch", "emptyDir": {}},
            {"name": "kit", "configMap": {"name": self.name, "items": items}},
        ]
        document = pod(self.name, "", container=container, volumes=volumes)
        self.cluster.apply(kit, document, namespace=self.namespace)
        self.cluster.wait(f"pod/{self.name}", "condition=Ready", self.namespace, POD_PATIENCE)
        self.goes_on()

    def tell(self, op: str, **data: Any) -> None:
        """Record what is done to the actors. It is recorded on this machine, whose monotonic clock the pod shares."""
        self._nemesis.write(op, **data)

    def goes_on(self) -> None:
        """Wait until every reader was given three more epochs: then every writer has written as many."""
        before = self._given()
        eventually(
            lambda: all(now >= then + 3 for now, then in zip(self._given(), before, strict=True)), POD_PATIENCE, 1.0
        )

    def join(self) -> None:
        """Start one more reader, which begins at the start of the stream; returns when it was given an epoch."""
        name = f"late{len(self._joined)}"
        self._joined.append(name)
        self._run("touch", f"{_HISTORY}/{name}.join")
        eventually(lambda: self._given(name) != [0], POD_PATIENCE, 1.0)

    def finish(self) -> tuple[list[str], dict[str, Any]]:
        """Let the writers finish and the readers read to the end; returns what was broken, and how much happened."""
        self.tell("over")
        self._run("touch", f"{_HISTORY}/over")
        ended = eventually(self._ended, POD_PATIENCE, 1.0)
        for name in (*self._writers, *self._readers, *self._joined):
            (self.directory / f"{name}.jsonl").write_text(self._run("cat", f"{_HISTORY}/{name}.jsonl"))
        history = read(self.directory)
        broken = [f"{rule}: {detail}" for rule, detail in check(history)]
        broken += [f"{each} in place of 0" for each in ended.split() if not each.endswith("=0")]
        return broken, counts(history)

    def _ended(self) -> str:
        return self._run("sh", "-c", f"cat {_HISTORY}/ended || true")

    def _given(self, *names: str) -> list[int]:
        """How many epochs each of these readers was given; without names, each that was there from the start."""
        files = [f"{_HISTORY}/{name}.jsonl" for name in names or self._readers]
        look = f"mkdir -p {_HISTORY}; touch {' '.join(files)}; grep -Hc ',\"epoch\",' {' '.join(files)} || true"
        said = self._run("sh", "-c", look)
        return [int(line.rpartition(":")[2]) for line in said.split()]

    def _run(self, *command: str) -> str:
        return self.cluster.kubectl("exec", "-n", self.namespace, self.name, "--", *command)


def kill_9(document: dict[str, Any], program: str = "") -> None:
    """SIGKILL to the processes of a pod's containers, which run on this machine; its sandbox lives on.

    With `program`, only to those that have this word in their command.
    """
    killed = processes(document, program)
    assert killed, f"no process of pod {document['metadata']['uid']}"
    for pid in killed:
        os.kill(pid, signal.SIGKILL)


def processes(document: dict[str, Any], program: str = "") -> list[int]:
    """The processes of a pod's containers, or those of them that have this word in their command."""
    found = [(pid, _command(pid)) for pid in _processes(document["metadata"]["uid"])]
    return [pid for pid, words in found if words[0] not in ("", "/pause") and any(program in word for word in words)]


def _processes(uid: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            if uid in path.read_text():
                found.append(int(path.parent.name))
        except OSError:  # it has ended
            continue
    return found


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return [""]
