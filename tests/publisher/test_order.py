"""The order in which one batch of effects leaves the process, shown on a publisher within the test."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import zmq
from tests.patience import PATIENCE
from tests.protocol.recorded import record_all

from epochal.catalog_api.answers import Registration, SegmentGrant, StreamInfo
from epochal.protocol import messages as m
from epochal_publisher.publisher import PublisherProcess
from epochal_publisher.segments.lease import PublisherLease
from epochal_publisher.segments.store import SegmentStores
from epochal_publisher.settings import Settings

MANIFEST = {
    "apiVersion": "epochal.dev/v1alpha1",
    "kind": "Stream",
    "metadata": {"name": "s", "namespace": "test"},
    "spec": {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}},
}


@pytest.fixture
async def publisher() -> AsyncIterator[PublisherProcess]:
    settings = Settings.read(catalog="http://127.0.0.1:9", stream="test/s", segments="0", publisher="p")
    stream = StreamInfo("test", "s", "u", 1, "Ready", MANIFEST)
    async with PublisherLease(settings) as lease:
        made = PublisherProcess(settings, lease)
        async with SegmentStores(settings, stream, lease.instance) as stores:
            granted = Registration(1, 10.0, (SegmentGrant("0", 1, 0, 2**64),))
            made.listen(stream)
            await made.serve(stream, granted, stores)
            yield made
        made.close()


@pytest.mark.rule("S9", "E14")
async def test_a_snapshot_is_sent_after_the_events_it_covers_and_before_all_later_ones(publisher, wires):
    served, peer, nonce = publisher.segments["0"], b"writer", bytes(16)
    record_all(served.publisher)
    line = wires.line(zmq.SUB, publisher.addresses["events"], prefix=1)
    line.socket.subscribe(b"C" + served.channels.everything.token)
    line.socket.subscribe(b"P" + nonce)
    async with asyncio.timeout(PATIENCE):
        # The subscription to `P` comes behind that to the channel, and is refused, for nobody has said hello yet.
        while not (served.channels.subscribed and line.poll()):  # noqa: ASYNC110 - libzmq announces neither
            await asyncio.sleep(0.001)
    assert isinstance(line.receive(), m.Refused)
    served.publisher.receive(peer, m.Open(1, "u", "0", "w", 1, None, None), 0.0)
    served.publisher.receive(peer, m.Append("0", 0, 0, b"", 1, 0, b""), 0.0)
    served.server.receive(b"asks", m.Hello(1, (1,), "u", "0", nonce), 0.0)
    served.server.subscribed(nonce, 0.0)  # as when the socket reports it; nothing was flushed in between
    served.publisher.receive(peer, m.Append("0", 1, 0, b"", 1, 0, b""), 0.0)
    publisher.flush()
    arrived = [(type(message), message.seq) for message in (line.receive() for _ in range(3))]
    assert arrived == [(m.Data, 0), (m.Snapshot, 0), (m.Data, 1)]
