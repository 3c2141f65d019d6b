"""`epochal doctor`: check everything that must work, and print what does not work and what to do about it."""

from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.doctor.checks import Verdict, print_findings, summary
from epochal.cli.doctor.examination import DOCTOR_TIMEOUT, examine
from epochal.cli.failures import ExitStatus
from epochal.cli.io import signals
from epochal.cli.io.output import print_document
from epochal.cli.io.terminal import note
from epochal.cli.options import CatalogOption, Format, Output

EPILOG = """\b
Examples:
  epochal doctor
  epochal doctor --catalog http://catalog.demo:8700 -o json
  epochal doctor --data /var/lib/epochal   # a data directory of local mode
  epochal --kube doctor                    # a cluster, from outside

A line for each check: ok, warn or fail, what is seen, and under it what to do. It checks this machine (Python,
ZeroMQ, Java and Spark, the limit of open files, the data directory of local mode), the catalog (reachable, ready, how
fast, version, clock), the publishers' leases, each port of publishers and relays with a real ZeroMQ handshake and a
protocol hello, and the streams (publishers missing, disks full, times held back). `epochal --kube doctor` first checks
the cluster: its API server, the Stream resource, the pods of operator and catalog, and your permissions; it then tries
the ports by port-forwarding.

Exit status 0 when nothing failed, also with warnings; 1 when a check failed. Each check ends after --timeout seconds.
-o json and -o yaml print {"verdict", "findings": [{"check", "verdict", "seen", "advice"}]}."""


def doctor(
    output: Output = Format.TABLE,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Local mode's data directory; by default the one that the catalog "
                     "names.",
                     show_default=False),
    ] = None,
    catalog: CatalogOption = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=60, help="The longest wait for each answer.")
    ] = DOCTOR_TIMEOUT,
) -> int:  # fmt: skip
    """Find what does not work, and say what to do."""
    findings = signals.run(examine(catalog, data, timeout))
    failed = any(finding.verdict is Verdict.FAIL for finding in findings)
    if output.is_document:
        verdict = max((finding.verdict for finding in findings), key=list(Verdict).index)
        document = {"verdict": str(verdict), "findings": [finding.to_json() for finding in findings]}
        print_document(document, output is Format.YAML)
    else:
        print_findings(findings)
        note(summary(findings))
    return ExitStatus.FAILURE if failed else ExitStatus.OK
