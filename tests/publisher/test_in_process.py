"""What only a publisher within the test can show: which threads do what, and what happens between two awaits."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from epochal.client.catalog_types import Registration, SegmentGrant, StreamInfo
from epochal_publisher.errors import SubscriptionUsed
from epochal_publisher.follower import Follower, Since
from epochal_publisher.lease import Lease
from epochal_publisher.publisher import Publisher
from epochal_publisher.settings import Settings
from epochal_publisher.store import Stores
from epochal_publisher.webhooks import Webhooks

MANIFEST = {
    "apiVersion": "epochal.dev/v1alpha1",
    "kind": "Stream",
    "metadata": {"name": "s", "namespace": "test"},
    "spec": {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}},
}
SETTINGS = Settings.read(
    catalog="http://127.0.0.1:9", stream="test/s", segments="0", publisher="p", webhook_targets="127.0.0.0/8"
)


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    stream = StreamInfo("test", "s", "u", 1, "Ready", MANIFEST, (), (), "")
    async with Lease(SETTINGS) as lease:
        made = Publisher(SETTINGS, lease)
        async with Stores(SETTINGS, stream, lease.instance) as stores:
            granted = Registration(1, 10.0, (SegmentGrant("0", 1, 0, 2**64, None, (), False),))
            await made.serve(stream, granted, stores)
            yield made
        made.close()


async def test_answers_are_told_one_at_a_time_and_hold_up_no_reading(publisher: Publisher) -> None:
    inside, release = threading.Semaphore(0), threading.Event()

    def takes_long() -> None:
        inside.release()
        release.wait(30)

    telling = [asyncio.ensure_future(publisher.tell(takes_long)) for _ in range(8)]
    try:
        async with asyncio.timeout(20):
            assert await asyncio.gather(*(publisher.read(lambda: 7) for _ in range(20))) == [7] * 20
            assert await asyncio.to_thread(inside.acquire, timeout=20)
        assert not inside.acquire(blocking=False), "the others wait"
    finally:
        release.set()
        await asyncio.gather(*telling)


class Waiting(Follower):
    """A follower whose place is found when the test says so, as one of a disk is."""

    found = asyncio.Event()

    async def open(self, asked: Any) -> Any:
        await self.found.wait()
        return await super().open(asked)


@pytest.mark.rule("Q9")
async def test_of_two_that_ask_for_one_id_at_once_one_is_refused(publisher: Publisher) -> None:
    hooks, served = Webhooks(SETTINGS, publisher), publisher.segments["0"]
    callback = "http://127.0.0.1:9/hook"
    Waiting.found = asyncio.Event()
    both = [
        asyncio.ensure_future(hooks.register("0", Waiting(publisher, served), "one", callback, Since.NOW))
        for _ in range(2)
    ]
    await asyncio.sleep(0)  # both have found the id free
    Waiting.found.set()
    answers = await asyncio.gather(*both, return_exceptions=True)
    try:
        assert [type(answer) for answer in answers if isinstance(answer, Exception)] == [SubscriptionUsed]
        assert len(hooks) == 1
    finally:
        await hooks.close()
