"""The command line's entry: which commands there are, and how any failure ends.

Apart from the commands, each of which is a plain function in a module of its own.
"""

import importlib.metadata
import os
import sys
from typing import Annotated

import typer

from epochal.cli import declare, demo, pub, show, sub, up
from epochal.cli.failures import EXIT_STATUSES, ExitStatus, report, report_usage

EPILOG = f"""\b
Examples:
  epochal up                                         # catalog and publishers on this machine
  epochal apply -f examples/flights/stream.yaml
  epochal get streams
  epochal pub demo/flights --time 5 '{{"origin": "JFK"}}' --finish
  epochal sub demo/flights --since start --epochs

\b
{EXIT_STATUSES.removeprefix(chr(8)).strip()}

Data goes to standard output, all else to standard error. EPOCHAL_CATALOG names the catalog for every command."""

app = typer.Typer(
    name="epochal",
    help="Publish and subscribe to timely streams: records, and which times are complete.",
    epilog=EPILOG,
    add_completion=False,
    rich_markup_mode=None,  # the same plain text on a terminal and in a pipe
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

app.command(epilog=up.EPILOG)(up.up)
app.command(epilog=declare.APPLY_EPILOG)(declare.apply)
app.command(epilog=declare.DELETE_EPILOG)(declare.delete)
app.command(epilog=show.GET_EPILOG)(show.get)
app.command(epilog=show.DESCRIBE_EPILOG)(show.describe)
app.command(epilog=pub.EPILOG)(pub.pub)
app.command(epilog=sub.EPILOG)(sub.sub)
app.command(epilog=demo.EPILOG)(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"epochal {importlib.metadata.version('epochal')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(ExitStatus.USAGE)


def main() -> None:
    """Run the command line and exit."""
    sys.exit(_run())


def _run() -> int:
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else ExitStatus.OK
    except typer.exceptions.TyperException as error:  # wrong usage: what the argument parser found
        return report_usage(error)
    except (typer.Abort, KeyboardInterrupt):
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone; nothing is left to say, nor anybody to hear it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.FAILURE
    except Exception as error:  # the last resort, so that no command ends in a traceback
        return report(error)
