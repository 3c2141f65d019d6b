"""`epochal report`: one archive for support: what is running, in which state, and its logs.

`epochal.cli.report` collects and redacts. This module decides where the file goes, and prints what was taken.
"""

import contextlib
import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.doctor.checks import print_findings
from epochal.cli.doctor.examination import DOCTOR_TIMEOUT, data_directory, examine
from epochal.cli.failures import ExitStatus
from epochal.cli.io import signals
from epochal.cli.io.output import dumps, print_table, show_size
from epochal.cli.io.terminal import note
from epochal.cli.options import AllNamespaces, CatalogOption, NamespaceOption, StreamsArgument, chosen_namespace
from epochal.cli.report.archive import Archive
from epochal.cli.report.collect import Collector, contents
from epochal.cli.target import run
from epochal.cli.top.looks import Wanted
from epochal.errors import EpochalError
from epochal.resources.names import DEFAULT_NAMESPACE, parse_stream_name

EPILOG = """\b
Examples:
  epochal report                              # all streams, into one file
  epochal report demo/flights -o flights.tar.gz
  epochal report --data /var/lib/epochal      # with logs of local mode
  epochal --kube report

\b
What is in the archive:
  doctor.txt, versions.json              what `epochal doctor` finds; versions
  catalog/, publishers/ID/               metrics; publishers, subscriptions
  streams/NS/NAME/                       manifest, description, object,
                                         writers, web-hooks
  logs/                                  of local mode, if on this machine
  contents.json                          this list, notes, what was redacted

Records, keys, cursors, environment variables, header values and tokens are left out, and so are users and queries of
URLs. Values whose names sound secret are redacted, and listed. Names of streams, writers, subscribers and hosts, paths
of web-hooks, and what services have logged are in it: look through it before you send it.

Each part has at most 4 MiB; without names at most 200 streams are taken, those in trouble first. A part that cannot be
had is noted, and the others are taken all the same; the exit status is 1 only if neither the catalog nor a log could
be read."""

SHOWN = 20
"""Redactions that are printed; all are in the archive."""
OWN = ("doctor.txt", "versions.json", "contents.json")
"""Parts that need no service and no log."""


def report(
    names: StreamsArgument = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The archive; epochal-report-TIME.tar.gz unless given.",
                     show_default=False),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Local mode's data directory, for its logs; by default the one "
                     "that the catalog names.",
                     show_default=False),
    ] = None,
    namespace: NamespaceOption = None,
    everywhere: AllNamespaces = False,
    catalog: CatalogOption = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=60, help="The longest wait for each answer.")
    ] = DOCTOR_TIMEOUT,
) -> int:  # fmt: skip
    """Write one archive for support, without records and secrets."""
    streams = [parse_stream_name(name, namespace or DEFAULT_NAMESPACE) for name in names or ()]
    wanted = Wanted(streams, None if streams else chosen_namespace(namespace, everywhere))
    now = datetime.now(UTC)
    with Archive(output or Path(f"epochal-report-{now:%Y%m%d-%H%M%S}.tar.gz")) as archive:
        collector = Collector(archive, timeout)
        _take(collector, wanted, catalog, data, timeout)
        listed = contents(archive, collector.redaction.found, now.isoformat())
        archive.add("contents.json", f"{dumps(listed, 2)}\n".encode())
    _tell(archive, collector.redaction.found)
    if all(part.name in OWN for part in archive.parts):
        note("neither the catalog nor a log could be read: the archive has only what `epochal doctor` found")
        return ExitStatus.FAILURE
    return ExitStatus.OK


def _take(collector: Collector, wanted: Wanted, catalog: str | None, data: Path | None, timeout: float) -> None:
    text = io.StringIO()
    findings = signals.run(examine(catalog, data, timeout))
    with contextlib.redirect_stdout(text):
        print_findings(findings)
    collector.add_text("doctor.txt", text.getvalue())
    try:
        run(collector.take_services(catalog, wanted))
    except EpochalError as error:  # there is no way into the cluster
        collector.note(f"catalog: {error}")
    logs = data or run(data_directory(catalog, timeout))
    if logs is not None:
        collector.take_logs(logs)
    collector.take_versions()


def _tell(archive: Archive, redacted: list[tuple[str, str]]) -> None:
    print_table(
        ["PART", "SIZE"], [[part.name, show_size(part.size) + (", cut" if part.cut else "")] for part in archive.parts]
    )
    for text in archive.notes:
        note(f"not taken: {text}")
    for part, what in redacted[:SHOWN]:
        note(f"redacted: {part}: {what}")
    if len(redacted) > SHOWN:
        note(f"redacted: {len(redacted) - SHOWN} more, listed in contents.json")
    size = show_size(archive.path.stat().st_size)
    note(f"wrote {archive.path} ({len(archive.parts)} parts, {size}); look through it before you send it")
