"""What browsers call an origin: the site of a web page, such as `https://dashboard.example.org`.

Manifests and services, which know nothing of each other, both use it, so that they take the same origins.
"""

import re

ORIGIN_PATTERN = r"\*|https?://[^\s/?#@*,]+"
USUAL_PORT_PATTERN = r"http://.*:80|https://.*:443"
"""Browsers leave these ports out."""


def check_origin(origin: str) -> str:
    """Raise `ValueError` for what no browser calls an origin; `*` means all of them.

    >>> check_origin("http://[::1]:8080"), check_origin("*")
    ('http://[::1]:8080', '*')
    """
    if not re.fullmatch(ORIGIN_PATTERN, origin):
        raise ValueError(f"{origin[:80]!r} is no origin, such as https://dashboard.example.org, and not *")
    if re.fullmatch(USUAL_PORT_PATTERN, origin):
        raise ValueError(f"browsers write {origin[:80]!r} without its port; write {origin.rpartition(':')[0]!r}")
    return origin
