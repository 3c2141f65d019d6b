"""The way on which a subscription reads: through a relay, straight from the publishers, and from one to the other.

A relay speaks as a publisher does, so here one is a publisher's two addresses behind proxies that can be cut off.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
import zmq
import zmq.asyncio
from tests.chaos.proxy import Proxy, loopback
from tests.patience import PATIENCE

import epochal
from epochal.catalog_api.answers import RelayInfo
from epochal.catalog_api.requests import RegisterRelay, RelayAddresses, RelayReport
from epochal.client.catalog import directory as directories
from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.directory import Directory
from epochal.client.catalog.relay_choice import Via
from epochal.client.catalog.routes import Routes
from epochal.errors import NoPublisher, StreamGone, UsageError

DEAD = RelayAddresses("tcp://127.0.0.1:1", "tcp://127.0.0.1:1")


@dataclass
class Relay:
    """A way to the publisher of a stream's segment 0 that is listed as a relay."""

    id: str
    events: Proxy
    requests: Proxy

    @property
    def readers(self) -> int:
        """Connections on both sockets."""
        return len(self.events.connections) + len(self.requests.connections)

    def stop(self) -> None:
        """Take nothing any more, and reset who is connected."""
        for proxy in (self.events, self.requests):
            proxy.refuse()
            proxy.cut()


async def register(
    catalog: CatalogClient,
    stream: str,
    key: str,
    addresses: RelayAddresses = DEAD,
    *,
    name: str = "eu",
    state: Any = "ready",
    load: int = 0,
    **more: Any,
) -> None:
    uid = (await catalog.get(*stream.split("/"))).uid
    report = RelayReport(state, load)
    await catalog.register_relay(RegisterRelay(stream, uid, name, key, addresses, 100, report=report, **more))


@asynccontextmanager
async def relay(catalog: CatalogClient, stream: str, name: str = "eu") -> AsyncIterator[Relay]:
    info = await catalog.get(*stream.split("/"))
    assert info.segments[0].publisher is not None
    host, known = loopback(), info.segments[0].publisher.addresses
    to = {socket: urlsplit(known[socket]) for socket in ("events", "requests")}
    proxies = {key: Proxy((host, url.port or 0), (url.hostname or "", url.port or 0)) for key, url in to.items()}
    made = Relay(f"{name}-{host}", **proxies)
    async with made.events, made.requests:
        addresses = RelayAddresses(**{key: f"tcp://{host}:{url.port}" for key, url in to.items()})
        await register(catalog, stream, made.id, addresses, name=name)
        yield made


async def until(true: Callable[[], object]) -> None:
    """Wait for what nobody announces."""
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


async def reads(client: epochal.Client, stream: str, sub: epochal.Subscription, *times: int) -> None:
    """Publish epochs, and read them as the next ones."""
    async with client.writer(stream) as writer, asyncio.timeout(PATIENCE):
        await sub.ready.wait()
        for time in times:
            await writer.append(time, [b"x"])
            await writer.advance(time + 1)
        for time in times:
            epoch = await anext(sub.epochs())
            assert isinstance(epoch, epochal.Epoch)
            assert epoch.time == time
            assert [*epoch.records()] == [b"x"]


async def test_a_stream_without_relays_is_read_directly_and_relays_are_not_looked_up(services, monkeypatch) -> None:
    stream = await services.stream(segments=2)
    async with epochal.connect(services.url) as client:
        asked: list[str] = []
        call = client.catalog._http.call

        async def counted(method: str, path: str, **more: Any) -> Any:
            asked.append(path)
            return await call(method, path, **more)

        monkeypatch.setattr(client.catalog._http, "call", counted)
        async with client.subscribe(stream) as sub:
            await sub.ready.wait()
            assert sub.via == {"0": "direct", "1": "direct"}
        assert asked == [f"/v1/streams/{stream}/segments"]
        assert sub.via == {}
        await register(client.catalog, stream, "r")
        del asked[:]
        async with client.subscribe(stream, via="direct") as sub:
            await sub.ready.wait()
        assert asked == [f"/v1/streams/{stream}/segments"], "direct never asks"


async def test_a_ready_relay_is_used_for_both_sockets_and_reported_to_the_catalog(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client, relay(client.catalog, stream) as one:
        async with client.subscribe(stream) as sub:
            await reads(client, stream, sub, 0, 1)
            assert sub.via == {"0": "relay:eu"}
            assert (len(one.events.connections), len(one.requests.connections)) == (1, 1)
            assert sub._report()[1]["relayed"] == 1
        async with client.subscribe(stream, via="direct") as sub:
            await reads(client, stream, sub, 2)
            assert sub.via == {"0": "direct"}
            assert sub._report()[1]["relayed"] == 0
        with epochal.connect_blocking(services.url) as blocking:
            assert [known.name for known in await asyncio.to_thread(blocking.catalog.relays)] == ["eu"]
            assert await asyncio.to_thread(read_blocking, blocking, stream) == {"0": "relay:eu"}


def read_blocking(client: epochal.BlockingClient, stream: str) -> dict[str, str]:
    with client.subscribe(stream, via="relay:eu") as sub:
        sub.ready.wait(PATIENCE)
        return sub.via


async def test_a_segment_may_have_addresses_of_its_own(services) -> None:
    stream = await services.stream(segments=2)
    async with epochal.connect(services.url) as client:
        info = await client.catalog.get(*stream.split("/"))
        own = {
            segment.id: RelayAddresses(segment.publisher.addresses["events"], segment.publisher.addresses["requests"])
            for segment in info.segments
            if segment.publisher is not None
        }
        await register(client.catalog, stream, "r", own["0"], segments={"1": own["1"]})
        async with client.subscribe(stream, via="relay") as sub:
            await sub.ready.wait()
            assert sub.via == {"0": "relay:eu", "1": "relay:eu"}


async def test_a_relay_that_fails_is_followed_by_the_next_and_the_publisher_comes_last(services) -> None:
    stream = await services.stream()
    async with (
        epochal.connect(services.url) as client,
        relay(client.catalog, stream) as one,
        relay(client.catalog, stream, "us") as other,
        client.subscribe(stream) as sub,
    ):
        await reads(client, stream, sub, 0)
        first, second = (one, other) if one.readers else (other, one)
        assert (first.readers, second.readers) == (2, 0), "one relay serves both sockets"
        first.stop()
        await reads(client, stream, sub, 1, 2)
        assert second.readers == 2
        second.stop()
        await reads(client, stream, sub, 3, 4)
        assert sub.via == {"0": "direct"}
        async with relay(client.catalog, stream, "new") as third:
            await reads(client, stream, sub, 5)
            assert (sub.via, third.readers) == ({"0": "direct"}, 0), "until its next reconnect"


async def test_a_relay_at_whose_address_nothing_listens_is_passed_over(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client:
        await register(client.catalog, stream, "dead")
        async with client.subscribe(stream) as sub:
            await reads(client, stream, sub, 0)
            assert sub.via == {"0": "direct"}
        await register(client.catalog, stream, "no-address", RelayAddresses("ipc:///tmp/x", "inproc://x"))
        async with client.subscribe(stream) as sub:
            await reads(client, stream, sub, 1)
            assert sub.via == {"0": "direct"}


@pytest.mark.rule("E48")
async def test_a_relay_of_another_stream_or_that_speaks_otherwise_does_not_end_a_subscription(services) -> None:
    stream, other = await services.stream(), await services.stream()
    context = zmq.asyncio.Context()
    junk, events = context.socket(zmq.ROUTER), context.socket(zmq.XPUB)
    try:
        for socket in (junk, events):
            socket.linger = 0
            socket.bind("tcp://127.0.0.1:*")
        async with epochal.connect(services.url) as client:
            info = await client.catalog.get(*other.split("/"))
            owner = info.segments[0].publisher
            assert owner is not None
            await register(
                client.catalog, stream, "other", RelayAddresses(owner.addresses["events"], owner.addresses["requests"])
            )
            async with client.subscribe(stream) as sub:
                await reads(client, stream, sub, 0)
                assert sub.via == {"0": "direct"}
                assert sub._report()[1]["wrong_addresses"] == 1
            await client.catalog.deregister_relay("other")
            ends = [each.getsockopt_string(zmq.LAST_ENDPOINT) for each in (events, junk)]
            speaks = RelayAddresses(*ends)
            await register(client.catalog, stream, "junk", speaks)
            async with client.subscribe(stream) as sub:
                peer, *_ = await junk.recv_multipart()
                await junk.send_multipart([peer, b"\xc1 no message"])
                await reads(client, stream, sub, 1)
                assert sub.via == {"0": "direct"}
    finally:
        context.destroy(linger=0)


async def test_who_reads_through_relays_only_waits_for_one_that_is_ready(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client, client.subscribe(stream, via="direct"):
        opening = asyncio.create_task(client.subscribe(stream, via="relay:eu", wait=PATIENCE).__aenter__())
        await register(client.catalog, stream, "waits", state="waiting")
        async with relay(client.catalog, stream):
            sub = await opening
            await sub.ready.wait()
            assert sub.via == {"0": "relay:eu"}
            await sub.__aexit__(None, None, None)


async def test_a_reader_that_reads_only_through_relays_learns_why_there_is_none(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client:
        with pytest.raises(NoPublisher, match=f"{stream} is to be read through relays only, and no relay is regis"):
            await client.subscribe(stream, via="relay", wait=0.2).__aenter__()  # load: it is to end
        await register(client.catalog, stream, "r1", state="draining")
        await register(client.catalog, stream, "r2", load=100)
        for via, why in (
            (Via("relay"), r"every relay is full \(r2: 100/100\)"),
            (Via("relay", exclude=frozenset({"r2"})), r"no relay is ready \(r1 is draining\)"),
            (Via("relay", "us"), r"no relay us is registered \(only eu\)"),
        ):
            with pytest.raises(NoPublisher, match=why):
                await client.subscribe(stream, via=via, wait=0.2).__aenter__()  # load: it is to end
        with pytest.raises(UsageError, match="via= is auto"):
            client.subscribe(stream, via="relays")


async def test_who_reads_through_relays_only_goes_on_with_the_next_one(services) -> None:
    stream = await services.stream()
    async with (
        epochal.connect(services.url) as client,
        relay(client.catalog, stream) as old,
        client.subscribe(stream, via="relay:eu") as sub,
    ):
        await reads(client, stream, sub, 0)
        await client.catalog.deregister_relay(old.id)
        old.stop()
        await until(lambda: sub.via == {})
        async with relay(client.catalog, stream) as new:
            await reads(client, stream, sub, 1, 2)
            assert (sub.via, new.readers) == ({"0": "relay:eu"}, 2)


async def test_known_relays_are_used_while_the_catalog_is_away(services, monkeypatch) -> None:
    stream = await services.stream()
    monkeypatch.setattr(directories, "PATIENCE", 0.05)
    async with CatalogClient(services.url) as catalog, CatalogClient("http://127.0.0.1:1", patience=PATIENCE) as away:
        await register(catalog, stream, "r")
        directory = Directory(catalog, stream, wait=PATIENCE)
        present: list[CatalogClient] = [catalog]

        async def list_relays(namespace: str, name: str) -> tuple[RelayInfo, ...]:
            return await present[0].relays(namespace, name)

        routes = Routes(directory, list_relays, Via())
        await routes.look_up()
        assert (await routes.take("0")).via == "relay:eu"
        directory.catalog, present[0] = away, away
        directory.stale()
        assert (await routes.take("0")).via == "relay:eu"
        directory.catalog, present[0] = catalog, catalog
        await catalog.deregister_relay("r")
        directory.stale()
        assert (await routes.take("0")).via == "direct"
        await services.delete(stream)
        directory.stale()
        with pytest.raises(StreamGone):
            await routes.take("0")


async def test_one_subscription_takes_the_same_relay_for_all_segments_and_others_take_others(services) -> None:
    stream = await services.stream(segments=4)
    async with CatalogClient(services.url) as catalog:
        for key in ("r1", "r2", "r3"):
            await register(catalog, stream, key)
        found = []
        for _ in range(20):
            routes = Routes(Directory(catalog, stream, wait=PATIENCE), catalog.relays, Via())
            await routes.look_up()
            taken = [(await routes.take(str(segment))).relay for segment in range(4)]
            (only,) = {known.id for known in taken if known is not None}
            found.append(only)
        assert len(set(found)) > 1


async def test_relays_are_reached_as_publishers_are(services) -> None:
    stream = await services.stream()

    async def reach(address: str) -> str:
        if address.startswith("tcp://10."):
            return address.replace("tcp://10.0.0.", "tcp://127.0.0.")
        raise NoPublisher("not from here")

    async with CatalogClient(services.url) as catalog:
        await register(catalog, stream, "near", RelayAddresses("tcp://10.0.0.7:1", "tcp://10.0.0.7:2"))
        await register(catalog, stream, "far", RelayAddresses("tcp://172.16.0.1:1", "tcp://172.16.0.1:2"))
        for _ in range(10):
            routes = Routes(Directory(catalog, stream, wait=PATIENCE, reach=reach), catalog.relays, Via("relay"))
            await routes.look_up()
            route = await routes.take("0")
            assert (route.events, route.requests) == ("tcp://127.0.0.7:1", "tcp://127.0.0.7:2")


async def test_from_outside_of_a_cluster_auto_goes_straight(services: Any) -> None:
    """There a relay has the address of its pod, which would be tried in vain."""
    stream = await services.stream()

    async def reach(address: str) -> str:
        return address

    async with epochal.connect(services.url, reach=reach) as client:
        await register(client.catalog, stream, "a")
        async with client.subscribe(stream) as sub, asyncio.timeout(PATIENCE):
            await sub.ready.wait()
            assert sub.via == {"0": "direct"}
