"""The custom resource definition of a Relay, derived from its model in the same way as that of a Stream."""

from epochal.resources.crd import (
    MOST_TEXT,
    Column,
    conditions,
    definition,
    holds_memory,
    name_rules,
    root,
    rule,
    schema_of,
)
from epochal.resources.relay import RelaySpec
from epochal.resources.spec import DIRECT, Object

RELAY_KIND = "Relay"

SPEC_RULES = (
    rule(
        "self.stream == oldSelf.stream",
        "it cannot change: a relay of another stream is another relay",
        ".stream",
        "FieldValueForbidden",
    ),
    rule(
        "!has(self.replicas) || !has(self.autoscaling)",
        "replicas and autoscaling cannot be together: leave one of them out",
        ".autoscaling",
    ),
    rule(
        "!has(self.autoscaling) || self.autoscaling.min <= self.autoscaling.max", "max is less than min", ".autoscaling"
    ),
    rule(
        "!has(self.autoscaling) || self.autoscaling.subscribersPerReplica <= self.capacity",
        "subscribersPerReplica is more than capacity, and a relay takes no more",
        ".autoscaling",
    ),
    rule(
        "self.advertise == '' || self.advertise.contains('{pod}') ||"
        " !has(self.autoscaling) && (!has(self.replicas) || self.replicas <= 1)",
        "is the same for all relays; each needs an address of its own: put {pod} in it",
        ".advertise",
    ),
    rule(
        holds_memory("resources.", "quantity(string(self.bufferBytes)).asApproximateFloat()"),
        "limits.memory does not hold bufferBytes, which each relay keeps in memory",
        ".resources",
    ),
)
ROOT_RULES = (
    *name_rules("relay"),
    rule(f"self.metadata.name != '{DIRECT}'", f"a relay cannot be called {DIRECT}: that means the publishers"),
    rule(
        f"self.spec.upstream != self.metadata.name || self.metadata.name == '{DIRECT}'",
        "a relay cannot follow itself: upstream is direct, or the name of another Relay",
        ".spec.upstream",
    ),
)


def relay_crd() -> Object:
    """The definition, JSON-safe."""
    spec = {**schema_of(RelaySpec, "What is declared about the relays."), "x-kubernetes-validations": list(SPEC_RULES)}
    schema = root(RELAY_KIND, "Relays of a stream, which pass it on to many subscribers.", spec, _status(), ROOT_RULES)
    return definition(
        RELAY_KIND, "rly", _columns(), schema, replicas=".spec.replicas", ready_replicas=".status.replicas"
    )


def _columns() -> list[Column]:
    ready, degraded = (f'.status.conditions[?(@.type=="{kind}")]' for kind in ("Ready", "Degraded"))
    return [
        ("Stream", "string", ".spec.stream", "The stream that is passed on", 0),
        ("Replicas", "integer", ".status.replicas", "Relays that there are", 0),
        ("Ready", "integer", ".status.readyReplicas", "Relays that serve subscribers", 0),
        ("Degraded", "string", f"{degraded}.status", "Whether something is wrong, also while relays serve", 0),
        ("Subscribers", "integer", ".status.subscribers", "Subscribers of all of them", 0),
        ("Age", "date", ".metadata.creationTimestamp", "Since it was created", 0),
        ("Reason", "string", f"{ready}.reason", "Why it is ready, or not", 1),
        ("Trouble", "string", f"{degraded}.reason", "What is wrong; AsExpected where nothing is", 1),
        ("Upstream", "string", ".spec.upstream", "What they follow", 1),
    ]


def _status() -> Object:
    number = {"type": "integer", "format": "int64", "minimum": 0}
    return {
        "type": "object",
        "description": "What the operator has seen of the relays.",
        "properties": {
            "observedGeneration": {**number, "description": "The metadata.generation that the status is of."},
            "replicas": {**number, "description": "How many relays there are."},
            "readyReplicas": {**number, "description": "How many of them serve subscribers."},
            "subscribers": {**number, "description": "Their subscribers, as the relays last reported to the catalog."},
            "selector": {
                "type": "string",
                "description": "The label selector of the relays' pods.",
                "maxLength": MOST_TEXT,
            },
            "conditions": conditions("Ready", "Degraded"),
        },
    }
