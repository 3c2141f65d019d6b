"""The programs of docs/python.md do what the page says."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
PROGRAMS = [
    code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "import epochal" in code
]
ASIDE = [code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "import" not in code]
WITH_A_CLIENT = "import epochal\nwith epochal.connect_blocking() as client:\n    {}\n    with subscription as sub:\n"
FIELDS = {"fields": [{"name": "celsius", "type": "float64"}]}


@pytest.mark.parametrize("program", PROGRAMS, ids=["with a loop", "without"])
async def test_a_documented_program(realm, program: str) -> None:
    stream = await realm.stream()
    child = await realm.run(program.replace("demo/readings", stream))
    out, _ = await child.communicate()
    assert (child.returncode, out) == (0, b"1 [{'celsius': 20.5}, {'celsius': 21.0}]\n")


async def test_the_documented_schema(realm) -> None:
    (code,) = ASIDE
    name = "documented"
    await realm.declare(name, {"time": {"shape": "int"}, "payload": {"encoding": "msgpack", "schema": FIELDS}})
    program = WITH_A_CLIENT.format(code.replace("demo/readings", f"test/{name}").replace("\n", "\n    "))
    child = await realm.run(program + "        print(sub.ready.wait(20))\n")
    out, _ = await child.communicate()
    assert (child.returncode, out) == (0, b"None\n")
