"""Whether an object is as it was drawn.

An API server fills in defaults, and others add fields of their own: what is compared is what was drawn, and nothing
else. A comparison that finds a difference where there is none would write for ever.
"""

from typing import Any

from epochal.resources.cluster.names import Object
from epochal.resources.quantities import parse_bytes

_WHOLE = frozenset(("selector", "podSelector", "ingress"))
"""What is compared whole: with a label more a selector selects less, such as nothing; with a peer more a policy lets
more in. All of it is drawn, no default is left to the API server."""


def covers(drawn: Any, live: Any) -> bool:
    """Whether everything that was drawn is there with the same values; of a list, some item for each that was drawn.

    >>> covers({"a": [{"name": "x"}]}, {"a": [{"name": "y"}, {"name": "x", "port": 1}], "b": 2})
    True
    >>> covers({"selector": {"app": "x"}}, {"selector": {"app": "x", "more": "y"}})
    False
    >>> covers({"ingress": [{"from": [{"podSelector": {}}]}]}, {"ingress": [{"from": [{"podSelector": {}}]}, {}]})
    False
    """
    if isinstance(drawn, dict):
        return isinstance(live, dict) and all(_covers_field(name, value, live) for name, value in drawn.items())
    if isinstance(drawn, list):
        return isinstance(live, list) and all(any(covers(item, other) for other in live) for item in drawn)
    return bool(drawn == live)


def _covers_field(name: str, drawn: Any, live: Object) -> bool:
    if name not in live:
        return _is_nothing(drawn)
    return bool(drawn == live[name]) if name in _WHOLE else covers(drawn, live[name])


def _is_nothing(value: Any) -> bool:
    """Whether an API server leaves this out: numbers of zero and what is empty."""
    return value in (0, "", False) or value == {} or value == []


def grown(drawn: Object, live: Object) -> Object | None:
    """The claim with its new size, if that is larger than what it requests now; a claim never shrinks.

    >>> claim = lambda size: {"metadata": {"name": "a", "namespace": "b"}, "apiVersion": "v1", "kind": "X",
    ...                       "spec": {"resources": {"requests": {"storage": size}}}}
    >>> grown(claim("2Gi"), claim("1024Mi"))["spec"], grown(claim("1Gi"), claim("2Gi"))
    ({'resources': {'requests': {'storage': '2Gi'}}}, None)
    """
    sizes = [parse_bytes(item["spec"]["resources"]["requests"]["storage"]) for item in (drawn, live)]
    if sizes[0] <= sizes[1]:
        return None
    named = {name: drawn["metadata"][name] for name in ("name", "namespace")}
    spec = {"resources": {"requests": {"storage": drawn["spec"]["resources"]["requests"]["storage"]}}}
    return {"apiVersion": drawn["apiVersion"], "kind": drawn["kind"], "metadata": named, "spec": spec}


def differing(drawn: Object, live: Object) -> set[str]:
    """The fields of the manifest that a claim is not as, and never will be: a smaller size, another storage class.

    >>> claim = lambda size, kind: {"spec": {"resources": {"requests": {"storage": size}}, "storageClassName": kind}}
    >>> sorted(differing(claim("1Gi", "fast"), claim("2Gi", "slow")))
    ['spec.history.storage.size', 'spec.history.storage.storageClassName']
    >>> differing(claim("2Gi", "fast"), claim("1Gi", "fast"))
    set()
    """
    sizes = [parse_bytes(item["spec"]["resources"]["requests"]["storage"]) for item in (drawn, live)]
    found = {"spec.history.storage.size"} if sizes[0] < sizes[1] else set()
    chosen = drawn["spec"].get("storageClassName")
    if chosen is not None and chosen != live["spec"].get("storageClassName"):
        found.add("spec.history.storage.storageClassName")
    return found
