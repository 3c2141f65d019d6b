"""A real OpenTelemetry Collector and a real Zipkin: made once, and run for as long as a `with` block.

`python -m tests.tracing.tools` makes them (`make tracing-tools`): the collector is built from the Go module beside this
file, Zipkin comes from Maven by the Ivy that PySpark has in it. Both are kept in .cache/tracing and pinned by hash.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.harness import building
from tests.cluster.harness.building import BuildError, UnfitError, locked
from tests.cluster.harness.kubernetes import eventually
from tests.cluster.harness.places import ROOT
from tests.cluster.harness.programs import Program
from tests.patience import PATIENCE
from tests.ports import free_port

SOURCES = ROOT / "tests" / "tracing" / "collector"
CONFIG = SOURCES / "config.yaml"
CACHE = ROOT / ".cache" / "tracing"
ZIPKIN = "3.6.1"
ZIPKIN_SHA256 = "981b1de6139b4f8f787a909c308028732f9713ae5284353d2a5aa404d1094775"

Span = dict[str, Any]
"""A span as Zipkin has it: traceId, id, parentId, kind, name, localEndpoint.serviceName, timestamp and duration in
microseconds, tags."""

_IVY = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="dev.epochal" module="tracing-tools"/>
  <dependencies>
    <dependency org="io.zipkin" name="zipkin-server" rev="{ZIPKIN}" transitive="false">
      <artifact name="zipkin-server" type="jar" ext="jar" m:classifier="slim"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
_RESOLVERS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""


def collector() -> Path:
    """The collector, built if need be: two minutes of processor time the first time."""
    return building.built("collector", SOURCES, ".", "-s -w", into=CACHE, logs=CACHE)


def zipkin() -> Path:
    """Zipkin's jar, fetched if need be (86 MB). Raises `BuildError`, also where it is not the one that is expected."""
    jar = CACHE / "zipkin.jar"
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / "zipkin.lock"):
        if not jar.exists() or _sha256(jar) != ZIPKIN_SHA256:
            _fetch(jar)
    return jar


def _fetch(jar: Path) -> None:
    print(f"getting Zipkin {ZIPKIN} (86 MB); log: {CACHE / 'zipkin.log'}", flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as directory:
        work = Path(directory)
        (work / "ivy.xml").write_text(_IVY)
        (work / "settings.xml").write_text(_RESOLVERS)
        command: list[str | Path] = [
            *(java(), "-jar", _ivy(), "-settings", work / "settings.xml", "-ivy", work / "ivy.xml"),
            *("-cache", work / "cache", "-retrieve", f"{work}/[artifact].[ext]", "-warn"),
        ]
        with (CACHE / "zipkin.log").open("w") as log:
            done = subprocess.run(command, stdout=log, stderr=log, check=False)
        got = work / "zipkin-server.jar"
        if done.returncode or not got.exists():
            raise BuildError(f"Zipkin could not be fetched:\n{(CACHE / 'zipkin.log').read_text()[-2000:]}")
        if (found := _sha256(got)) != ZIPKIN_SHA256:
            raise BuildError(f"Zipkin {ZIPKIN} has the hash {found}, and not {ZIPKIN_SHA256}; it is not used")
        got.replace(jar)


def java() -> str:
    """Java 17 or newer, as Spark needs it too. Raises `UnfitError`."""
    own = Path(os.environ.get("JAVA_HOME", "/usr")) / "bin" / "java"
    found = str(own) if own.exists() else shutil.which("java")
    said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr if found else ""
    version = re.search(r'version "(\d+)', said)
    if found is None or version is None or int(version[1]) < 17:
        raise UnfitError("Zipkin needs Java 17 or newer: apt-get install openjdk-17-jre-headless")
    return found


def _ivy() -> Path:
    import pyspark  # slow to load, and only the first time needed

    (found,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class TracingTools:
    """A collector and a Zipkin that run; `start` starts, `stop` ends both."""

    def __init__(self, directory: Path) -> None:
        """Choose free ports of 127.0.0.1; logs go into `directory`."""
        self._zipkin_port, self._otlp_port = free_port(), free_port()
        self._zipkin = Program("zipkin", self._zipkin_command(), directory / "zipkin.log")
        self._collector = Program("collector", self._collector_command(), directory / "collector.log")
        self.programs = (self._zipkin, self._collector)

    @property
    def endpoint(self) -> str:
        """Where spans go: what OTEL_EXPORTER_OTLP_ENDPOINT is set to, with the protocol http/protobuf."""
        return f"http://127.0.0.1:{self._otlp_port}"

    @property
    def zipkin(self) -> str:
        """Where Zipkin listens: its page is /zipkin/, its API /api/v2/."""
        return f"http://127.0.0.1:{self._zipkin_port}"

    @property
    def trace_url(self) -> str:
        """The page of one trace, as EPOCHAL_TRACE_URL has it: a template with {trace_id} in it."""
        return f"{self.zipkin}/zipkin/traces/{{trace_id}}"

    def start(self) -> None:
        """Start both, and return when they take spans. Raises `NotReadyError`; nothing is left running then."""
        try:
            self._zipkin.start()
            self._collector.start()
            self._collector.wait_until(lambda: answers(f"{self.endpoint}/v1/traces"), PATIENCE)
            self._zipkin.wait_until(lambda: answers(f"{self.zipkin}/health"), PATIENCE)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End both; spans that the collector has are passed on before."""
        self._collector.stop()
        self._zipkin.stop()

    def trace(self, trace_id: str) -> list[Span]:
        """The spans of a trace that Zipkin has by now; none where it does not know it."""
        try:
            return list(self._ask(f"/api/v2/trace/{trace_id}"))
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return []

    def await_spans(self, trace_id: str, names: Mapping[str, int] | set[str], timeout: float = PATIENCE) -> list[Span]:
        """The spans of a trace, once all these names are among them (as often as it says, or once).

        Raises:
            TimeoutError: They were not all there within `timeout` seconds.
        """
        wanted = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names, 1)

        def spans() -> list[Span] | None:
            found = self.trace(trace_id)
            there = [span.get("name", "") for span in found]
            return found if all(there.count(name.lower()) >= count for name, count in wanted.items()) else None

        return eventually(spans, timeout)

    def services(self) -> list[str]:
        """The names of the services that have sent spans."""
        return list(self._ask("/api/v2/services"))

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.zipkin}{path}", timeout=PATIENCE) as answer:
            return json.load(answer)

    def _zipkin_command(self) -> list[str | Path]:
        # Armeria's port as a whole: Zipkin's own setting has no address, and would listen on all of them.
        port = {"port": self._zipkin_port, "ip": "127.0.0.1", "protocols[0]": "http"}
        return [
            *("env", "STORAGE_TYPE=mem", java(), "-Xmx256m", "-XX:+UseSerialGC", "-jar", zipkin()),
            *(f"--armeria.ports[0].{name}={value}" for name, value in port.items()),
        ]

    def _collector_command(self) -> list[str | Path]:
        where = (f"OTLP_HTTP=127.0.0.1:{self._otlp_port}", f"ZIPKIN={self.zipkin}")
        return ["env", *where, collector(), "--config", CONFIG]


def answers(url: str) -> bool:
    """Whether something speaks HTTP there, whatever it says."""
    try:
        urllib.request.urlopen(url, timeout=5).close()  # load: it is asked again
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False
    return True


@contextmanager
def tracing_tools(directory: Path) -> Iterator[TracingTools]:
    """A collector and a Zipkin for the time of a `with` block, with their logs in `directory`."""
    tools = TracingTools(directory)
    tools.start()
    try:
        yield tools
    finally:
        tools.stop()


def main() -> int:
    """Make both."""
    try:
        print(collector().relative_to(ROOT))
        print(zipkin().relative_to(ROOT))
    except (BuildError, UnfitError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
