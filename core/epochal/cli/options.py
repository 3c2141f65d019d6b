"""Options and arguments that several commands share.

An option has one name, one default and one explanation everywhere.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from epochal.cli.candidates import complete_kinds, complete_streams, complete_streams_of
from epochal.cli.listed_kinds import STREAMS, Kind, find_kind, similar_kind
from epochal.client.catalog.url import DEFAULT_CATALOG
from epochal.resources.names import DEFAULT_NAMESPACE, parse_stream_name


class Format(StrEnum):
    """How `get` and `describe` print."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"

    @property
    def is_document(self) -> bool:
        """Whether the catalog's own objects are printed in full."""
        return self in (Format.JSON, Format.YAML)


CatalogOption = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="URL",
        envvar="EPOCHAL_CATALOG",
        help=f"The catalog to talk to. Default: {DEFAULT_CATALOG}, in a pod the cluster's.",
        show_default=False,
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NS",
        envvar="EPOCHAL_NAMESPACE",
        help="The namespace of names without one (default: default); lists show only this one.",
        show_default=False,
    ),
]
AllNamespaces = Annotated[
    bool,
    typer.Option("--all-namespaces", "-A", help="List all namespaces, even if EPOCHAL_NAMESPACE names one."),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to try while the catalog cannot be reached."),
]
Output = Annotated[
    Format,
    typer.Option(
        "--output",
        "-o",
        metavar="table|wide|json|yaml|name",
        help="The output format; json and yaml print the catalog's own objects in full.",
        show_default=True,
    ),
]
Manifests = Annotated[
    list[str] | None,
    typer.Option(
        "--filename",
        "-f",
        metavar="FILE",
        help="Manifests in YAML: a file, a directory of *.yaml, *.yml and *.json, or - for standard input. Repeatable.",
        show_default=False,
    ),
]
StreamArgument = Annotated[
    str, typer.Argument(metavar="STREAM", help="NAME or NS/NAME.", autocompletion=complete_streams, show_default=False)
]
StreamsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="STREAM", help="NAME or NS/NAME.", autocompletion=complete_streams_of, show_default=False),
]
KindArgument = Annotated[
    str, typer.Argument(metavar="KIND", help="See Kinds below.", autocompletion=complete_kinds, show_default=False)
]
OptionalKind = Annotated[
    str | None,
    typer.Argument(metavar="KIND", help="See Kinds below.", autocompletion=complete_kinds, show_default=False),
]
DEFAULT_TIMEOUT = 30.0


def chosen_namespace(namespace: str | None, everywhere: bool) -> str | None:
    """The namespace of a list, or None for all."""
    return None if everywhere else namespace


def chosen_objects(
    kind: str, names: list[str] | None, namespace: str | None, verb: str, kinds: Sequence[Kind] = (STREAMS,)
) -> tuple[Kind, list[tuple[str, str]]]:
    """The kind and the streams that the arguments `KIND [NAME]...` or `KIND/NAME...` (as of `-o name`) name.

    `verb` is the command, and `kinds` are the kinds that it takes.
    """
    word, slash, rest = kind.partition("/")
    found = find_kind(word)
    if found is None:
        listed = ", ".join(each.plural for each in kinds)
        stream = f"if that is a stream, write: epochal {verb} stream {kind}"
        if (close := similar_kind(word)) is not None:
            raise typer.BadParameter(f"'{word}' is no kind of object; did you mean {close.plural}? {stream}")
        raise typer.BadParameter(f"'{word}' is no kind of object (there are: {listed}); {stream}")
    if found not in kinds:
        past = {"describe": "described", "delete": "deleted"}.get(verb, verb)
        raise typer.BadParameter(f"{found.plural} cannot be {past}; list them with: epochal get {found.plural}")
    more = [name.removeprefix(f"{found.name}/") if slash else name for name in names or ()]
    texts = [rest, *more] if slash else more
    return found, [parse_stream_name(text, namespace or DEFAULT_NAMESPACE) for text in texts]
