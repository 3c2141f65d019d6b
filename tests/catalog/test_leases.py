"""Leases under a clock that the test turns."""

import pytest

from epochal_catalog.domain.leases import Leases

STALL = 1.0


@pytest.fixture
def leases() -> Leases[int]:
    leases: Leases[int] = Leases(ttl=10.0)
    leases.sweep(0.0, STALL)
    leases.grant(1, 0.0, verified=True)
    return leases


def run(leases: Leases[int], start: float, end: float) -> list[int]:
    """Sweep twice a second, as the service does."""
    lapsed = []
    for half in range(int(start * 2) + 1, int(end * 2) + 1):
        lapsed += leases.sweep(half / 2, STALL)
    return lapsed


@pytest.mark.rule("E12")
def test_a_lease_lapses_once_and_comes_back_with_a_renewal(leases: Leases[int]) -> None:
    assert run(leases, 0, 9.5) == []
    assert leases.live(1)
    assert run(leases, 9.5, 30) == [1]
    assert not leases.live(1)
    assert leases.renew(1, 30.0)  # visible: an address is back
    assert leases.live(1)
    assert not leases.renew(1, 31.0)


def test_a_renewal_restarts_the_time(leases: Leases[int]) -> None:
    run(leases, 0, 9)
    leases.renew(1, 9.0)
    assert run(leases, 9, 18.5) == []
    assert run(leases, 18.5, 19) == [1]


@pytest.mark.rule("S30")
def test_time_in_which_the_catalog_stood_still_does_not_count(leases: Leases[int]) -> None:
    run(leases, 0, 5)
    assert leases.sweep(65.0, STALL) == []  # stopped for a minute: nobody could renew
    assert run(leases, 65, 69.5) == []
    assert run(leases, 69.5, 70) == [1]


def test_a_restored_lease_is_not_verified_until_renewed(leases: Leases[int]) -> None:
    leases.grant(2, 0.0, verified=False)
    lease = leases.get(2)
    assert lease is not None
    assert (lease.live, lease.verified) == (True, False)
    assert leases.renew(2, 1.0)
    assert lease.verified


def test_how_long_ago_a_lease_lapsed(leases: Leases[int]) -> None:
    assert not leases.lapsed_for(1, 5.0, 14.0)
    run(leases, 0, 14)
    assert not leases.lapsed_for(1, 5.0, 14.0)
    assert leases.lapsed_for(1, 5.0, 15.0)
    leases.drop([1])
    assert leases.lapsed_for(1, 5.0, 0.0)
    assert not leases.live(1)
