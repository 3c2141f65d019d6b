"""Values of parameters: made without the argument parser where they are plain, and the same as it would make."""

from typing import Any

import pytest
import typer

from epochal.cli.commands.table import SHORT, Conversion
from epochal.cli.main import app

TYPED = [
    "",
    "x",
    "5",
    "-1",
    "json",
    "JSON",
    "table",
    "é",
    "\udc80",
    "nan",
    " x ",
    ("a",),
    ("a", "é"),
    ["b", "c"],
    (),
    True,
]
"""What the parser can have found for an option or an argument; a text may also be no UTF-8."""


def _made(convert: Any, context: typer.Context, value: Any) -> Any:
    try:
        return convert(context, value)
    except (typer.exceptions.TyperException, TypeError) as error:
        return type(error), str(error)


def _parameters() -> list[Any]:
    root: Any = typer.main.get_command(app)
    context = typer.Context(root, info_name="epochal")
    found = [(context, parameter) for parameter in root.get_params(context)]
    for name in SHORT:
        command = root.commands[name]
        inside = typer.Context(command, info_name=name, parent=context)
        found += [(inside, parameter) for parameter in command.get_params(inside)]
    return [
        pytest.param(context, parameter, id=f"{context.info_name} {parameter.name}") for context, parameter in found
    ]


@pytest.mark.parametrize(("context", "parameter"), _parameters())
def test_a_plain_value_is_what_the_parser_would_make(context: typer.Context, parameter: Any) -> None:
    convert = parameter.process_value
    assert isinstance(convert, Conversion)
    if parameter.is_eager:  # help and version end the program
        assert convert(context, parameter.default) == convert.parser(context, parameter.default)
        return
    for value in (None, parameter.default, *TYPED):
        made, expected = _made(convert, context, value), _made(convert.parser, context, value)
        assert (made, type(made)) == (expected, type(expected)), value
