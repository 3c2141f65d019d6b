"""The rights that `epochal --kube doctor` asks for, against those of docs/kubernetes-clients.md."""

import re
from pathlib import Path

from epochal.kube.user_api import Right, find_rights, forward_rights, stream_rights

PAGE = (Path(__file__).parents[2] / "docs" / "kubernetes-clients.md").read_text(encoding="utf-8")


def verbs(rights: list[Right]) -> dict[tuple[str, str], set[str]]:
    """The verbs of a resource of a group."""
    found: dict[tuple[str, str], set[str]] = {}
    for right in rights:
        found.setdefault((right.group, right.resource), set()).add(right.verb)
    return found


def test_doctor_asks_for_what_the_page_says_is_needed() -> None:
    told: dict[tuple[str, str], set[str]] = {}
    for group, resource, listed in re.findall(
        r"^\| [^|]+ \| `([^`]+)` \| `([^`]+)` \| ([^|]+) \|$", PAGE, re.MULTILINE
    ):
        told.setdefault((group.strip('"'), resource), set()).update(re.findall(r"`(\w+)`", listed))
    assert verbs([*find_rights(None), *forward_rights("epochal"), *stream_rights("demo")]) == told
