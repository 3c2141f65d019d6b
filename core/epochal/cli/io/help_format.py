"""How help looks: like a page of a manual, the same on a terminal and in a pipe.

Separate from the commands because the argument parser prints Python's notation (`{NAME}`, `<list[str]>`), which is not
what users type.
"""

from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand


class ManualCommand(TyperCommand):
    """A command whose usage line reads `epochal get [OPTIONS] KIND [STREAM]...`."""

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # the parser's is private
        """The pieces after the command's name."""
        names = [_name(param) for param in self.get_params(ctx) if isinstance(param, TyperArgument)]
        return ["[OPTIONS]", *names]

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]  # likewise
        """Arguments, then options."""
        arguments: list[tuple[str, str]] = []
        options: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if isinstance(param, TyperArgument) and record is not None and record[1]:
                arguments.append((_name(param), record[1].removesuffix("  [required]")))
            elif record is not None and not isinstance(param, TyperArgument):
                options.append(record)
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _name(argument: TyperArgument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    shown = name if argument.required else f"[{name}]"
    return shown if argument.nargs == 1 else f"{shown}..."
