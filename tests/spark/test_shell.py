"""Plain `pyspark` and `spark-submit`: no command and no session of ours, one line to register."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.errors import ConfigError
from epochal_spark.sink import check_workers

BIN = Path(sys.executable).parent

WRITE = """
from epochal_spark import EpochalDataSource
spark.dataSource.register(EpochalDataSource)
df = spark.range(6).selectExpr("id % 2 AS t", "id AS n")
write = df.write.format("epochal").options(stream="{stream}", time="t", catalog="{catalog}", finish="true")
write.mode("append").save()
"""


async def run(*command: str, typed: str = "", **environment: str) -> str:
    """Everything that a program writes."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    settings = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1", **environment}
    process = await asyncio.create_subprocess_exec(
        *command, env=inherited | settings, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE * 3):
            told, _ = await process.communicate(typed.encode())
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # its Java too, which has the same output
            await process.communicate()
    return told.decode()


async def written(catalog: str, stream: str) -> dict[int, list[int]]:
    """What stands in the stream, read from its start."""
    async with (
        epochal.connect(catalog) as client,
        client.subscribe(stream, since="start") as sub,
        asyncio.timeout(PATIENCE * 3),
    ):
        epochs = [epoch async for epoch in sub.epochs()]
    return {e.time: sorted(r["n"] for r in e.records()) for e in epochs if isinstance(e, epochal.Epoch)}


@pytest.mark.java
@pytest.mark.long
async def test_a_plain_pyspark_shell_writes_after_one_line(catalog: str, declare: Callable[..., str]) -> None:
    stream = declare()
    typed = WRITE.format(stream=stream, catalog=catalog) + "exit()\n"
    interactive = {"PYSPARK_DRIVER_PYTHON_OPTS": "-i"}  # its input is no terminal
    told = await run(str(BIN / "pyspark"), "--master", "local[1]", typed=typed, **interactive)
    assert "Error" not in told, told
    assert await written(catalog, stream) == {0: [0, 2, 4], 1: [1, 3, 5]}


@pytest.mark.java
@pytest.mark.long
async def test_a_plain_spark_submit_writes_after_one_line(
    catalog: str, declare: Callable[..., str], tmp_path: Path
) -> None:
    stream = declare()
    script = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n"
    (tmp_path / "job.py").write_text(script + WRITE.format(stream=stream, catalog=catalog))
    told = await run(str(BIN / "spark-submit"), "--master", "local[1]", str(tmp_path / "job.py"))
    assert "Error" not in told, told
    assert await written(catalog, stream) == {0: [0, 2, 4], 1: [1, 3, 5]}


class Context:
    """As much of a SparkContext as names the Python of the workers."""

    def __init__(self, python: str) -> None:
        self.pythonExec = python


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("echo 'ModuleNotFoundError: No module named epochal_spark' >&2; exit 1", "No module named epochal_spark"),
        ("echo 3.7", r"it is Python 3\.7, and the driver is Python 3"),
    ],
)
def test_workers_with_another_python_are_found_at_registration(tmp_path: Path, body: str, match: str) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    with pytest.raises(ConfigError, match=f"(?s){match}.*PYSPARK_PYTHON={sys.executable}"):
        check_workers(Context(str(python)))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no such program"):
        check_workers(Context(str(tmp_path / "none")))  # type: ignore[arg-type]
    check_workers(Context(sys.executable))  # type: ignore[arg-type]
