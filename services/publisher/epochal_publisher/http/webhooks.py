"""Web-hooks: a segment's events, posted to a callback in order, one delivery after the other.

Only a follower's position is kept for each receiver. Push is only the fast way (Q7): a delivery that fails is tried
again for a while, then the web-hook ends, and its receiver must request the events that it missed. Web-hooks end with
the process, so a receiver that gets nothing for too long must do the same.

Sources: rules Q4-Q9, Q14; Push-Pull Publish-Subscribe.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import aiohttp
from yarl import URL

from epochal.backoff import Backoff
from epochal.errors import EpochalError, HistoryTruncated
from epochal.protocol.messages import Position
from epochal.service.errors import Overloaded, UnknownSubscription
from epochal_publisher.callback_targets import Targets
from epochal_publisher.errors import SubscriptionUsed
from epochal_publisher.http.event_encoding import EventEncoder, Form, Placed, opening
from epochal_publisher.http.history import read_on
from epochal_publisher.http.history_query import MOST_EVENTS
from epochal_publisher.publisher import PublisherProcess
from epochal_publisher.segments.follower import HistoryFollower, PassedLull, StartPlace
from epochal_publisher.settings import Settings

logger = logging.getLogger("epochal.publisher")

REMEMBERED = 10_000
"""Ids of ended subscriptions that are still refused, the latest ones (Q9)."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 30.0
"""Seconds before a delivery is tried again; each pause is twice the one before."""
_MOST_ANSWER = 4096
"""Bytes of a receiver's answer that are read."""


@dataclass(eq=False, slots=True)
class Webhook:
    """One subscription; `since` is its position, after the last delivery that was accepted."""

    id: str
    segment: str
    callback: URL
    follower: HistoryFollower
    since: Position
    failing_since: float | None = None
    failures: int = 0
    why: str = ""
    """Why the last delivery failed; empty after one that was accepted."""
    task: "asyncio.Task[None] | None" = None

    def shown(self) -> dict[str, Any]:
        """The fields that any client may see: the query of a callback is left out, as it may hold a key."""
        return {
            "subscription": self.id,
            "callback": str(self.callback.with_query(None)),
            "position": list(self.since),
            "failures": self.failures,
            "failing": self.why,
        }


class Ended(Exception):
    """A web-hook has ended, without an error in this process; the message says why."""

    reason = "ended"


class GivenUp(Ended):
    """The receiver did not accept events, or not in time. It misses events until it asks for them."""

    reason = "given_up"


class Webhooks:
    """All web-hooks of a process; each is a task until `close`."""

    def __init__(self, settings: Settings, publisher: PublisherProcess) -> None:
        self._settings = settings
        self._publisher = publisher
        self._targets = Targets.parse(settings.webhook_targets)
        self._live: dict[tuple[str, str], Webhook] = {}
        self._used: dict[tuple[str, str], None] = {}
        self._client: aiohttp.ClientSession | None = None

    def __len__(self) -> int:
        """The number of web-hooks that have not ended."""
        return len(self._live)

    async def register(
        self, segment: str, follower: HistoryFollower, subscription: str, callback: str, since: StartPlace
    ) -> dict[str, Any]:
        """Begin a web-hook; returns its first position, and the state there.

        Raises `WebhookTarget`, `SubscriptionUsed`, `Overloaded`, and what `HistoryFollower.open` does.
        """
        url, key = self._targets.check(callback), (segment, subscription)
        self._check(key)
        state = await follower.open(since)
        self._check(key)  # again, because others may have registered during the wait
        hook = Webhook(subscription, segment, url, follower, follower.position)
        self._live[key] = hook
        hook.task = asyncio.create_task(self._run(hook))
        first = opening(follower.position, follower.served.publisher.incarnation, state)
        return {**first, "subscription": subscription}

    def _check(self, key: tuple[str, str]) -> None:
        if key in self._live or key in self._used:
            raise SubscriptionUsed(f"subscription {key[1]!r} is or was one already; draw a fresh id")
        most = self._settings.max_webhooks
        if len(self._live) >= most:
            raise Overloaded(f"{most} web-hooks are there already (EPOCHAL_PUBLISHER_MAX_WEBHOOKS); try again later")

    def cancel(self, segment: str, subscription: str) -> None:
        """End a web-hook: nothing more is sent to it. Raises `UnknownSubscription`."""
        hook = self._live.get((segment, subscription))
        if hook is None:
            raise UnknownSubscription(f"no web-hook {subscription[:128]!r} is registered for segment {segment!r}")
        self._forget(hook)
        self._publisher.counters.webhook_ended("cancelled")
        if hook.task is not None:
            hook.task.cancel()

    def of(self, segment: str) -> Iterator[dict[str, Any]]:
        """The web-hooks of a segment, as clients see them."""
        return (hook.shown() for (of, _), hook in sorted(self._live.items()) if of == segment)

    async def close(self) -> None:
        """End all."""
        tasks = [hook.task for hook in self._live.values() if hook.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    def _forget(self, hook: Webhook) -> None:
        self._live.pop((hook.segment, hook.id), None)
        self._used[hook.segment, hook.id] = None
        while len(self._used) > REMEMBERED:
            del self._used[next(iter(self._used))]

    # ---- deliveries ----

    async def _run(self, hook: Webhook) -> None:
        try:
            while True:
                await self._deliver(hook, await self._next(hook))
        except Ended as end:
            level = logging.WARNING if isinstance(end, GivenUp) else logging.INFO
            logger.log(level, "web-hook %s of segment %s ends: %s", hook.id, hook.segment, end)
            self._publisher.counters.webhook_ended(end.reason)
        except EpochalError as error:
            logger.warning("web-hook %s of segment %s ends: %s", hook.id, hook.segment, error)
            self._publisher.counters.webhook_ended("failed")
        except Exception:
            logger.exception("web-hook %s of segment %s failed", hook.id, hook.segment)
            self._publisher.counters.failures += 1
            self._publisher.counters.webhook_ended("failed")
        self._forget(hook)

    async def _next(self, hook: Webhook) -> list[Placed]:
        """The next events; waits until there are any. Raises `Ended` if none can follow."""
        while True:
            try:
                events = await read_on(hook.follower, MOST_EVENTS, self._settings.answer_bytes)
            except (HistoryTruncated, PassedLull) as error:
                raise GivenUp(f"it was too slow: {error}") from None
            if events:
                return events
            if hook.follower.complete:
                raise Ended("the stream is complete")
            await hook.follower.news(None)

    async def _deliver(self, hook: Webhook, events: list[Placed]) -> None:
        """Post events until they are accepted. Raises `Ended` if they are not wanted, or not accepted for too long."""
        encoder = EventEncoder(self._publisher.encoding)
        body = await self._publisher.encode(partial(encoder.lines, None, events, subscription=hook.id))
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while why := await self._post(hook, body):
            now = monotonic()
            if hook.failing_since is None:
                hook.failing_since = now
            hook.failures, hook.why = hook.failures + 1, why
            self._publisher.counters.webhook_failures += 1
            if now - hook.failing_since >= self._settings.webhook_give_up:
                raise GivenUp(f"given up, its receiver asks for what it missed; the last delivery failed: {why}")
            await backoff.pause()  # not all at once when a receiver comes back
        self._publisher.counters.webhook_deliveries += 1
        hook.failing_since, hook.why, hook.since = None, "", events[-1][0]

    async def _post(self, hook: Webhook, body: bytes) -> str:
        """Deliver once; returns why it failed, empty if accepted. Raises `Ended` if the receiver does not want it."""
        headers = {
            "Content-Type": Form.LINES,
            "Epochal-Stream": self._settings.stream,
            "Epochal-Segment": hook.segment,
            "Epochal-Subscription": hook.id,
            "Epochal-After": f"{hook.since.incarnation}.{hook.since.seq}",
        }
        try:
            async with self._session().post(hook.callback, data=body, headers=headers, allow_redirects=False) as answer:
                answered = b""
                with suppress(asyncio.IncompleteReadError):
                    answered = await answer.content.read(_MOST_ANSWER)
                if 200 <= answer.status < 300:
                    return ""
                if answer.status == 410 or (answer.status == 404 and UnknownSubscription.code.encode() in answered):
                    raise Ended(f"its receiver does not know it any more ({answer.status})")
                return f"the receiver answered {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            return str(error) or type(error).__name__

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            connector = aiohttp.TCPConnector(
                limit=self._settings.max_webhooks, use_dns_cache=False, socket_factory=self._targets.socket
            )
            self._client = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=self._settings.webhook_timeout),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                headers={"User-Agent": "epochal-publisher"},
            )
        return self._client
