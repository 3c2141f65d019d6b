"""Whether a pod is ready, and why not, as text: from the statuses of its containers and from the scheduler.

The same trouble gives the same text each time, without counters or growing pauses. Otherwise the status of the stream
would change, and be written again, at every reconcile.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from epochal.resources.cluster.stream import is_terminating
from epochal.resources.spec import Object

_CRASHES = "CrashLoopBackOff"
_HOPELESS = frozenset(
    (
        _CRASHES,
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    )
)
"""Reasons for which a container waits until a person acts."""
_CRASHED_LATELY = timedelta(minutes=10)
"""Twice the longest pause of a kubelet between two starts of a container."""
_MOST = 200
"""Characters that are kept of a message from Kubernetes or a container."""


def is_ready(pod: Object) -> bool:
    """Whether the pod has the condition Ready and is not terminating."""
    conditions = pod.get("status", {}).get("conditions", ())
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    return ready and not is_terminating(pod)


def has_ended(pod: Object) -> bool:
    """Whether the pod has stopped for good, as after an eviction: its phase is Failed or Succeeded."""
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def trouble(pod: Object, now: datetime, patience: float) -> str:
    """Why a pod will probably not become ready by itself; empty if it still may.

    `patience`: seconds after which a pod that is not ready counts as stuck, whatever its state.
    """
    if is_ready(pod):
        return ""
    if why := hopeless(pod, now):
        return why
    if (now - _unready_since(pod, now)).total_seconds() <= patience:
        return ""
    said = "; ".join(part for part in (_unscheduled(pod), *_ends(pod)) if part)
    return f"(for more than {patience:.0f} s{f', {said}' if said else ''})"


def hopeless(pod: Object, now: datetime) -> str:
    """Why a container of the pod cannot start, or crashes again and again; empty if neither is the case."""
    for container in _containers(pod):
        waiting = container.get("state", {}).get("waiting") or {}
        reason = waiting.get("reason")
        if reason == _CRASHES or (_crashed_again(container, now) and not is_ready(pod)):
            return f"({_CRASHES}: {_end(container) or 'it ends again and again'})"
        if reason in _HOPELESS:
            said = _shortened(waiting.get("message"))
            return f"({reason}{f': {said}' if said else ''})"
    return ""


def _containers(pod: Object) -> Iterator[Object]:
    status = pod.get("status", {})
    for kind in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(kind) or ()


def _crashed_again(container: Object, now: datetime) -> bool:
    """Whether a container crashed repeatedly and was started again: between two crashes it has no waiting reason."""
    ended = (container.get("lastState") or {}).get("terminated") or {}
    finished = ended.get("finishedAt")
    lately = isinstance(finished, str) and now - _time(finished, now) < _CRASHED_LATELY
    return lately and int(container.get("restartCount") or 0) >= 2 and not container.get("ready")


def _ends(pod: Object) -> Iterator[str]:
    return (end for container in _containers(pod) if (end := _end(container)))


def _end(container: Object) -> str:
    """How a container last ended: the reason, the exit code or signal, and the last line of its log."""
    ended = next(
        (found for state in ("state", "lastState") if (found := (container.get(state) or {}).get("terminated"))), None
    )
    if ended is None:
        return ""
    reason = str(ended.get("reason") or "Error")
    how = f"signal {ended['signal']}" if ended.get("signal") else f"exit code {ended.get('exitCode')}"
    last = _last_line(ended.get("message"))
    return f"{container.get('name', 'a container')} ended with {reason}, {how}{f': {last}' if last else ''}"


def why_ended(pod: Object) -> str:
    """Why a pod has stopped for good, such as an eviction; empty if Kubernetes does not say."""
    status = pod.get("status", {})
    said = ": ".join(part for part in (status.get("reason"), _shortened(status.get("message"))) if part)
    return "; ".join(part for part in (said, *_ends(pod)) if part)


def _unscheduled(pod: Object) -> str:
    for item in _conditions_of(pod):
        if item["type"] == "PodScheduled" and item["status"] == "False":
            return f"no node takes it: {_shortened(item.get('message'))}"
    return ""


def waits_for(pod: Object) -> str:
    """What a pod that is not ready waits for; empty if it is ready or Kubernetes does not say."""
    if is_ready(pod):
        return ""
    return "; ".join(part for part in (_unscheduled(pod), *_ends(pod)) if part)


def _unready_since(pod: Object, now: datetime) -> datetime:
    """When the pod stopped being ready, or when it was created if it never was ready."""
    created = _time(pod["metadata"].get("creationTimestamp"), now)
    times = [item.get("lastTransitionTime") for item in _conditions_of(pod) if item["type"] == "Ready"]
    return _time(times[0], created) if times else created


def _conditions_of(pod: Object) -> Sequence[Object]:
    return pod.get("status", {}).get("conditions") or ()


def _last_line(text: Any) -> str:
    lines = [line.strip() for line in str(text or "").splitlines() if line.strip()]
    return _shortened(lines[-1]) if lines else ""


def _shortened(text: Any) -> str:
    return " ".join(str(text or "").split())[:_MOST]


def _time(text: Any, default: datetime) -> datetime:
    return datetime.fromisoformat(text) if isinstance(text, str) else default
