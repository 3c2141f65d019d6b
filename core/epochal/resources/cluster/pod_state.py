"""Whether a pod serves, and why not, in words: from what Kubernetes says of its containers, and of where it could run.

The same trouble is said in the same words at each look, so that a status is not written again and again: no counters,
no pauses that grow.
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
"""What a container waits for in vain until a person acts."""
_CRASHED_LATELY = timedelta(minutes=10)
"""Twice the longest pause that a kubelet makes between two starts."""
_MOST = 200
"""Characters of what others say."""


def is_ready(pod: Object) -> bool:
    """Whether the pod says that it is ready to serve."""
    conditions = pod.get("status", {}).get("conditions", ())
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    return ready and not is_terminating(pod)


def has_ended(pod: Object) -> bool:
    """Whether the pod runs no more and will not again: failed, evicted or terminating."""
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def trouble(pod: Object, now: datetime, patience: float) -> str:
    """Why a pod will not become ready by itself, as far as can be seen; empty where it may.

    `patience`: seconds after which a pod that is not ready counts as stuck, whatever it does.
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
    """Why a pod cannot start, or starts again and again; empty where neither is so."""
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
    """Whether it runs between two of several crashes: then it waits for nothing just now."""
    ended = (container.get("lastState") or {}).get("terminated") or {}
    finished = ended.get("finishedAt")
    lately = isinstance(finished, str) and now - _time(finished, now) < _CRASHED_LATELY
    return lately and int(container.get("restartCount") or 0) >= 2 and not container.get("ready")


def _ends(pod: Object) -> Iterator[str]:
    return (end for container in _containers(pod) if (end := _end(container)))


def _end(container: Object) -> str:
    """How a container ended last: the reason, the exit code or the signal, and its last words."""
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
    """Why a pod runs no more and will not again, such as an eviction; empty where Kubernetes does not say."""
    status = pod.get("status", {})
    said = ": ".join(part for part in (status.get("reason"), _shortened(status.get("message"))) if part)
    return "; ".join(part for part in (said, *_ends(pod)) if part)


def _unscheduled(pod: Object) -> str:
    for item in _conditions_of(pod):
        if item["type"] == "PodScheduled" and item["status"] == "False":
            return f"no node takes it: {_shortened(item.get('message'))}"
    return ""


def waits_for(pod: Object) -> str:
    """What a pod that is not ready yet waits for, as far as Kubernetes says; empty where it does not."""
    if is_ready(pod):
        return ""
    return "; ".join(part for part in (_unscheduled(pod), *_ends(pod)) if part)


def _unready_since(pod: Object, now: datetime) -> datetime:
    """When it stopped being ready; a pod that never was has not been since it was made."""
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
