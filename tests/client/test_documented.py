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


@pytest.mark.parametrize("program", PROGRAMS, ids=["with a loop", "without"])
async def test_a_documented_program(services, program: str) -> None:
    stream = await services.stream()
    for run in range(2):
        child = await services.run(program.replace("demo/readings", stream))
        out, _ = await child.communicate()
        assert (child.returncode, out) == (0, f"{run} [{{'celsius': 20.5}}, {{'celsius': 21.0}}]\n".encode())


async def test_the_documented_tables(services) -> None:
    (program,) = TABLES
    child = await services.run(program.replace("demo/readings", await services.stream()))
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
