"""What every test shares: the report of the rules that passing tests cover, and how hypothesis runs.

`--rules-report=FILE` writes JSON, which `make rules` reads: `rules`, `{id: {"passed": [test, ...], "failed": [...]}}`,
and `seconds`, `{file: seconds}`. A test names the rules that it shows by `@pytest.mark.rule("S2")`. A skipped test
shows nothing. `--again=TEST` runs one test of the run before by itself, and corrects this report; with `--run-report`,
`tools/try_again.py` uses it.

`--compiled` is for `make test-compiled`: the run ends at once unless the protocol's machines are compiled, and tests
marked `pure` are skipped.

`services` gives a test real streams: a catalog and publishers as processes, one local mode for the whole run.
"""

import asyncio
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis import Phase, settings
from tests import run_report
from tests.forking import forked_programs
from tests.java import run_java_quickly
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.processes import children, runs
from tests.seeds import SEED, VARIABLE, seed_of

if TYPE_CHECKING:
    from epochal.client.catalog.catalog import CatalogClient
    from epochal.testing import LocalServices

# Two busy cores make single examples slow now and then; that says nothing about the code.
settings.register_profile("epochal", deadline=None)
# Where a test is to fail, nobody reads of its smallest example, and looking for that takes longest.
settings.register_profile("mutant", deadline=None, phases=(Phase.explicit, Phase.generate))
settings.load_profile("mutant" if os.environ.get("EPOCHAL_MUTANT") else "epochal")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rules-report", type=Path, default=None, help="write which rules passing tests cover to this file"
    )
    parser.addoption(
        "--run-report", type=Path, default=None, help="write what failed, and what files cost, to this file"
    )
    parser.addoption("--again", default=None, help="run this test alone, and correct the report of the rules")
    parser.addoption("--compiled", action="store_true", help="test compiled code, and fail if it is not compiled")


def _kill_what_a_failing_test_holds() -> None:
    """A test that fails within `with Popen(...)` would wait there for the program, which may wait for the test."""
    leave = subprocess.Popen.__exit__

    def end_and_leave(self: "subprocess.Popen[Any]", kind: Any, error: Any, traceback: Any) -> None:
        if kind is not None:
            self.kill()
        leave(self, kind, error, traceback)

    subprocess.Popen.__exit__ = end_and_leave  # type: ignore[method-assign]


def _heed_signals() -> None:
    """Heed what nohup, or a shell, has this run ignore: the programs that tests start and end would inherit that."""
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_configure(config: pytest.Config) -> None:
    _heed_signals()
    _kill_what_a_failing_test_holds()
    run_java_quickly(os.environ)
    again, rules, run = (config.getoption(option) for option in ("--again", "--rules-report", "--run-report"))
    if again is not None:
        config.args = [again]
    config.pluginmanager.register(run_report, "run-report-hooks")
    if not hasattr(config, "workerinput"):  # only the process that gets all reports
        if rules is not None:
            config.pluginmanager.register(RulesReport(rules, corrects=again is not None), "rules-report")
        if run is not None:
            config.pluginmanager.register(run_report.RunReport(run), "run-report")
    if config.getoption("--compiled"):
        from epochal.protocol import frontier

        if not frontier.__file__.endswith(".so"):
            raise pytest.UsageError(f"--compiled, and {frontier.__file__} is not compiled; use `make test-compiled`")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of tests in several processes, which run in which."""
    from tests.scheduling import InGroups  # here: xdist may not be there

    return InGroups(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest, where there are several processes; by itself, everything runs as it is written."""
    for item in items if config.getoption("--compiled") else ():
        if (mark := item.get_closest_marker("pure")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"pure Python only: {mark.args[0]}"))
    if hasattr(config, "workerinput"):
        from tests.scheduling import rank

        items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave out of each search for garbage what stays until the end.

    Thousands of tests and all modules are half a million objects, half a second of a processor for each search; and
    nothing of them is copied for a process that is forked. A mutant is judged by one test, which is over before.
    """
    if not os.environ.get("EPOCHAL_MUTANT"):
        gc.collect()
        gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let each report carry the rules of its test, from whichever process it comes."""
    rules = {str(rule) for mark in item.iter_markers("rule") for rule in mark.args}
    item.user_properties += [("rule", rule) for rule in sorted(rules)]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let hypothesis draw from the seed of the run; its own option would do without the examples that it stored."""
    test: Any = getattr(item, "obj", None)
    if hypothesis.is_hypothesis_test(test):
        hypothesis.seed(seed_of(item.nodeid))(getattr(test, "__func__", test))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where something failed, say how to draw the same again."""
    if terminalreporter.stats.keys() & {"failed", "error"}:
        terminalreporter.write_line(f"what these tests drew by chance is drawn again with {VARIABLE}={SEED}")


class RulesReport:
    """Collects outcomes by rule id, and seconds by file, while the tests run."""

    def __init__(self, path: Path, *, corrects: bool = False) -> None:
        self._path = path
        self._before: dict[str, Any] = {"rules": {}, "seconds": {}}
        if corrects and path.exists():
            self._before = json.loads(path.read_text())
        elif not corrects:
            path.unlink(missing_ok=True)  # of a run that dies, nothing may be read
        self._rules: dict[str, set[str]] = {}
        self._passed: set[str] = set()
        self._failed: set[str] = set()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._rules[report.nodeid] = {str(value) for name, value in report.user_properties if name == "rule"}
        self._seconds[report.nodeid.partition("::")[0]] += report.duration
        if report.failed:  # in any phase: a test that fails to clean up shows nothing either
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        rules = {
            rule: {outcome: [test for test in tests if test not in self._rules] for outcome, tests in outcomes.items()}
            for rule, outcomes in self._before["rules"].items()
        }
        for outcome, tests in (("passed", self._passed - self._failed), ("failed", self._failed)):
            for test in tests:
                for rule in self._rules[test]:
                    rules.setdefault(rule, {"passed": [], "failed": []})[outcome].append(test)
        for outcomes in rules.values():
            for ordered in outcomes.values():
                ordered.sort()
        seconds = {
            file: round(self._before["seconds"].get(file, 0.0) + self._seconds.get(file, 0.0), 3)
            for file in {*self._before["seconds"], *self._seconds}
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"rules": rules, "seconds": seconds}, indent=1, sort_keys=True) + "\n")


class Services:
    """Real streams for one test, deleted at its end; processes that it started are ended."""

    def __init__(self, background: "LocalServices") -> None:
        self._background, self.url = background, background.url
        self._streams: list[str] = []
        self._children: list[asyncio.subprocess.Process] = []

    def _catalog(self) -> "CatalogClient":
        from epochal.client.catalog.catalog import CatalogClient  # here: most tests need no services

        return CatalogClient(self.url)

    async def stream(
        self, shape: str = "int", encoding: str = "msgpack", segments: int = 1, dedicated: bool = False, **spec: Any
    ) -> str:
        """Declare a stream under a fresh name and wait for it; one publisher serves it unless `spec` changes that.

        It shares its process with streams of other tests; for a test that looks at a process, or ends or stops one,
        `dedicated` gives it processes of its own.
        """
        name = f"s{next(_numbers)}"
        publishers = {"segmentsPerPod": segments, **spec.pop("publishers", {}), "dedicated": dedicated}
        spec = {"publishers": publishers, "segments": segments, **spec}
        spec = {"payload": {"encoding": encoding}, **spec, "time": {"shape": shape}}
        await self.declare(name, spec)
        async with self._catalog() as catalog:
            await catalog.lookup("test", name, wait=PATIENCE)
        processes = -(-segments // publishers["segmentsPerPod"]) if dedicated else 0
        async with asyncio.timeout(PATIENCE):
            while len(self._publishers(f"test/{name}")) < processes:  # noqa: ASYNC110 - the catalog may know it first
                await asyncio.sleep(0.01)
        return f"test/{name}"

    async def declare(self, name: str, spec: dict[str, Any]) -> None:
        """Declare a stream, and wait for nothing."""
        metadata = {"name": name, "namespace": "test"}
        document = {"apiVersion": "epochal.dev/v1alpha1", "kind": "Stream", "metadata": metadata, "spec": spec}
        self._streams.append(name)
        async with self._catalog() as catalog:
            await catalog.apply(document, "test", name)

    async def delete(self, stream: str) -> None:
        """Delete a stream, if it is there."""
        name = stream.removeprefix("test/")
        async with self._catalog() as catalog:
            await catalog.delete("test", name)
        self._streams.remove(name)

    @property
    def catalog_process(self) -> int:
        """The catalog's process id."""
        return self._background.processes["catalog"]

    def publishers(self, stream: str) -> list[int]:
        """Process ids of a dedicated stream's publishers, in the order of their segments."""
        found = self._publishers(stream)
        assert found, "only a dedicated stream has processes of its own"
        return found

    async def running_publishers(self, stream: str) -> list[int]:
        """The same of a stream whose publishers may all be starting again: waits until one runs."""
        async with asyncio.timeout(PATIENCE):
            while not (found := self._publishers(stream)):  # noqa: ASYNC110 - a process is looked at, and tells nothing
                await asyncio.sleep(0.01)
        return found

    def _publishers(self, stream: str) -> list[int]:
        prefix = stream.replace("/", ".") + "-"
        found = self._background.processes.items()
        return [pid for name, pid in sorted(found) if name.startswith(prefix)]

    async def run(self, script: str, *arguments: str) -> asyncio.subprocess.Process:
        """A Python process of the test's own that runs `script` with the catalog's address in EPOCHAL_CATALOG."""
        pipe = asyncio.subprocess.PIPE
        environment = {**os.environ, "EPOCHAL_CATALOG": self.url}
        command = (sys.executable, "-c", script, *arguments)
        child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment)
        self._children.append(child)
        return child

    async def close(self) -> None:
        """End what the test has left running."""
        for child in self._children:
            with suppress(ProcessLookupError):
                child.kill()
            await child.communicate()
        for name in list(self._streams):
            await self.delete(name)


_numbers = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def _programs_are_forked() -> Iterator[None]:
    with forked_programs():
        yield


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left_running(_programs_are_forked: None) -> Iterator[None]:
    """Starts before all other fixtures, so it ends last: by then every other fixture has ended its processes."""
    yield
    assert not children(os.getpid()), "no test has left a process"


@pytest.fixture(scope="session")
def _background() -> Iterator["LocalServices"]:
    from epochal.testing import LocalServices

    background = LocalServices(port=free_port())  # tests kill the catalog: nobody else gets its port
    with pytest.MonkeyPatch.context() as patch:  # a test lists relays that nobody renews
        patch.setenv("EPOCHAL_CATALOG_RELAY_TTL", "600")
        background.start()
    yield background
    ids, data = background.processes.values(), background.mode.data
    background.stop()
    assert not [pid for pid in ids if runs(pid)], "every process has ended"
    assert not data.exists()


@pytest.fixture
async def services(_background: "LocalServices") -> AsyncIterator[Services]:
    """Real streams, deleted when the test is over."""
    services = Services(_background)
    try:
        yield services
    finally:
        await services.close()
