"""The table of peers that are not read any more."""

from epochal_publisher.sockets.peer_limits import BlockedPeers


def test_the_table_is_bounded_and_expires():
    table = BlockedPeers(limit=2, ttl=10.0)
    for number in range(3):
        table.add(bytes([number]), float(number))
    assert (len(table), b"\x00" in table, b"\x01" in table, b"\x02" in table) == (2, False, True, True)
    table.expire(11.5)
    assert (b"\x01" in table, b"\x02" in table) == (False, True)


def test_a_peer_that_offends_again_is_kept_longer():
    table = BlockedPeers(limit=2, ttl=10.0)
    table.add(b"a", 0.0)
    table.add(b"b", 1.0)
    table.add(b"a", 5.0)
    table.expire(12.0)
    assert (b"a" in table, b"b" in table) == (True, False)
