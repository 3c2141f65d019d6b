"""What could not be done in one look at a stream, and what is left alone for that.

Apart from the reconciling because one refusal must not stop the rest: a volume that may not grow is no reason to leave
a lost pod unmade. But a pod is not made on a volume that was to be made and turned out to be there: whose it is shows
the next plan.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from epochal.resources.cluster import Action, Create
from epochal.resources.cluster.names import Object
from epochal.resources.cluster.planning import claims_of

_MOST_ALIKE = 8
"""So many refusals of one kind are enough for one look: a quota refuses a thousand pods one by one."""
_SHOWN = 3


@dataclass(slots=True)
class Refusals:
    """The actions that were refused, with the API server's words, and those that met something else than was known."""

    told: list[tuple[Action, str]] = field(default_factory=list)
    otherwise: list[Action] = field(default_factory=list)

    def add(self, action: Action, message: str) -> None:
        """This one was refused."""
        self.told.append((action, message))

    def stop(self, action: Action) -> bool:
        """Whether this one is to wait: it needs what could not be made, or enough of its like were refused."""
        alike = sum(_like(refused) == _like(action) for refused, _ in self.told)
        return alike >= _MOST_ALIKE or any(_needs(action.item, item) for item in self._unmade())

    def message(self) -> str:
        """What was said, for the status."""
        messages = list(dict.fromkeys(message for _, message in self.told))
        more = f"; and {len(messages) - _SHOWN} more" if len(messages) > _SHOWN else ""
        return "; ".join(messages[:_SHOWN]) + more

    def _unmade(self) -> Iterator[Object]:
        failed = [*(action for action, _ in self.told), *self.otherwise]
        return (action.item for action in failed if isinstance(action, Create))


def _like(action: Action) -> tuple[type, str]:
    return type(action), action.item["kind"]


def _needs(item: Object, unmade: Object) -> bool:
    """A pod needs its own volumes, and whatever else there is for all pods."""
    if item["kind"] != "Pod" or unmade["kind"] == "Pod":
        return False
    return unmade["kind"] != "PersistentVolumeClaim" or unmade["metadata"]["name"] in claims_of(item)
