"""Finds manifests that no cluster can ever run: each field is valid alone, but together they ask for the impossible.

Separate from the models, which must read every manifest that an earlier version accepted: it is stored, and its stream
keeps running. Only a new or changed manifest is refused. The custom resource definitions express the same as rules and
patterns, so that `kubectl apply` refuses it too; `tests/resources/test_feasible.py` lists the exceptions.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from epochal.errors import ManifestError, Problem
from epochal.resources.manifest import StreamManifest
from epochal.resources.quantities import format_bytes, thousandths
from epochal.resources.relay import RelayManifest, RelaySpec
from epochal.resources.spec import (
    ACCOUNT_PATTERN,
    LABEL_KEY_PATTERN,
    LABEL_VALUE_PATTERN,
    LEAST_MEMORY,
    SUBDOMAIN_PATTERN,
    PublishersSpec,
    ResourcesSpec,
    StreamSpec,
    Toleration,
)

_STANDARD = frozenset(("cpu", "memory", "ephemeral-storage"))
_LABEL = "letters, digits, '-', '_' and '.', at most 63, beginning and ending with a letter or digit"


def check_feasible(*manifests: StreamManifest | RelayManifest) -> None:
    """Raise `ManifestError` with all problems if one of the manifests can never run."""
    problems = []
    for manifest in manifests:
        where = f"{manifest.kind} {manifest.qualified}: " if len(manifests) > 1 else ""
        found = _of_stream(manifest.spec) if isinstance(manifest, StreamManifest) else _of_relay(manifest.spec)
        problems += [replace(problem, path=where + problem.path) for problem in found]
    if problems:
        names = ", ".join(f"{manifest.kind.lower()} '{manifest.name}'" for manifest in manifests[:3])
        raise ManifestError(f"what is declared can never run: {names}", problems)


def _of_stream(spec: StreamSpec) -> list[Problem]:
    kept = "the history that each publisher keeps in memory"
    return [
        *_history(spec),
        *_accounts(spec),
        *_pods(spec.publishers, "spec.publishers", _kept_in_memory(spec), kept),
    ]


def _of_relay(spec: RelaySpec) -> list[Problem]:
    return _pods(spec, "spec", spec.buffer_bytes, "bufferBytes, which each relay keeps in memory")


def _pods(wishes: PublishersSpec | RelaySpec, path: str, needed: int, what: str) -> list[Problem]:
    """Problems of the pods' resources and scheduling. `needed`: bytes of memory for `what`, in addition to the code."""
    found = [*_resources(wishes.resources, f"{path}.resources", needed, what)]
    found += _node_selector(wishes.node_selector, f"{path}.nodeSelector")
    for index, toleration in enumerate(wishes.tolerations):
        found += _toleration(toleration, f"{path}.tolerations[{index}]")
    return found


def _history(spec: StreamSpec) -> Iterator[Problem]:
    storage, kept = spec.history.storage, spec.history.retention.bytes
    if storage is None:
        return
    if spec.history.policy != "memory" and kept > storage.size:
        reason = f"{format_bytes(kept)} is more than the volume has: storage.size is {format_bytes(storage.size)}"
        yield Problem("spec.history.retention.bytes", reason, "the volume would be full before anything is dropped")
    name = storage.storage_class_name
    if name is not None and not re.fullmatch(SUBDOMAIN_PATTERN, name, re.ASCII):
        yield Problem(
            "spec.history.storage.storageClassName",
            f"'{name[:40]}' cannot name a storage class",
            "lower-case letters, digits, '-' and '.'",
        )


def _accounts(spec: StreamSpec) -> Iterator[Problem]:
    for field in ("publish", "subscribe"):
        for index, account in enumerate(getattr(spec.access, field)):
            name = account.service_account
            if not re.fullmatch(ACCOUNT_PATTERN, name, re.ASCII):
                yield Problem(
                    f"spec.access.{field}[{index}].serviceAccount",
                    f"'{name[:40]}' cannot name a service account",
                    "lower-case letters, digits, '-' and '.'; or * for every one of the namespace",
                )


def _kept_in_memory(spec: StreamSpec) -> int:
    """Bytes of history that a publisher has in memory when all its segments are full."""
    history = spec.history
    if history.policy != "memory" or history.retention.mode == "none":
        return 0
    return min(spec.publishers.segments_per_pod or 1, spec.segments) * history.retention.bytes


def _resources(declared: ResourcesSpec, path: str, needed: int, what: str) -> Iterator[Problem]:
    requests, limits = declared.requests or {}, declared.limits or {}
    for part, amounts in (("requests", requests), ("limits", limits)):
        for name in amounts:
            if name not in _STANDARD and "/" not in name and not name.startswith("hugepages-"):
                yield Problem(f"{path}.{part}", f"'{name[:40]}' is no resource", "cpu, memory, or DOMAIN/NAME")
    for name in requests.keys() & limits.keys():
        if _amount(requests[name]) > _amount(limits[name]):
            reason = f"{requests[name]} is more than the limit, {limits[name]}"
            yield Problem(f"{path}.requests.{name}", reason, "a limit is at least what is requested")
    if "memory" not in limits:
        return
    limit, at = _amount(limits["memory"]), f"{path}.limits.memory"
    if limit < LEAST_MEMORY * 1000:
        yield Problem(at, f"no process of Epochal starts with {limits['memory']}", f"at least {_LEAST}")
    elif limit < (LEAST_MEMORY + needed) * 1000:
        least = format_bytes(LEAST_MEMORY + needed)
        yield Problem(at, f"{limits['memory']} does not hold {what} ({format_bytes(needed)})", f"at least {least}")


_LEAST = format_bytes(LEAST_MEMORY)


def _amount(text: str) -> int:
    """An amount in thousandths of its unit."""
    return thousandths(text) or 0


def _node_selector(labels: dict[str, str], path: str) -> Iterator[Problem]:
    for name, value in labels.items():
        if not re.fullmatch(LABEL_KEY_PATTERN, name, re.ASCII):
            yield Problem(path, f"'{name[:40]}' cannot be the name of a label", f"[DOMAIN/]NAME: {_LABEL}")
        elif not re.fullmatch(LABEL_VALUE_PATTERN, value, re.ASCII):
            yield Problem(f"{path}.{name}", f"'{value[:40]}' cannot be the value of a label", _LABEL)


def _toleration(given: Toleration, path: str) -> Sequence[Problem]:
    found = []
    if given.operator == "Exists" and given.value:
        found.append(Problem(f"{path}.value", "has no meaning for the operator Exists", "leave it out"))
    if given.operator != "Exists" and not given.key:
        found.append(Problem(f"{path}.key", "is missing", "a key, or operator: Exists for every taint"))
    if given.toleration_seconds is not None and given.effect != "NoExecute":
        found.append(Problem(f"{path}.tolerationSeconds", "needs effect: NoExecute"))
    if given.key and not re.fullmatch(LABEL_KEY_PATTERN, given.key, re.ASCII):
        found.append(Problem(f"{path}.key", f"'{given.key[:40]}' cannot be a key", f"[DOMAIN/]NAME: {_LABEL}"))
    if given.value and not re.fullmatch(LABEL_VALUE_PATTERN, given.value, re.ASCII):
        found.append(Problem(f"{path}.value", f"'{given.value[:40]}' cannot be a value", _LABEL))
    return found
