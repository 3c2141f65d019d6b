"""The hosts to which web-hooks may be delivered: none, unless the setting names some.

These checks keep clients from making a publisher send requests into its own network. A host is checked by name when a
web-hook is registered. Each address is checked again when a connection is made, so that a name cannot later be pointed
at a forbidden address.

The setting is a list by comma: host names (`hooks.example.org`, `*.example.org`), addresses, networks (`10.1.0.0/16`).
A host name may resolve to public addresses, and to addresses in a network of the list. An address in a URL must be in
a network of the list.
"""

import errno
import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Any

from yarl import URL

from epochal_publisher.errors import WebhookTarget

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAME = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_NUMBERS = re.compile(r"[0-9.]+|0x[0-9a-f.x]+")
_EMBEDDING = ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48")
"""Addresses that a gateway translates to IPv4, of any network."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets that are allowed."""

    names: tuple[str, ...]
    networks: tuple[Network, ...]

    @classmethod
    def parse(cls, text: str) -> "Targets":
        """Read the setting. Raises `ValueError`, which names a part that is none of these."""
        names, networks = list[str](), list[Network]()
        for part in filter(None, (part.strip().lower() for part in text.split(","))):
            try:
                networks.append(ipaddress.ip_network(part))
            except ValueError:
                if not _NAME.fullmatch(part) or _NUMBERS.fullmatch(part):
                    detail = "give host names (*.example.org), addresses and networks (10.1.0.0/16), by comma"
                    raise ValueError(f"{part!r} is no target: {detail}") from None
                names.append(part)
        return cls(tuple(names), tuple(networks))

    def check(self, callback: str) -> URL:
        """The URL of a callback. Raises `WebhookTarget`."""
        try:
            url = URL(callback)
            host = (url.raw_host or "").lower().removesuffix(".")
            usable = url.scheme in ("http", "https") and bool(host) and url.port is not None
        except ValueError as error:
            raise WebhookTarget(f"the callback is no URL: {error}") from None
        if not usable or url.user is not None or url.password is not None or url.fragment:
            raise WebhookTarget("a callback is an http or https URL with a host, without user, password and fragment")
        if not self._knows(host):
            raise WebhookTarget(
                f"{host[:253]!r} is not among the targets of web-hooks that this publisher allows"
                " (EPOCHAL_PUBLISHER_WEBHOOK_TARGETS)"
            )
        return url

    def _knows(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return any(host.endswith(name[1:]) if name.startswith("*.") else host == name for name in self.names)
        return self._named(_plain(address))

    def may_connect(self, address: str) -> bool:
        """Whether a connection to an address, as the resolver gave it, is allowed."""
        plain = _plain(ipaddress.ip_address(address.partition("%")[0]))
        return self._named(plain) or _is_public(plain)

    def _named(self, address: IPAddress) -> bool:
        return any(address.version == network.version and address in network for network in self.networks)

    def socket(self, info: tuple[Any, Any, Any, Any, Any]) -> socket.socket:
        """A socket for one resolved address, for aiohttp. Raises `OSError` for one that is not allowed."""
        family, kind, protocol, _, where = info
        if not self.may_connect(str(where[0])):
            detail = f"{where[0]} is not among the targets of web-hooks that this publisher allows"
            raise PermissionError(errno.EACCES, detail)
        return socket.socket(family, kind, protocol)


def _plain(address: IPAddress) -> IPAddress:
    """The IPv4 address that is mapped into an IPv6 one; else the address itself."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_public(address: IPAddress) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        embeds = address.sixtofour or address.teredo or any(address in network for network in _EMBEDDING)
        if embeds or address.is_site_local:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)
