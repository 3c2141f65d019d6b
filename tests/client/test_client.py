"""`epochal.connect` and the names that are promised."""

import asyncio
import inspect
import os
import pickle
import pkgutil
import re
from pathlib import Path

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.errors import ConfigError, EpochalError, UsageError, WriterClosed

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
ERRORS = {name: kind for name, kind in vars(epochal.errors).items() if isinstance(kind, type) and name[0] != "_"}


def test_the_promised_names() -> None:
    assert epochal.__all__ == sorted(epochal.__all__, key=lambda name: (not name[0].isupper(), name))
    promised = {
        "BlockingClient", "BlockingSubscription", "BlockingWriter",
        "Client", "Cursor", "Data", "Epoch", "EpochAborted", "FrontierChanged", "Gap", "Position",
        "Rewound", "SegmentDown", "SegmentUp", "Subscription", "TimeCodec", "Via", "Writer",
        "__version__", "connect", "connect_blocking", "errors", "traced",
    }  # fmt: skip
    promised |= {name for name, kind in ERRORS.items() if issubclass(kind, EpochalError)}
    assert set(epochal.__all__) == promised
    assert all(hasattr(epochal, name) for name in promised)


def test_every_error_is_caught_by_its_name_at_the_top() -> None:
    for name, kind in ERRORS.items():
        if issubclass(kind, EpochalError):
            assert getattr(epochal, name) is kind
            assert re.search(rf"\b{name}\b", epochal.errors.__doc__ or ""), f"{name} is not in the tree of errors"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_calls_epochals_is_there(page: Path) -> None:
    """By `epochal.Name` in its text, and by every `epochal.name` of its programs."""
    text = page.read_text()
    named = set(re.findall(r"(?<![\w./-])epochal\.([A-Z]\w*)", text))
    for program in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        named |= set(re.findall(r"(?<![\w./-])epochal\.(\w+)", program))
    modules = {module.name for module in pkgutil.iter_modules(epochal.__path__)}
    assert not {name for name in named - modules if not hasattr(epochal, name)}


@pytest.mark.parametrize("kind", [epochal.Client, epochal.Writer, epochal.Subscription])
def test_every_public_method_is_documented(kind: type) -> None:
    for name, member in inspect.getmembers(kind):
        if not name.startswith("_") and (callable(member) or isinstance(member, property)):
            assert inspect.getdoc(member), f"{kind.__name__}.{name}"


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="http://"):
        epochal.connect("127.0.0.1:8700")


async def test_the_catalog_is_named_by_the_environment(services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_CATALOG", services.url)
    stream = await services.stream()
    async with epochal.connect() as client, client.writer(stream) as writer:
        await writer.append(0, [1])


@pytest.mark.pure("compiled objects have no dict")
async def test_what_each_record_passes_has_few_attributes(services) -> None:
    """From 30 attributes on, Python 3.11 takes longer for each call of a method on itself, some for each record."""
    stream = await services.stream()
    async with (
        epochal.connect(services.url) as client,
        client.subscribe(stream) as sub,
        client.writer(stream, linger=0.001) as writer,
    ):
        await sub.ready.wait()
        await writer.append(0, ["x"])
        await writer.finish()
        assert [epoch.time async for epoch in sub.epochs()] == [0]
        sizes = {
            type(each).__name__: len(vars(each))
            for each in (writer, writer.session, writer.session.machine, sub, sub._machine)
        }
    assert not {name: size for name, size in sizes.items() if size >= 30}


async def test_two_hundred_subscriptions_of_one_client(services) -> None:
    """Above zmq's own limit of sockets; and nothing is left of them, nor of their threads."""
    stream = await services.stream(segments=3)
    threads = len(os.listdir("/proc/self/task"))
    async with epochal.connect(services.url) as client:
        subscriptions = [client.subscribe(stream) for _ in range(200)]
        async with client.writer(stream) as writer:
            await asyncio.gather(*(sub.__aenter__() for sub in subscriptions))
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(sub.ready.wait() for sub in subscriptions))
            await writer.append(0, ["x"])
            await writer.finish()
            epochs = [[epoch.time async for epoch in sub.epochs()] for sub in subscriptions]
            await asyncio.gather(*(sub.__aexit__(None, None, None) for sub in subscriptions))
    assert epochs == [[0]] * 200
    async with asyncio.timeout(PATIENCE):
        while len(os.listdir("/proc/self/task")) > threads:  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.01)


async def test_a_cancelled_close_frees_the_sockets_all_the_same(services, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = await services.stream()
    client = epochal.connect(services.url)
    writer = await client.writer(stream).__aenter__()
    links = list(writer.session._links.values())
    writer.detach()
    for ending, held in ((writer.__aexit__(None, None, None), None), (client.close(), asyncio.Event())):
        if held is not None:
            monkeypatch.setattr(client.catalog, "close", held.wait)  # connections that do not end at once
        task = asyncio.create_task(ending)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert writer.session._tasks == []
        assert all(link._socket is None for link in links)
    assert client._context.closed
    monkeypatch.undo()
    await client.catalog.close()


@pytest.mark.rule("E4")
async def test_closing_a_client_leaves_what_is_still_open(services, caplog: pytest.LogCaptureFixture) -> None:
    stream = await services.stream(segments=2)
    async with epochal.connect(services.url) as other, other.subscribe(stream) as watching:
        await watching.ready.wait()
        client = epochal.connect(services.url)
        writer = await client.writer(stream, writer_id="w").__aenter__()
        subscription = await client.subscribe(stream).__aenter__()
        await subscription.ready.wait()
        await writer.append(0, ["half"])
        await client.close()
        with pytest.raises(WriterClosed):
            await writer.append(0, ["late"])
        with pytest.raises(UsageError, match="was left"):
            await anext(subscription.epochs())
        async with asyncio.timeout(PATIENCE):
            async for event in watching.events():
                if event == epochal.EpochAborted(0):
                    break
    assert not caplog.records


def test_every_error_is_made_again_from_its_code_and_from_another_process() -> None:
    for name, kind in ERRORS.items():
        if issubclass(kind, EpochalError):
            made = epochal.errors.from_code(kind.code, "why")
            assert str(made) == "why", name
            assert str(pickle.loads(pickle.dumps(made))) == "why", name
