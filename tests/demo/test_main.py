"""`make demo`: what it needs, that it ends in order, and the whole of it on few days."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from examples.demo import job
from tests.patience import PATIENCE
from tests.processes import marked

ROOT = Path(__file__).parents[2]
JAVA = shutil.which("java") or os.environ.get("JAVA_HOME")
needs_java = pytest.mark.skipif(not JAVA, reason="Spark needs Java 17 or newer, and there is none on the PATH")


def demo(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.demo", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE * 3, check=False
    )


def test_without_java_it_says_so_at_once(environment: dict[str, str], tmp_path: Path) -> None:
    bare = {name: value for name, value in environment.items() if name != "JAVA_HOME"}
    ended = demo(environment={**bare, "PATH": str(tmp_path)})
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "Java 17 or newer; found: none" in ended.stderr
    assert "apt-get install" in ended.stderr


@pytest.mark.skipif(not shutil.which("java"), reason="there is no java on the PATH")
def test_what_java_warns_of_is_not_among_the_events_of_the_job(tmp_path: Path) -> None:
    """The job sends its events on its standard output, where a JVM prints its warnings unless told otherwise."""

    def warn(environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        command = ["java", "-XX:+UseLargePages", "-version"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    if "[warning]" not in warn(os.environ).stdout:
        pytest.skip("this machine has large pages, so that Java does not warn of it")
    told = warn(job.environment(tmp_path))
    assert told.stdout == ""
    assert "[warning]" in told.stderr


def test_an_old_java_is_named(environment: dict[str, str], tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    bare = {name: value for name, value in environment.items() if name != "JAVA_HOME"}
    ended = demo(environment={**bare, "PATH": f"{tmp_path}:/bin:/usr/bin"})
    assert ended.returncode == 2
    assert "found: 11" in ended.stderr


@needs_java
def test_a_directory_with_something_in_it_is_not_used(environment: dict[str, str], tmp_path: Path) -> None:
    ended = demo("--keep", str(tmp_path), environment=environment)
    assert ended.returncode == 2
    assert "is not empty" in ended.stderr


@needs_java
@pytest.mark.long
def test_two_weeks_are_equal_to_plain_spark_in_every_number(environment: dict[str, str]) -> None:
    ended = demo(environment=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    assert "14 days: 266 hours, 12,208 flights" in ended.stdout
    assert re.search(
        r"a late subscriber joins and asks a relay for JFK only: \d+ of 266 hours are complete", ended.stdout
    )
    assert re.search(r"from the start +266 of 266 hours \(100 %\) +every number equal", ended.stdout)
    assert re.search(r"late, JFK only +\d+ of 266 hours .* every number equal, and no hour in part", ended.stdout)
    assert re.search(r"through a relay +sent \d+ KiB +[34]\d % of the \d+ KiB of all airports", ended.stdout)
    assert re.search(r"a publisher is killed with -9: \d+ of 266 hours are complete .*, under way", ended.stdout)
    assert re.search(r"a publisher +killed with -9 at \d+ % +back after [\d.]+ s", ended.stdout)


@pytest.mark.long
@needs_java
async def test_an_interrupt_leaves_nothing_behind(environment: dict[str, str], tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "examples.demo",
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE * 3):
        while b"publishing" not in (line := await process.stdout.readline()):
            assert line, "it ended before it published"
    assert len(marked(str(tmp_path))) > 4
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert (process.returncode, err) == (130, b"")
