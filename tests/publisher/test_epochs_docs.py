"""The examples of docs/http.md for whole epochs, as they are typed."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.publisher.relaying import relaying
from tests.publisher.test_epochs_http import TWO, publish

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
EXAMPLES: dict[str, str] = dict(re.findall(r"<!-- relay example: (\w+) -->\n```bash\n(.*?)```", PAGE, re.DOTALL))


async def typed(name: str, relay: str) -> AsyncIterator[str]:
    """The lines that an example prints."""
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", EXAMPLES[name], env={"RELAY": relay, "PATH": "/usr/bin:/bin"}, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async for line in process.stdout:
        yield line.decode()
    assert await process.wait() == 0


@pytest.mark.skipif(not all(map(shutil.which, ("bash", "curl", "jq"))), reason="the examples are for bash, curl and jq")
@pytest.mark.rule("F18")
async def test_the_examples_run_and_answer_as_the_page_says(start: Any) -> None:
    stream, _ = start(**TWO)
    async with (
        asyncio.timeout(PATIENCE), relaying(stream) as relay, relay.client.writer(stream.name) as writer
    ):  # fmt: skip
        await writer.append(0, [{"flight": "UA1545"}, {"flight": "DL461"}], key=b"a")
        await writer.append(1, [{"flight": "B6725"}], key=b"b")
        await writer.advance(2)
        shown = re.search(r"```text\n(.*?)```", PAGE.split("relay example: start")[1], re.DOTALL)
        assert shown is not None
        assert "".join([line async for line in typed("start", relay.url)]) == shown[1], "exactly what the page shows"
        await relay.lines()  # so that `now` is at once
        following = typed("follow", relay.url)
        for time in (2, 3, 4):
            printed = asyncio.ensure_future(anext(following))
            while not len(relay.readers.places):  # noqa: ASYNC110  # nobody announces it
                await asyncio.sleep(0.01)
            await publish(writer, time, "x")
            assert await printed == f"{time}\n"
        assert [line async for line in following] == []
    assert set(EXAMPLES) == {"start", "follow"}


async def test_what_every_service_refuses_is_in_the_relays_table(start: Any) -> None:
    table = PAGE.split("### Refusals of a relay")[1].split("###")[0]
    stream, _ = start(**TWO)
    async with relaying(stream) as relay:
        for method, path in (("GET", "/v1/nothing"), ("POST", "/v1/epochs"), ("GET", "/v1/segments/0/events")):
            async with relay.web.request(method, f"{relay.url}{path}") as answer:
                code = (await answer.json(content_type=None))["code"]
            assert re.search(rf"^\| {answer.status} \| .*`{code}`", table, re.MULTILINE), (answer.status, code)
