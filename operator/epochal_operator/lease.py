"""The lease (coordination.k8s.io) by which only one operator acts at a time.

Whether another operator's lease has lapsed is measured with the own clock: the time for which it was seen without a
renewal. The times in the lease come from the clock of another machine, and are not used.
"""

import asyncio
import logging
from datetime import UTC, datetime
from time import monotonic

from epochal.kube.api import ApiError
from epochal.resources.spec import Object
from epochal_operator.api import ThrottledApi
from epochal_operator.settings import OperatorSettings

logger = logging.getLogger("epochal.operator")


class LeaseLost(Exception):
    """Another operator may act by now, so this one must not."""


class Leadership:
    """The operator's lease: `acquire` it, then `keep` it; `check` raises once another operator may have it."""

    def __init__(self, settings: OperatorSettings, api: ThrottledApi) -> None:
        self._api = api
        self._identity = settings.identity
        self._duration = settings.lease_duration
        self._place = settings.lease_namespace, settings.lease_name
        self._renewed = float("-inf")
        self._seen: tuple[object, float] = (None, 0.0)

    @property
    def held(self) -> bool:
        """Whether no other operator can have the lease yet."""
        # A third of its duration is left for clocks that run at different speeds, and for writes in progress.
        return monotonic() - self._renewed < self._duration * 2 / 3

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease is held."""
        if not self.held:
            raise LeaseLost(f"the lease {'/'.join(self._place)} was not renewed in time; another operator may have it")

    async def acquire(self) -> None:
        """Wait until this operator has the lease."""
        reported = False
        while True:
            try:
                if await self._try():
                    logger.info("this operator acts: %s holds the lease %s", self._identity, "/".join(self._place))
                    return
            except ApiError as error:
                logger.warning("the lease cannot be acquired now: %s", error)
            else:
                if not reported:
                    logger.info("another operator acts; waiting for the lease %s", "/".join(self._place))
                reported = True
            await asyncio.sleep(self._duration / 8)

    async def keep(self) -> None:
        """Renew the lease again and again; raises `LeaseLost`."""
        while True:
            await asyncio.sleep(self._duration / 5)
            try:
                if not await self._try():
                    self._renewed = float("-inf")
            except ApiError as error:
                logger.warning("the lease cannot be renewed now: %s", error)
            self.check()

    async def release(self) -> None:
        """Give the lease up, so that a successor need not wait. A failure is only logged: then it lapses."""
        if not self.held:
            return
        self._renewed = float("-inf")
        try:
            lease = await self._api.get("Lease", *self._place)
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                await self._api.replace({**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except ApiError as error:
            logger.info("the lease was not given up, it will lapse: %s", error)

    async def _try(self) -> bool:
        """Acquire or renew the lease; returns whether this operator has it. Raises `ApiError`."""
        requested = monotonic()  # before the write, as other operators may count from that moment
        lease = await self._api.get("Lease", *self._place)
        if lease is not None and not self._may_take(lease["spec"]):
            return False
        try:
            if lease is None:
                await self._api.create(self._ours({"kind": "Lease", "metadata": {}, "spec": {}}))
            else:
                await self._api.replace(self._ours(lease))
        except ApiError as error:
            if error.status == 409:
                return False
            raise
        self._renewed = requested
        return True

    def _may_take(self, spec: Object) -> bool:
        holder = spec.get("holderIdentity")
        if holder in ("", None, self._identity):
            return True
        state = holder, spec.get("renewTime"), spec.get("leaseTransitions")
        if state != self._seen[0]:
            self._seen = state, monotonic()
        return monotonic() - self._seen[1] > float(spec.get("leaseDurationSeconds") or self._duration)

    def _ours(self, lease: Object) -> Object:
        namespace, name = self._place
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = lease["spec"]
        changed = before.get("holderIdentity") != self._identity
        spec = {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._duration)),
            "renewTime": now,
            "acquireTime": now if changed else before.get("acquireTime", now),
            "leaseTransitions": before.get("leaseTransitions", 0) + (1 if changed and before else 0),
        }
        metadata = {**lease["metadata"], "namespace": namespace, "name": name}
        return {**lease, "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
