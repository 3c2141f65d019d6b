"""The programs of docs/python.md do what the page says."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
CODE = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
TABLES = [code for code in CODE if "append_frame" in code]
PROGRAMS = [code for code in CODE if "import epochal" in code and code not in TABLES]
ASIDE = [code for code in CODE if "schema" in code]
WITH_A_CLIENT = "import epochal\nwith epochal.connect_blocking() as client:\n    {}\n    with subscription as sub:\n"
FIELDS = {"fields": [{"name": "celsius", "type": "float64"}]}


READINGS = [{"celsius": 20.5}, {"celsius": 21.0}]


async def outcome(services, program: str) -> tuple[int | None, list[str]]:
    """Exit status and printed lines of one run."""
    child = await services.run(program)
    out, _ = await child.communicate()
    return child.returncode, out.decode().splitlines()


@pytest.mark.parametrize("program", PROGRAMS, ids=["with a loop", "without"])
async def test_a_documented_program(services, program: str) -> None:
    program = program.replace("demo/readings", await services.stream())
    lines: list[str] = []
    for run in range(2):
        lines.append(f"{run} {READINGS}")
        assert await outcome(services, program) == (0, lines)


@pytest.mark.parametrize("program", PROGRAMS, ids=["with a loop", "without"])
@pytest.mark.parametrize(
    ("end", "status", "first"),
    [
        ("raise RuntimeError('in the middle')", 1, ["0 was aborted", "1 was aborted", f"2 {READINGS}"]),
        ("__import__('os')._exit(9)", 9, [f"0 {[*READINGS, *READINGS, *READINGS]}"]),
    ],
    ids=["raises", "is killed"],
)
async def test_a_documented_program_goes_on_after_runs_that_failed(
    services, program: str, end: str, status: int, first: list[str]
) -> None:
    program = program.replace("demo/readings", await services.stream())
    failing = re.sub(r"(await )?writer\.advance\(.*", end, program)
    for _ in range(2):
        assert await outcome(services, failing) == (status, [])
    assert await outcome(services, program) == (0, first)
    following = int(first[-1].split()[0]) + 1
    assert await outcome(services, program) == (0, [*first, f"{following} {READINGS}"])


async def test_the_documented_tables(services) -> None:
    (program,) = TABLES
    child = await services.run(program.replace("demo/hourly", await services.stream()))
    out, _ = await child.communicate()
    assert (child.returncode, out) == (0, b"{1: 2, 2: 1}\n1 19.75\n2 21.0\n")


async def test_the_documented_schema(services) -> None:
    (code,) = ASIDE
    name = "documented"
    await services.declare(name, {"time": {"shape": "int"}, "payload": {"encoding": "msgpack", "schema": FIELDS}})
    program = WITH_A_CLIENT.format(code.replace("demo/readings", f"test/{name}").replace("\n", "\n    "))
    child = await services.run(program + "        print(sub.ready.wait(20))\n")
    out, _ = await child.communicate()
    assert (child.returncode, out) == (0, b"None\n")
