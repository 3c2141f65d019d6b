"""The command line's entry: which commands there are, and how any failure ends.

Each command is a plain function in a module of its own.
"""

import os
import signal
import sys
from contextlib import suppress
from typing import Annotated, TextIO

import typer

from epochal.cli import target
from epochal.cli.commands.table import LOCAL, SETTINGS, SHORT, Commands
from epochal.cli.failures import EXIT_STATUSES, ExitStatus, report, report_usage
from epochal.cli.io import signals
from epochal.cli.io.terminal import forbid_colors

EPILOG = f"""\b
Examples:
  epochal up                           # catalog and publishers, right here
  epochal apply -f examples/flights.yaml
  epochal get streams
  epochal pub demo/flights --time 5 '{{"origin": "JFK"}}' --advance 6
  epochal sub demo/flights --since start --epochs
  epochal describe stream demo/flights # also: what holds time back
  epochal top                          # all streams, those in trouble first
  epochal bench pub demo/bench         # how fast it is, right here
  epochal doctor                       # when something does not work
  epochal --kube sub demo/flights      # in the cluster that kubectl talks to

\b
{EXIT_STATUSES}

\b
Environment:
  EPOCHAL_CATALOG    the catalog for every command, as --catalog
  EPOCHAL_NAMESPACE  the namespace for every command, as --namespace
  EPOCHAL_DEBUG      when set, errors come with a traceback
  EPOCHAL_TRACE_URL  the page of a trace, for the links of `trace`
  NO_COLOR           when set, no colours, as --no-color
  OTEL_EXPORTER_OTLP_ENDPOINT  where traces of pub and sub go

Data goes to standard output, all else to standard error. Write `epochal COMMAND --help` for more on one of them."""

app = typer.Typer(
    name="epochal",
    help="Publish and subscribe to timely streams: records, and which times are complete.",
    epilog=EPILOG,
    cls=Commands,
    add_completion=False,
    rich_markup_mode=None,  # the same plain text on a terminal and in a pipe
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
)


def _version(wanted: bool) -> None:
    if wanted:
        from epochal.version import version  # here: it searches the installed packages

        print(f"epochal {version()}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours on the terminal.")] = False,
    kube: Annotated[
        bool,
        typer.Option("--kube", help="Talk to the catalog and publishers of a Kubernetes cluster, by port-forwarding."),
    ] = False,
    kube_context: Annotated[
        str | None,
        typer.Option("--context", metavar="NAME", help="The context of kubeconfig; the current one unless given.",
                     show_default=False),
    ] = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option("--kubeconfig", metavar="FILE", help="The file to use instead of KUBECONFIG or ~/.kube/config.",
                     show_default=False),
    ] = None,
    kube_namespace: Annotated[
        str | None,
        typer.Option("--kube-namespace", metavar="NS", help="The catalog's namespace; unless given, it is found.",
                     show_default=False),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True,
                     help="Print the version and exit; it says whether it is compiled."),
    ] = False,
) -> None:  # fmt: skip
    forbid_colors(no_color)
    target.choose(None)
    if kube or kube_context or kubeconfig or kube_namespace:
        _choose(context, kube_context, kubeconfig, kube_namespace)
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(ExitStatus.USAGE)


def _choose(
    context: typer.Context, kube_context: str | None, kubeconfig: str | None, kube_namespace: str | None
) -> None:
    """Choose a cluster for this run; the namespace of its context counts as EPOCHAL_NAMESPACE."""
    if context.invoked_subcommand in LOCAL:
        raise typer.BadParameter(f"`epochal {context.invoked_subcommand}` works on this machine; leave --kube out")
    from epochal.kube import Choice, context_namespace

    choice = Choice(kube_context, kubeconfig, kube_namespace)
    target.choose(choice)
    if (namespace := context_namespace(choice)) is not None:
        context.default_map = {command: {"namespace": namespace} for command in SHORT}


def main() -> None:
    """Run the command line and exit."""
    with signals.ending():
        status = _run()
    if (ended := signals.came()) is not None and status == ExitStatus.INTERRUPTED:
        status = 128 + ended  # a command that ended otherwise keeps its own status
    if ended is signal.SIGHUP:
        _drop_unread()
    sys.exit(status)


def _unread() -> int:
    """The reader of our output has gone: drop what is not flushed, and print no message."""
    _drop(sys.__stdout__)
    return ExitStatus.BROKEN_PIPE


def _drop_unread() -> None:
    """Drop output that a closed terminal does not take: an error at the last flush would change the exit status."""
    for stream in (sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            _drop(stream)


def _drop(stream: TextIO | None) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1 if stream is None else stream.fileno())


def _run() -> int:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # in a test it may not be a file
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # where a locale lacks a letter
    try:
        status = app(prog_name="epochal", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else ExitStatus.OK
    except typer.exceptions.TyperException as error:  # wrong usage: what the argument parser found
        return report_usage(error)
    except (typer.Abort, KeyboardInterrupt, signals.EndedBySignal):
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:
        return _unread()
    except SystemExit as ended:  # the argument parser exits with 1 when a write fails so
        if isinstance(ended.__context__, BrokenPipeError):
            return _unread()
        raise
    except Exception as error:  # so that no command ends in a traceback
        return report(error)
