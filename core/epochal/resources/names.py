"""Names of streams: `namespace/name`."""

import re

from epochal.errors import ManifestError, Problem

DEFAULT_NAMESPACE = "default"
MAX_NAME = 52
"""Characters in a stream's name: eleven fewer than in Kubernetes, which leaves room for suffixes like `-<segment>`."""

_NAME = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?", re.ASCII)
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?", re.ASCII)


def check_name(text: str) -> str:
    """Return `text` if it can name a stream (DNS-1035, at most 52 characters); else raise ValueError with a reason."""
    if len(text) > MAX_NAME:
        raise ValueError(f"has {len(text)} characters; at most {MAX_NAME} are allowed")
    if not _NAME.fullmatch(text):
        raise ValueError(
            "must be lower-case letters, digits and '-', start with a letter and end with a letter or digit"
        )
    return text


def check_namespace(text: str) -> str:
    """Return `text` if it can be a namespace (DNS-1123 label); else raise ValueError with the reason."""
    if len(text) > 63:
        raise ValueError(f"has {len(text)} characters; at most 63 are allowed")
    if not _NAMESPACE.fullmatch(text):
        raise ValueError("must be lower-case letters, digits and '-', start and end with a letter or digit")
    return text


def parse_stream_name(text: str, namespace: str = DEFAULT_NAMESPACE) -> tuple[str, str]:
    """Split `ns/name`, or `name` alone in `namespace`; raises `ManifestError` for what cannot name a stream.

    >>> parse_stream_name("demo/flights"), parse_stream_name("flights")
    (('demo', 'flights'), ('default', 'flights'))
    """
    space, slash, name = text.rpartition("/")
    space = space if slash else namespace
    problems: list[Problem] = []
    for part, value, check in (("namespace", space, check_namespace), ("name", name, check_name)):
        try:
            check(value)
        except ValueError as error:
            problems.append(Problem(part, str(error)))
    if problems:
        raise ManifestError(f"'{text[:120]}' cannot name a stream; write NAME or NAMESPACE/NAME", problems)
    return space, name
