"""docs/cli.md against the commands as they are: every command, every option, and examples that parse.

`python tests/cli/test_docs.py` writes the tables of options anew.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from epochal.cli.commands.table import SHORT
from epochal.cli.failures import EXIT_STATUSES
from epochal.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
ROOT = typer.main.get_command(app)
assert isinstance(ROOT, TyperGroup)
COMMANDS = {"epochal": ROOT, **ROOT.commands}
MARK = re.compile(r"<!-- options: ([a-z]+) -->\n(?:\n\|.*(?:\n\|.*)*\n)?")


def table(name: str) -> str:
    """Arguments and options of a command, as Markdown."""
    command = COMMANDS[name]
    context = typer.Context(command, info_name=name, help_option_names=["-h", "--help"])
    rows = []
    for param in command.get_params(context):
        record = param.get_help_record(context)
        assert record is not None
        shown = _argument(param) if isinstance(param, TyperArgument) else record[0]
        told = re.sub(r"\s+", " ", record[1].removesuffix("[required]")).strip()
        rows.append((f"`{shown}`".replace("|", "\\|"), told.replace("|", "\\|")))
    return "\n".join(["| option | meaning |", "|---|---|", *(f"| {shown} | {told} |" for shown, told in rows)])


def _argument(param: TyperArgument) -> str:
    return f"{param.metavar}{'' if param.nargs == 1 else '...'}"


def written() -> str:
    """The page with its tables as they should be."""
    return MARK.sub(
        lambda found: f"<!-- options: {found[1]} -->\n\n{table(found[1])}\n", PAGE.read_text(encoding="utf-8")
    )


def examples(text: str) -> list[str]:
    """Command lines that begin with `epochal`, up to what only a shell reads."""
    found = [line.strip().removeprefix("$ ") for line in text.splitlines()]
    pieces = [piece.strip() for line in found for piece in re.split(r" \| |;", line.split(" # ")[0])]
    return [re.split(r" > | &$|  +", piece)[0] for piece in pieces if piece.startswith("epochal ")]


@pytest.mark.parametrize("name", SHORT)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    told = COMMANDS[name].help
    assert told is not None
    assert told.startswith(SHORT[name].removesuffix("."))


def test_the_page_has_a_table_for_every_command() -> None:
    assert set(MARK.findall(PAGE.read_text(encoding="utf-8"))) == set(COMMANDS)
    assert all(f"\n## epochal {name}\n" in PAGE.read_text(encoding="utf-8") for name in COMMANDS if name != "epochal")


def test_the_tables_are_those_of_the_commands() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(), "run: python tests/cli/test_docs.py"


def test_every_exit_status_is_on_the_page() -> None:
    for status, meaning in re.findall(r"^  (\d+) +(.*)$", EXIT_STATUSES, re.MULTILINE):
        shown = meaning.replace("doctor:", "`doctor`:").replace("|", "\\|")
        assert f"| {status} | {shown} |" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "line",
    sorted({
        *examples("\n".join(re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))),
        *(line for command in COMMANDS.values() for line in examples(command.epilog or "")),
    }),
)  # fmt: skip
def test_examples_parse(line: str) -> None:
    words = shlex.split(line.replace("$(epochal get streams -n demo -o name)", "stream/demo/x"))[1:]
    context = ROOT.make_context("epochal", words)  # with the options that stand before the command
    name, *rest = [*context._protected_args, *context.args]
    COMMANDS[name].make_context(name, rest, parent=context)


def test_what_is_not_wrapped_fits_a_terminal_of_80_columns() -> None:
    for command in COMMANDS.values():
        for block in (command.epilog or "").split("\n\n"):
            if block.startswith("\b"):
                assert [line for line in block.splitlines() if len(line) > 78] == []


def test_every_option_and_argument_is_explained() -> None:
    for command in COMMANDS.values():
        for param in command.get_params(typer.Context(command)):
            assert isinstance(param, TyperOption | TyperArgument) or param.name == "help"
            assert getattr(param, "help", ""), f"{command.name} {param.name}"


if __name__ == "__main__":
    sys.exit(PAGE.write_text(written(), encoding="utf-8") and 0)
