"""Which fields of an object differ from its definition, and who changed them: the text of the event about a repair.

The API server records in `metadata.managedFields` which program last wrote each field, and when. It does not record
who removed a field. For a removed field the event names the program that last wrote the object, if that is recorded.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from epochal.resources.cluster.children import WHOLE, covers_field
from epochal.resources.cluster.stream import HASH, MANAGER
from epochal.resources.spec import Object

Path = tuple[str, ...]
_SHOWN = 5
_HASH_PATH = ("metadata", "annotations", HASH)
"""This annotation differs whenever the definition has changed, so events do not list it."""


class Repair(NamedTuple):
    """Why an object is written again: reason and message of the event."""

    reason: str
    why: str


def repair(drawn: Object, live: Object) -> Repair:
    """Why `live` must be changed to match `drawn`: the definition has changed, or someone else changed the object."""
    paths = changed_fields(drawn, live)
    names = _listed(paths)
    if _hash_of(drawn) != _hash_of(live):
        return Repair("Changed", f"it is declared otherwise now: {names}")
    writer = who_wrote(live, paths)
    if not writer:
        return Repair("Changed", f"it is not as declared: {names}")
    return Repair("PutBack", f"{names}, {writer}")


def changed_fields(drawn: Any, live: Any, path: Path = ()) -> list[Path]:
    """The paths of the fields of `drawn` that differ in `live`; a list counts as one field.

    >>> changed_fields({"spec": {"a": 1, "b": {"c": 2}}}, {"spec": {"a": 1, "b": {"c": 3, "d": 4}}})
    [('spec', 'b', 'c')]
    >>> changed_fields({"spec": {"selector": {"a": "b"}}}, {"spec": {"selector": {"a": "b", "c": "d"}}})
    [('spec', 'selector')]
    """
    found: list[Path] = []
    for name, value in drawn.items():
        inner = live.get(name)
        if covers_field(name, value, live):
            continue
        if name not in WHOLE and isinstance(value, dict) and isinstance(inner, dict):
            found += changed_fields(value, inner, (*path, name)) or [(*path, name)]
        else:
            found.append((*path, name))
    return found


def who_wrote(live: Object, paths: Sequence[Path]) -> str:
    """Which program last wrote one of these fields, or else the object, as text; empty if only this operator did."""
    others = [
        entry
        for entry in live["metadata"].get("managedFields", ())
        if entry.get("manager") != MANAGER and entry.get("subresource") != "status"
    ]
    owners = [entry for entry in others if any(_owns(entry.get("fieldsV1", {}), path) for path in paths)]
    if not others:
        return ""
    newest = max(owners or others, key=lambda entry: str(entry.get("time", "")))
    with_what = f" ({newest['subresource']})" if newest.get("subresource") else ""
    when = f" at {newest['time']}" if newest.get("time") else ""
    did = "which was changed" if owners else "and the object was last written"
    return f"{did} by {newest.get('manager', 'someone')}{with_what}{when}"


def _owns(fields: Object, path: Path) -> bool:
    """Whether a field, or a part of it, is in a set of managed fields (`f:NAME` keys, as in `fieldsV1`)."""
    for name in path:
        if f"f:{name}" not in fields:
            return False
        fields = fields[f"f:{name}"]
    return True


def _hash_of(item: Object) -> Any:
    return item["metadata"].get("annotations", {}).get(HASH)


def _listed(paths: Iterable[Path]) -> str:
    names = [".".join(path) for path in paths if path != _HASH_PATH]
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
