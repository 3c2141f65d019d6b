"""What the README shows, as typed."""

import ast
import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession
from tests.patience import PATIENCE

import epochal
from epochal.client.catalog.catalog import CatalogClient

README = Path(__file__).parents[2] / "README.md"
PROGRAM = README.parent / "examples" / "delays.py"
STREAM = "demo/delays"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


async def output(environment: dict[str, str], *command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=README.parent, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0, command
    return printed.decode()


async def program(environment: dict[str, str]) -> list[str]:
    """The lines of one run of the program in the README."""
    return (await output(environment, sys.executable, "-c", blocks("python")[0])).splitlines()


@pytest.fixture
async def environment(services) -> AsyncIterator[dict[str, str]]:
    """That of a shell, where the stream is not declared yet."""
    yield {**os.environ, "EPOCHAL_CATALOG": services.url}
    async with CatalogClient(services.url) as catalog:
        await catalog.delete("demo", "delays")


async def declare(environment: dict[str, str]) -> None:
    epochal_command = str(Path(sys.executable).with_name("epochal"))
    await output(environment, epochal_command, "apply", "-f", "examples/delays.yaml")


def test_the_program_is_that_of_the_examples() -> None:
    source = PROGRAM.read_text(encoding="utf-8")
    docstring = ast.parse(source).body[0]
    assert docstring.end_lineno is not None
    assert blocks("python")[0] == "".join(source.splitlines(keepends=True)[docstring.end_lineno + 1 :])


def test_it_is_a_page_of_900_words() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= 900


def test_every_link_leads_to_a_file_or_a_heading() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", README.read_text(encoding="utf-8"))
    assert len(links) > 20
    for place, anchor in links:
        page = README.parent / place if place else README
        assert page.is_file(), place
        if anchor:
            lines = page.read_text(encoding="utf-8").splitlines()
            headings = [re.sub(r"[^\w -]", "", line.lstrip("# ").lower()) for line in lines if line.startswith("#")]
            assert anchor in [heading.replace(" ", "-") for heading in headings], f"{place}#{anchor}"


async def test_the_commands(environment: dict[str, str]) -> None:
    (shown,) = (block for block in blocks("console") if "epochal up &" in block)
    typed = [line.split("#")[0] for line in shown.splitlines() if line.startswith("$ ")]
    commands = [shlex.split(line[2:]) for line in typed]
    assert commands[0][1:] == ["up", "&"]  # it runs already
    beside = Path(sys.executable).parent
    *_, ran, subscribed = [
        await output(environment, str(beside / Path(command).name), *arguments) for command, *arguments in commands[1:]
    ]
    assert ran.splitlines() == ["0 5", "1 5", "2 5"]
    assert subscribed.splitlines() == [f'{hour}\t{{"delay": {delay}}}' for hour in range(3) for delay in (7, -2)]


async def test_the_look_up(environment: dict[str, str]) -> None:
    (url,) = re.findall(r"`curl http://127\.0\.0\.1:8700(/.*?)`", README.read_text(encoding="utf-8"))
    await declare(environment)
    async with ClientSession() as session, session.get(environment["EPOCHAL_CATALOG"] + url) as answer:
        (segment,) = (await answer.json())["segments"]
    assert segment["publisher"]["addresses"]["requests"].startswith("tcp://")


async def test_the_program_goes_on_where_its_last_run_ended(environment: dict[str, str]) -> None:
    await declare(environment)
    assert await program(environment) == ["0 5", "1 5", "2 5"]
    assert await program(environment) == ["0 5", "1 5", "2 5", "3 5", "4 5", "5 5"]


async def fail_in_the_middle(url: str) -> None:
    async with epochal.connect(url) as client, client.writer(STREAM, "w1") as writer:
        await writer.append(0, [{"delay": 7}])
        raise RuntimeError("in the middle of hour 0")


async def test_the_program_goes_past_an_hour_in_which_a_run_failed(environment: dict[str, str]) -> None:
    await declare(environment)
    with pytest.raises(RuntimeError, match="in the middle"):
        await fail_in_the_middle(environment["EPOCHAL_CATALOG"])
    assert await program(environment) == ["0 was aborted", "1 5", "2 5"]
    assert await program(environment) == ["0 was aborted", "1 5", "2 5", "3 5", "4 5", "5 5"]
