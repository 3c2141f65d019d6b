"""Keeps web pages of others away from a service.

A service on loopback has no keys: it trusts every program on its machine. But a page in a browser there can send
requests too, and by a name of its own that it lets point to 127.0.0.1 (DNS rebinding) it can read the answers. A
browser always says by which name it asks (`Host`) and, where something may change, which page asks (`Origin`).
"""

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from epochal.errors import EpochalError
from epochal.web_origin import check_origin

_REMEMBERED = 64
_CHANGES_NOTHING = frozenset(("GET", "HEAD", "OPTIONS"))


class UnknownHost(EpochalError):
    """The request was sent to a name that this service does not have."""

    code = "unknown_host"


class ForeignOrigin(EpochalError):
    """A web page of another site has sent a request that could change something."""

    code = "foreign_origin"


class CorsOrigins:
    """The sites whose pages may read what GETs of some paths answer (CORS), none if empty; `*` are all.

    `paths`: a regular expression of these. Reading alone: what changes something is for `TrustedNames` to judge.
    Credentials are never part of it.
    """

    def __init__(self, origins: Iterable[str] = (), paths: str = "") -> None:
        self._origins = frozenset(origin.lower() for origin in origins)
        self._paths = re.compile(paths)

    def cover(self, path: str) -> bool:
        """Whether pages of some site may read what is at `path`."""
        return bool(self._origins) and self._paths.fullmatch(path) is not None

    def headers(self, origin: str | None) -> dict[str, str]:
        """What an answer says, to a page of `origin` (of the header; None without one)."""
        if "*" in self._origins:
            return {"Access-Control-Allow-Origin": "*"}
        allowed = {"Access-Control-Allow-Origin": origin} if origin and origin.lower() in self._origins else {}
        return {"Vary": "Origin", **allowed}  # also where it is refused: a cache must not give that to others


def check_cors_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    """Raise `ValueError` for what no browser calls an origin."""
    return tuple(map(check_origin, origins))


class TrustedNames:
    """By which names a service is called, which listens on `host`; `names`: those that were set beside loopback's."""

    def __init__(self, host: str, names: Iterable[str], setting: str) -> None:
        self._checks_host = is_loopback(host)
        self._names = frozenset(name.lower() for name in names)
        self._setting = setting
        self._known: set[str] = set()
        """`Host` headers that were found to be right, so that each is taken apart once."""

    def check(self, method: str, host: str, origin: str | None) -> None:
        """See that a request comes from a program, or from a page of this service.

        Only where the service listens on loopback must the name in `host` (of the header, with or without port) be
        known: elsewhere it is called by names that others give.

        Raises:
            UnknownHost: the service is not called so.
            ForeignOrigin: `origin` (of the header; None without one) is another site, and `method` changes something.
        """
        if origin is None and host in self._known:
            return
        name = _name("//" + host)
        if self._checks_host and not self._knows(name):
            raise UnknownHost(
                f"this service listens on loopback only and is not called {name!r}; use 127.0.0.1 or localhost, or name"
                f" it in {self._setting}"
            )
        if len(self._known) < _REMEMBERED:
            self._known.add(host)
        if origin is None or method in _CHANGES_NOTHING:
            return
        page = _name(origin)
        if not page or (page != name and not self._knows(page)):
            raise ForeignOrigin(
                f"a web page of {origin!r} may not change anything here; pages of {name or 'this service'!r} may, and"
                f" those of the names in {self._setting}"
            )

    def _knows(self, name: str) -> bool:
        return name in self._names or (self._checks_host and is_loopback(name))


def is_loopback(name: str) -> bool:
    """Whether a name or an address is this machine's own, for everybody: `localhost`, `*.localhost`, 127.0.0.0/8, ::1.

    >>> [is_loopback(name) for name in ("localhost", "a.localhost", "127.0.0.2", "::1", "10.0.0.1", "localhost.evil")]
    [True, True, True, True, False, False]
    """
    name = name.lower()
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _name(url: str) -> str:
    """The name in a URL, without port and brackets, in small letters; empty when there is none."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""
