"""Whether a query may begin, by what the catalog says of its writer: silent for long, heard, or not known."""

from types import SimpleNamespace
from typing import Any

import pytest

from epochal.catalog_api.answers import Held, StreamInfo
from epochal.errors import QueryRunning
from epochal_spark import earlier_runs
from epochal_spark.earlier_runs import StartRequest

ASKED = StartRequest("test/s", "q", "/new", None, take_over=False, new_checkpoint=False, left=None)


def client(*reports: tuple[float | None, float]) -> Any:
    """Stands for a client: each segment's publisher has told this silence of the writer, so many seconds ago."""

    async def get(*_: str) -> Any:
        segments = [
            SimpleNamespace(holders=() if silent is None else (Held(4, "writer", "q", 9.0, silent),), reported=reported)
            for silent, reported in reports
        ]
        return SimpleNamespace(writers=("q",), segments=segments)

    return SimpleNamespace(catalog=SimpleNamespace(get=get))


@pytest.fixture
def info(monkeypatch: pytest.MonkeyPatch) -> StreamInfo:
    monkeypatch.setattr(earlier_runs, "LOOK", 0.01)
    monkeypatch.setattr(earlier_runs, "PATIENCE", 0.1)
    stream: Any = SimpleNamespace(namespace="test", name="s")
    return stream


@pytest.mark.parametrize("reports", [[(3.2, 0.1)], [(None, 0.1), (4.5, 1.0)]], ids=["all", "where it holds"])
async def test_a_silent_writer_is_taken_to_be_gone(info: StreamInfo, reports: list[Any]) -> None:
    await earlier_runs._refuse_a_second(client(*reports), info, ASKED)


@pytest.mark.parametrize(
    "reports", [[(4.0, 3.8)], [(9.0, 0.1), (4.0, 3.8)], [(None, 0.1)]], ids=["stale", "stale beside", "not known"]
)
async def test_a_writer_that_is_not_known_to_be_silent_is_refused(info: StreamInfo, reports: list[Any]) -> None:
    with pytest.raises(QueryRunning, match=r"does not say when it was last heard.*take_over=True"):
        await earlier_runs._refuse_a_second(client(*reports), info, ASKED)


async def test_a_writer_that_is_heard_is_refused(info: StreamInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_runs, "BETWEEN", 0.0)
    monkeypatch.setattr(earlier_runs, "PATIENCE", 10.0)
    with pytest.raises(QueryRunning, match="it was heard just now"):
        await earlier_runs._refuse_a_second(client((0.0, 0.0)), info, ASKED)
