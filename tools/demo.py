"""`make demo`: `epochal demo` with its options; `--traces` has a collector and Zipkin run beside it.

Apart from `epochal demo`, which sends its spans wherever the environment says: the collector and Zipkin are those of
the tests, and no user of the package has them.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.harness.building import BuildError, UnfitError
from tests.cluster.harness.programs import NotReadyError
from tests.tracing.tools import tracing_tools

import demo_traces
from epochal.local.child import console_script

STREAM = "demo/flights"


def leads_through_all(found: demo_traces.Found) -> bool:
    """Whether the trace has a span of every part, in one process or another."""
    return all(map(found.count, demo_traces.STEPS)) and found.tagged("send", "epochal.way") == {"sidecar"}


def run(arguments: list[str], environment: dict[str, str]) -> int:
    """Run the demo to its end, whatever signals come meanwhile: it ends by them, in order. Returns its status."""
    with subprocess.Popen([console_script("epochal"), "demo", *arguments], env=environment) as process:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: process.send_signal(number))
        signal.signal(signal.SIGINT, lambda *_: None)  # the terminal tells it too
        status = process.wait()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
    return status


def traced(arguments: list[str]) -> int:
    """Run the demo through a sidecar with everything traced, and show one trace."""
    print("starting a collector and Zipkin", flush=True)
    with tempfile.TemporaryDirectory(prefix="epochal-traces-") as logs, tracing_tools(Path(logs)) as tools:
        told = {"OTEL_EXPORTER_OTLP_ENDPOINT": tools.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "1000"}
        status = run(["--sidecar", *arguments], {**os.environ, **told})
        if status:
            return status
        demo_traces.show(demo_traces.find(tools.zipkin, STREAM, leads_through_all), tools.zipkin)
    return status


def main() -> int:
    """Do what the command line says."""
    arguments = sys.argv[1:]
    if "--traces" not in arguments:
        os.execv(program := console_script("epochal"), [program, "demo", *arguments])
    try:
        return traced([each for each in arguments if each != "--traces"])
    except (BuildError, UnfitError, NotReadyError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
