"""Web pages of others: a name that is not known is not answered, and a foreign page changes nothing."""

import re

import pytest

from epochal.service.origins import CorsOrigins, ForeignOrigin, TrustedNames, UnknownHost, check_cors_origins

LOCAL = TrustedNames("127.0.0.1", ["Mine.example"], "EPOCHAL_CATALOG_HOSTS")
OPEN = TrustedNames("0.0.0.0", [], "EPOCHAL_CATALOG_HOSTS")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8700", "localhost:8700", "[::1]:8700", "LOCALHOST", "app.localhost", "mine.example:1"],
)
def test_on_loopback_known_names_are_answered(host: str) -> None:
    LOCAL.check("GET", host, None)
    LOCAL.check("PUT", host, f"http://{host}")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8700", "localhost.evil.example", "10.0.0.1", "", "[x"])
def test_on_loopback_no_other_name_is(host: str) -> None:
    with pytest.raises(UnknownHost, match="EPOCHAL_CATALOG_HOSTS"):
        LOCAL.check("GET", host, None)


@pytest.mark.parametrize("host", ["catalog.epochal.svc:8700", "10.0.0.1:8700", "localhost:8700"])
def test_elsewhere_every_name_is_answered(host: str) -> None:
    OPEN.check("GET", host, None)
    OPEN.check("DELETE", host, f"https://{host}")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://localhost.evil.example:8700", "null", "file://", ""]
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_a_foreign_page_changes_nothing(method: str, origin: str) -> None:
    for names, host in ((LOCAL, "localhost:8700"), (OPEN, "catalog.epochal.svc:8700")):
        names.check("GET", host, origin)  # without CORS its page cannot read the answer
        with pytest.raises(ForeignOrigin):
            names.check(method, host, origin)


def test_a_page_without_a_name_is_foreign_also_where_the_request_has_none() -> None:
    with pytest.raises(ForeignOrigin):
        OPEN.check("POST", "", "null")


@pytest.mark.parametrize("host", ["localhost", "LocalHost", "127.0.0.1", "::1"])
def test_loopback_is_known_by_all_its_names(host: str) -> None:
    with pytest.raises(UnknownHost):
        TrustedNames(host, [], "EPOCHAL_CATALOG_HOSTS").check("GET", "evil.example", None)


def test_a_page_on_loopback_may_change_only_what_is_on_loopback() -> None:
    LOCAL.check("PUT", "127.0.0.1:8700", "http://localhost:3000")
    with pytest.raises(ForeignOrigin):
        OPEN.check("PUT", "catalog.epochal.svc:8700", "http://localhost:3000")


@pytest.mark.parametrize(
    ("origin", "reason"),
    [
        ("dashboard.example.org", "is no origin"),
        ("https://*.example.org", "is no origin"),
        ("https://a.example.org/", "is no origin"),
        ("https://a.example.org:443", "write 'https://a.example.org'"),
        ("http://a.example.org:80", "write 'http://a.example.org'"),
    ],
)
def test_what_no_browser_sends_as_an_origin_is_refused(origin: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        check_cors_origins((origin,))
    check_cors_origins(("*", "https://a.example.org", "http://a.example.org:443", "http://[::1]:8080"))


def test_pages_read_some_paths_only_and_a_cache_gives_that_to_no_other_page() -> None:
    some = CorsOrigins(["https://A.example.org"], "/v1/one")
    assert [some.cover(path) for path in ("/v1/one", "/v1/one/more", "/v1")] == [True, False, False]
    assert not CorsOrigins([], "/v1/one").cover("/v1/one")
    allowed = {"Vary": "Origin", "Access-Control-Allow-Origin": "https://a.example.org"}
    assert some.headers("https://a.example.org") == allowed
    assert some.headers("https://b.example.org") == some.headers(None) == {"Vary": "Origin"}
