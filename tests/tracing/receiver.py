"""A real OTLP receiver that keeps what it was sent, and others that a collector can turn into."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from oteltap import OtelTapHttpProtobufReceiver, OtelTapHttpProtobufReceiverSettings
from tests.patience import PATIENCE
from tests.ports import free_port


class Received:
    """The spans that came, and the metrics by name."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []
        self.metrics: dict[str, Any] = {}
        self._came = asyncio.Event()

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    async def until(self, name: str, count: int = 1, timeout: float = PATIENCE) -> list[Span]:
        """Wait for so many spans of a name."""
        try:
            async with asyncio.timeout(timeout):
                while len(self.named(name)) < count:
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            came = Counter(span.name for span in self.spans)
            raise AssertionError(f"{count} spans `{name}` in {timeout:g} s, and there are {dict(came)}") from None
        return self.named(name)

    async def until_metric(self, name: str, timeout: float = PATIENCE) -> Any:
        async with asyncio.timeout(timeout):
            while name not in self.metrics:
                self._came.clear()
                await self._came.wait()
        return self.metrics[name]

    async def take_spans(self, spans: AsyncIterator[Span]) -> None:
        async for span in spans:
            self.spans.append(span)
            self._came.set()

    async def take_metrics(self, metrics: AsyncIterator[Any]) -> None:
        async for metric in metrics:
            self.metrics[metric.name] = metric
            self._came.set()


def attributes(of: Any) -> dict[str, Any]:
    """A span's attributes, or a data point's."""
    return {pair.key: _value(pair.value) for pair in of.attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[Received]:
    """A receiver on a port of its own."""
    port = free_port()
    async with OtelTapHttpProtobufReceiver(OtelTapHttpProtobufReceiverSettings(port)) as tap:
        received = Received(f"http://127.0.0.1:{port}")
        taking = [
            asyncio.create_task(received.take_spans(tap.stream_traces())),
            asyncio.create_task(received.take_metrics(tap.stream_metrics())),
        ]
        try:
            yield received
        finally:
            for task in taking:
                task.cancel()
            await asyncio.gather(*taking, return_exceptions=True)


@contextlib.asynccontextmanager
async def silent(answer_after: float | None) -> AsyncIterator[tuple[str, list[float]]]:
    """A collector that answers after so many seconds, or never; and when it was asked."""
    asked: list[float] = []
    over = asyncio.Event()
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = next(
                    int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
                )
                await reader.readexactly(size)
                asked.append(asyncio.get_running_loop().time())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(answer_after):
                        await over.wait()
                if over.is_set():
                    return
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        over.set()
        server.close()
        for task in serving - {None}:
            assert task is not None
            task.cancel()
            await asyncio.wait([task])
