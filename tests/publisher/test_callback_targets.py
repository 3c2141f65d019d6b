"""Where web-hooks may go: names, addresses, and addresses that hide in others."""

import socket

import pytest

from epochal_publisher.callback_targets import Targets
from epochal_publisher.errors import WebhookTarget

ALLOWED = Targets.parse("hooks.example.org, *.example.com,10.1.0.0/16, 127.0.0.1,fd00::/8")


@pytest.mark.parametrize(
    "callback",
    [
        "http://hooks.example.org/a?b=c", "https://HOOKS.example.org:8443/", "http://a.b.example.com",
        "http://10.1.2.3:8080/x", "http://127.0.0.1:1", "http://[fd00::1]/", "http://[::ffff:10.1.0.1]/",
        "http://hooks.example.org./",
    ],
)  # fmt: skip
def test_what_is_named_is_allowed(callback: str) -> None:
    assert ALLOWED.check(callback).scheme in ("http", "https")


@pytest.mark.parametrize(
    "callback",
    [
        "http://example.com/", "http://badexample.com/", "http://example.org/", "http://hooks.example.org.evil.test/",
        "http://10.2.0.1/", "http://127.0.0.2/", "http://localhost/", "http://[::1]/", "http://8.8.8.8/",
        "http://169.254.169.254/latest/meta-data/", "http://2130706433/", "http://0x7f000001/", "http://127.1/",
        "http://hooks.example.org@127.0.0.2/", "http://user:secret@hooks.example.org/", "http://hooks.example.org/#a",
        "ftp://hooks.example.org/", "file:///etc/passwd", "//hooks.example.org/", "hooks.example.org", "", "http://",
        "http://hooks.example.org:99999/", "http://[::ffff:127.0.0.2]/", "http://[fe80::1%25eth0]/",
        "gopher://10.1.2.3/", "http:///x",
    ],
)  # fmt: skip
def test_everything_else_is_refused(callback: str) -> None:
    with pytest.raises(WebhookTarget):
        ALLOWED.check(callback)


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("8.8.8.8", True), ("2606:4700::1", True), ("10.1.2.3", True), ("127.0.0.1", True), ("fd00::5", True),
        ("::ffff:10.1.2.3", True), ("10.2.0.1", False), ("127.0.0.2", False), ("::1", False), ("0.0.0.0", False),
        ("169.254.169.254", False), ("192.168.1.1", False), ("172.16.0.1", False), ("100.64.0.1", False),
        ("224.0.0.1", False), ("240.0.0.1", False), ("255.255.255.255", False), ("fe80::1", False),
        ("fe80::1%eth0", False), ("fec0::1", False), ("ff02::1", False), ("::", False), ("::ffff:127.0.0.2", False),
        ("64:ff9b::7f00:1", False), ("64:ff9b:1::a", False), ("2002:7f00:1::", False), ("2001:0:7f00::1", False),
    ],
)  # fmt: skip
def test_addresses_that_a_name_leads_to(address: str, allowed: bool) -> None:
    """A name that is allowed reaches what is public, and what is named besides."""
    assert ALLOWED.may_connect(address) is allowed
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    info = (kind, socket.SOCK_STREAM, 0, "", (address, 80))
    if allowed:
        ALLOWED.socket(info).close()
    else:
        with pytest.raises(PermissionError, match="targets of web-hooks"):
            ALLOWED.socket(info)


def test_nothing_is_allowed_by_an_empty_setting() -> None:
    for callback in ("http://hooks.example.org/", "http://127.0.0.1/", "http://8.8.8.8/"):
        with pytest.raises(WebhookTarget):
            Targets.parse("").check(callback)


@pytest.mark.parametrize(
    "text", ["*", "a b", "http://x", "10.0.0.0/99", "10.1.2.3/8", "*.*.org", "127.1", "0x7f000001"]
)
def test_a_setting_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no target"):
        Targets.parse(text)
