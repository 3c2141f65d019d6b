"""What the README shows, as typed."""

import asyncio
import os
import re
import shlex
import sys
from pathlib import Path

from tests.patience import PATIENCE

from epochal.client.catalog.catalog import CatalogClient

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


async def output(environment: dict[str, str], *command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=README.parent, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0, command
    return printed.decode()


async def test_the_commands_and_the_python_example(services) -> None:
    environment = {**os.environ, "EPOCHAL_CATALOG": services.url}
    typed = [line.split("#")[0] for line in blocks("console")[1].splitlines() if line.startswith("$ ")]
    commands = [shlex.split(line[2:]) for line in typed]
    assert commands[0][1:] == ["up", "&"]  # it runs already
    epochal = str(Path(sys.executable).with_name("epochal"))
    try:
        *_, subscribed = [await output(environment, epochal, *arguments) for _, *arguments in commands[1:]]
        assert subscribed == '0\t{"delay": 3}\n'
        printed = await output(environment, sys.executable, "-c", blocks("python")[0])
        assert printed.splitlines() == ["0 3", "1 5", "2 5", "3 5"]
    finally:
        async with CatalogClient(services.url) as catalog:
            await catalog.delete("demo", "delays")
