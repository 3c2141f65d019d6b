"""What pods print as JSON lines, as events of one queue: followed while they run, each line once.

A connection to a log that breaks is opened again here; what the events mean is up to the demo.
"""

import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from tests.cluster.harness.building import kubectl
from tests.cluster.harness.kubernetes import KubectlError, Kubernetes

_AGAIN = 0.5
_LOOK = 2.0
_SHOWN = 25
Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FollowedPod:
    """A pod that is followed until it has reported the event `last`."""

    pod: str
    last: str


class Logs:
    """The events of some pods, while entered."""

    def __init__(self, cluster: Kubernetes, namespace: str) -> None:
        """Follow no pod yet."""
        self._cluster = cluster
        self._namespace = namespace
        self._reported: queue.Queue[tuple[str, Event]] = queue.Queue()
        self._open: dict[str, FollowedPod] = {}
        self._ended = threading.Event()
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for process in list(self._processes.values()):
            process.terminate()
        for thread in self._threads:
            thread.join()

    def follow(self, follower: FollowedPod) -> None:
        """Follow this one too."""
        self._open[follower.pod] = follower
        self._threads.append(threading.Thread(target=self._read, args=(follower,), daemon=True))
        self._threads[-1].start()

    def events(self, deadline: float) -> Iterator[tuple[str, Event]]:
        """Pod and event, until each pod has reported its last; `failed` with a reason `why` if one never will."""
        while self._open:
            try:
                pod, event = self._reported.get(timeout=_LOOK)
            except queue.Empty:
                if (why := self._failure(deadline)) is not None:
                    yield "", {"event": "failed", "why": why}
                continue
            if self._open[pod].last == event["event"]:
                del self._open[pod]
            yield pod, event

    def _failure(self, deadline: float) -> str | None:
        """Why one of the pods that still have events to report never will."""
        late = time.monotonic() > deadline
        for pod in self._open:
            status = self._cluster.get("pod", pod, namespace=self._namespace)["status"]
            phase = status["phase"]
            if phase == "Failed" or late:
                what = f"failed ({_reasons(status)})" if phase == "Failed" else f"is {phase} and was not done in time"
                return f"the pod {pod} {what}; the end of its log:\n{self._end_of(pod)}"
        return None

    def _end_of(self, pod: str) -> str:
        try:
            return self._cluster.kubectl("logs", "--namespace", self._namespace, pod, f"--tail={_SHOWN}")
        except KubectlError as error:
            return str(error)

    def _read(self, follower: FollowedPod) -> None:
        """Read the log to the last event, from its beginning whenever the connection ended; lines read are skipped."""
        command = [str(kubectl()), "logs", "--follow", "--namespace", self._namespace, follower.pod]
        read = 0
        while not self._ended.wait(_AGAIN):
            with subprocess.Popen(
                command,
                env=self._cluster.environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            ) as process:
                self._processes[follower.pod] = process
                assert process.stdout is not None
                for number, line in enumerate(process.stdout):
                    if not line.endswith("\n"):
                        break  # cut; it is read again
                    if number < read:
                        continue
                    read += 1
                    if line.startswith('{"event": '):
                        event = json.loads(line)
                        self._reported.put((follower.pod, event))
                        if event["event"] == follower.last:
                            process.terminate()
                            return
                process.terminate()


def _reasons(status: Event) -> str:
    """Why a pod failed, like OOMKilled, as far as Kubernetes knows."""
    ended = [each["state"].get("terminated", {}) for each in status.get("containerStatuses", [])]
    reasons = [each["reason"] for each in ended if "reason" in each]
    return ", ".join(reasons) or status.get("reason", "it does not say why")
