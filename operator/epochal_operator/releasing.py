"""Letting streams go without an operator: what an uninstallation does last.

Apart from the operator because it is gone by then: its finalizer on a stream would keep that stream, and the namespace
around it, for ever.
"""

import asyncio
import logging
from collections.abc import Sequence

from epochal.resources.cluster.names import FINALIZER
from epochal_operator.api import STREAM, Api, ApiError
from epochal_operator.ownership import claimant, without_claim

logger = logging.getLogger("epochal.operator")

_PAUSE = 1.0


async def release(api: Api, operator: str, namespaces: Sequence[str], settle: float) -> int:
    """Remove the finalizer of this operator from every stream; returns how many had it.

    Streams that another operator looks after keep theirs. Looks until none has had it for `settle` seconds: an operator
    that is ending may set it once more. No definition of streams: nothing to do. Raises `ApiError`.
    """
    loop = asyncio.get_running_loop()
    released, quiet_since = 0, loop.time()
    kept: set[str] = set()
    while True:
        found = sum([await _release_all(api, operator, namespace, kept) for namespace in namespaces or ("",)])
        released += found
        if found:
            quiet_since = loop.time()
        if loop.time() - quiet_since >= settle:
            return released
        await asyncio.sleep(min(_PAUSE, settle))


async def _release_all(api: Api, operator: str, namespace: str, kept: set[str]) -> int:
    try:
        streams, _ = await api.list(STREAM, namespace)
    except ApiError as error:
        if error.status == 404:
            return 0
        raise
    count = 0
    for stream in streams:
        name, whose = "{namespace}/{name}".format_map(stream["metadata"]), claimant(stream)
        if whose not in ("", operator):
            if name not in kept:
                logger.info("left %s alone: the operator %s looks after it", name, whose)
            kept.add(name)
        elif FINALIZER in stream["metadata"].get("finalizers", ()):
            try:
                await api.merge(stream, without_claim(stream))
            except ApiError as error:
                if error.status not in (404, 409):  # gone, or changed: the next look sees
                    raise
            count += 1
            logger.info("released %s", name)
    return count
