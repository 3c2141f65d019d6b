"""An HTTP client that costs as little as it can, so that the server is what is measured.

Apart from `ours` because the same bytes go to a catalog and to another server: a fixed request on kept connections,
sent again as soon as its answer is whole.
"""

import asyncio
import re
import time

from roles.common import say

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class _Asking(asyncio.Protocol):
    """One connection; counts its whole answers."""

    def __init__(self, request: bytes) -> None:
        self._request, self._answer = request, b""
        self.answers = 0
        self.failed = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, end, body = self._answer.partition(b"\r\n\r\n")
        if not end:
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self.failed = head.decode(errors="replace")
            self._transport.close()
            return
        length = _LENGTH.search(head)
        whole = len(body) >= int(length[1]) if length is not None else body.endswith(b"0\r\n\r\n")
        if whole:
            self._answer = b""
            self.answers += 1
            self._transport.write(self._request)


async def ask(host: str, port: int, request: str, connections: int, milliseconds: int) -> None:
    """Answers a second over all connections; `request` is hexadecimal."""
    loop = asyncio.get_running_loop()
    asking = [_Asking(bytes.fromhex(request)) for _ in range(connections)]
    for one in asking:
        await loop.create_connection(lambda one=one: one, host, port)  # type: ignore[misc]
    await asyncio.sleep(0.3)  # caches fill
    before, start = sum(one.answers for one in asking), time.monotonic()
    await asyncio.sleep(milliseconds / 1000)
    answers, took = sum(one.answers for one in asking) - before, time.monotonic() - start
    failed = [one.failed for one in asking if one.failed]
    if failed:
        raise RuntimeError(failed[0])
    say(rate=answers / took, answers=before + answers)
