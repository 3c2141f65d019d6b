"""The metrics of a service: one request of bounded size, and the numbers of each segment in its answer.

Publishers and catalogs serve them as text, for operators; no client needs them.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

MAX_METRICS = 4 * 2**20
"""Bytes of one answer that are read; a publisher of a hundred segments has a few hundred KiB."""

_SAMPLE = re.compile(r"^epochal_publisher_(\w+?)\{([^\n]*)\} ([0-9.eE+-]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Answered:
    """The body of an answer, and whether it was cut off."""

    text: bytes
    cut: bool


def open_session() -> aiohttp.ClientSession:
    """Connections to services: no compressed answer, which could unpack to any size, and no cookies."""
    return aiohttp.ClientSession(
        auto_decompress=False, headers={"Accept-Encoding": "identity"}, cookie_jar=aiohttp.DummyCookieJar()
    )


async def read_text(session: aiohttp.ClientSession, url: str, timeout: float, most: int = MAX_METRICS) -> Answered:
    """The body of the answer of `url`, at most `most` bytes.

    Raises `aiohttp.ClientError`, `OSError` or `ValueError` without an answer, `TimeoutError` after `timeout` seconds.
    """
    async with asyncio.timeout(timeout), session.get(url, allow_redirects=False) as response:
        if response.status != 200:
            raise ValueError(f"answers {response.status}")
        parts, size = list[bytes](), 0
        async for part in response.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > most:
                response.close()  # else the rest of the answer would be read
                return Answered(b"".join(parts)[:most], True)
        return Answered(b"".join(parts), False)


def segment_samples(text: str) -> Mapping[tuple[str, str, str], float]:
    r"""The numbers of each segment in a publisher's metrics, by name, stream and segment.

    >>> segment_samples('epochal_publisher_acks_total{segment="0",stream="demo/a"} 3.0\n')
    {('acks_total', 'demo/a', '0'): 3.0}
    """
    found: dict[tuple[str, str, str], float] = {}
    for name, inner, number in _SAMPLE.findall(text):
        labels = {key: _ESCAPE.sub(_unescaped, value) for key, value in _LABEL.findall(inner)}
        try:
            found[name, labels["stream"], labels["segment"]] = float(number)
        except (KeyError, ValueError):  # a number of the whole process, or no number
            continue
    return found


def _unescaped(found: "re.Match[str]") -> str:
    return "\n" if found[1] == "n" else found[1]
