"""The table of commands, each loaded when it is used, and how their help looks.

`epochal --help`, a completion and a misspelt word are answered without loading what only commands need. Help is like a
page of a manual: the argument parser alone would print Python's notation (`{NAME}`, `<list[str]>`).
"""

import importlib
from collections.abc import Iterator, MutableMapping
from enum import EnumType
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import typer
from typer._completion_classes import completion_init
from typer.core import TyperArgument, TyperCommand, TyperGroup

completion_init()  # typer calls it only together with options of its own, which would write into users' shell files

SHORT = {
    "up": "Run a catalog and publishers on this machine until Ctrl-C.",
    "apply": "Declare the streams of manifests, or change them.",
    "delete": "Delete streams, by name or by their manifests.",
    "get": "List streams, publishers, writers, subscriptions or relays.",
    "describe": "Show a stream in full, and what holds its time back.",
    "top": "Show streams live, those in trouble first.",
    "release": "Release a lost writer that a stream is waiting for.",
    "pub": "Publish records to a stream.",
    "sub": "Subscribe to a stream and print what it delivers.",
    "bench": "Measure appends, reads or latency against the running services.",
    "trace": "Print the traces that the batches of a time were made in.",
    "doctor": "Find what does not work, and say what to do.",
    "report": "Write one archive for support, without records and secrets.",
    "log": "Look into a segment's log files, and check them.",
    "completion": "Print the script by which a shell completes.",
}
"""Each command is a function of this name, beside its `EPILOG`, in a module of this name."""

LOCAL = ("up", "log", "completion")
"""Commands that work on this machine only, so `--kube` makes no sense for them."""

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
"""Settings of the argument parser, for all commands and for `epochal` itself."""


class Commands(TyperGroup):
    """The commands, in the order of `SHORT`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Loading()

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]  # the parser's is private
        """Its parameters, and `--help`."""
        return _convert_plain_values(super().get_params(ctx), self.callback)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]  # it is private
        """The names of the commands, each with a line."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SHORT.items()))


class _Loading(MutableMapping[str, Any]):
    """Commands by name, made when they are looked up."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name in SHORT and name not in self._loaded:
            self._loaded[name] = _load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(SHORT)

    def __len__(self) -> int:
        return len(SHORT)


def _load(name: str) -> Any:
    module = importlib.import_module(f"epochal.cli.commands.{name}")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(name, epilog=module.EPILOG, short_help=SHORT[name], cls=ManualCommand, context_settings=SETTINGS)(
        getattr(module, name)
    )
    return typer.main.get_command(alone)


def _convert_plain_values(parameters: list[Any], function: Any) -> list[Any]:
    """The parameters of a command that calls `function`, each with a `Conversion`."""
    if any(not isinstance(parameter.process_value, Conversion) for parameter in parameters):
        declared = get_type_hints(function)
        for parameter in parameters:
            parameter.process_value = Conversion(parameter, declared.get(parameter.name))
    return parameters


class Conversion:
    """Makes the value of a parameter from what was typed: at once where that is plain, else by the parser.

    The parser has pydantic convert each value, also one that was left out, and loading pydantic takes half as long as
    all else that a list does. Plain values are: none, a default, a text, and the name of a choice. All others are
    left to the parser, so that only the parser says what is wrong.
    """

    def __init__(self, parameter: Any, declared: Any) -> None:
        self.parser = parameter.process_value
        """The parser's own conversion."""
        self._parameter = parameter
        self._type = declared
        if get_origin(declared) is UnionType:  # with None: a parser knows no others
            self._type = next(each for each in get_args(declared) if each is not NoneType)

    def __call__(self, context: typer.Context, value: Any) -> Any:
        """The value for the command."""
        parameter, kind = self._parameter, self._type
        match value:
            case None if not parameter.required:
                made: Any = () if parameter.multiple or parameter.nargs == -1 else None
            case str() if kind is str:
                made = value
            case list() | tuple() if value and kind == list[str]:
                made = list(value)
            case bool() | int() | float() if value == parameter.default:
                made = value
            case str() if isinstance(kind, EnumType) and value in list(kind):
                made = kind(value)
            case _:
                return self.parser(context, value)
        return made if parameter.callback is None else parameter.callback(context, parameter, made)


class ManualCommand(TyperCommand):
    """A command whose usage line reads `epochal get [OPTIONS] KIND [STREAM]...`."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]  # the parser's is private
        """Its parameters, and `--help`."""
        return _convert_plain_values(super().get_params(ctx), self.callback)

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
