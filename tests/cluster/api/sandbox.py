"""A sandbox for the operator: a namespace of a real API server, a real catalog, and a pretended node that runs pods.

Apart from the tests because all of them act on it. The node does what a kubelet does as far as the API can tell: it
says that pods are ready, or why not, and ends those that are to end; it keeps a diary of what it saw.
"""

import asyncio
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from tests.patience import PATIENCE
from tests.ports import free_port

from epochal.client.catalog.catalog import CatalogClient
from epochal.kube.api import KINDS, ApiError, path_of
from epochal.local.child import Child, console_script
from epochal.resources.cluster.stream import SELECTOR, STREAM_LABEL
from epochal_operator.api import CHILDREN, ThrottledApi

Object = dict[str, Any]
T = TypeVar("T")

BAD_IMAGE = "registry.example/bad:1"
GOOD_IMAGE = "registry.example/publisher:1"


async def eventually(look: Callable[[], Awaitable[T]], timeout: float = PATIENCE * 3, every: float = 0.1) -> T:
    """The first answer that is not empty, asked for every so often. Kopf pauses for up to 89 s between its tries."""
    deadline = time.monotonic() + timeout
    while not (found := await look()):
        assert time.monotonic() < deadline, f"nothing came for {timeout:.0f} s; last {found!r}"
        await asyncio.sleep(every)
    return found


class Process:
    """A program of ours, and its successors."""

    def __init__(self, program: str, arguments: list[str], log: Path, settings: Mapping[str, object]) -> None:
        self._command = [console_script(program), *arguments, "--exit-with-stdin"]
        self.log, self.settings = log, dict(settings)
        self.child: Child | None = None

    async def start(self, *, wait: bool = True) -> str:
        """Start it; what it says when it is ready."""
        with_settings = ["/usr/bin/env", *(f"{name}={value}" for name, value in self.settings.items())]
        self.child = await Child.start([*with_settings, *self._command], self.log, 1 << 22)
        return await self.child.ready(PATIENCE) if wait else ""

    @property
    def process(self) -> int | None:
        """The number of the process that runs."""
        return None if self.child is None else self.child.pid

    async def kill(self) -> None:
        """SIGKILL; gone when this returns."""
        if self.child is not None:
            self.child.kill()
            await self.ended()

    async def ended(self) -> int:
        """How it ended."""
        assert self.child is not None
        async with asyncio.timeout(PATIENCE):
            status = await self.child.ended()
        await self.child.stop(0)
        self.child = None
        return status

    async def stop(self) -> None:
        """SIGTERM; gone when this returns."""
        if self.child is not None:
            await self.child.stop(20)
            self.child = None


class Operator(Process):
    """An operator, whose metrics tell what it has done."""

    def __init__(self, log: Path, settings: Mapping[str, object]) -> None:
        super().__init__("epochal-operator", ["run"], log, settings)
        port = free_port()
        self.settings |= {"EPOCHAL_OPERATOR_METRICS_PORT": port}
        self._metrics = f"http://127.0.0.1:{port}/metrics"

    async def counted(self, name: str, having: str = "") -> float:
        """The sum of a metric's samples, of those whose labels contain `having`."""
        lines = (await scrape(self._metrics)).splitlines()
        samples = [line for line in lines if line.startswith(f"{name}{{") and having in line]
        return sum(float(line.rpartition(" ")[2]) for line in samples)

    async def looks(self) -> float:
        """How often it has looked at a stream so far."""
        return await self.counted("epochal_operator_reconcile_duration_seconds_count")

    async def has_looked(self, more: int, since: float | None = None) -> None:
        """Wait until it has looked at streams so many times more; `since`: what `looks` was."""
        before = await self.looks() if since is None else since

        async def look() -> bool:
            return await self.looks() >= before + more

        await eventually(look)


class Catalog(Process):
    """A catalog that keeps its address over restarts."""

    def __init__(self, directory: Path, name: str = "catalog") -> None:
        super().__init__("epochal-catalog", ["serve"], directory / f"{name}.log", {})
        self.settings |= {"EPOCHAL_CATALOG_DATA": directory / name, "EPOCHAL_CATALOG_PORT": 0}
        self.url = ""

    async def start(self, *, wait: bool = True) -> str:
        """Start it where it was."""
        self.url = (await super().start(wait=wait)).split()[0]
        self.settings["EPOCHAL_CATALOG_PORT"] = self.url.rpartition(":")[2]
        return self.url


class Node:
    """Runs the pods of a namespace, pretendedly. `diary`: every change of a pod that was seen."""

    def __init__(self, api: ThrottledApi, namespace: str, selector: str = SELECTOR) -> None:
        self._api, self._namespace, self._selector = api, namespace, selector
        self._pods: dict[str, Object] = {}
        self._seen: dict[str, tuple[str, str]] = {}
        self._held = False
        self._let_go = asyncio.Event()
        self.diary: list[tuple[str, str, str]] = []
        """Name, uid, and what it was seen to be: new, ready, ending, gone."""
        self.fewest_ready = 0
        self.watching = False
        """Whether `fewest_ready` is kept."""

    @property
    def held(self) -> bool:
        """Whether pods stay as they are."""
        return self._held

    @held.setter
    def held(self, held: bool) -> None:
        self._held = held
        if not held:
            self._let_go.set()

    async def run(self) -> None:
        """Look at the pods, for ever."""
        letting_go = asyncio.create_task(self._work_when_let_go())
        try:
            while True:
                with contextlib.suppress(ApiError, aiohttp.ClientError, OSError):
                    await self._list_and_watch()
                await asyncio.sleep(0.05)
        finally:
            letting_go.cancel()

    async def _list_and_watch(self) -> None:
        """See every change, until the watch ends."""
        pods, version = await self._api.list(KINDS["Pod"], self._namespace, self._selector)
        for uid in self._pods.keys() - {pod["metadata"]["uid"] for pod in pods}:
            self._is_gone(uid)
        for pod in pods:
            await self._is_there(pod)
        query = {"watch": "true", "labelSelector": self._selector, "resourceVersion": version}
        url = f"{self._api.access.server}{path_of(KINDS['Pod'], self._namespace)}"
        headers, unlimited = await self._api.access.headers(), aiohttp.ClientTimeout(total=None)
        async with self._api.session.get(url, params=query, headers=headers, timeout=unlimited) as events:
            async for line in events.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] == "DELETED":
                    self._is_gone(event["object"]["metadata"]["uid"])
                else:
                    await self._is_there(event["object"])

    def _is_gone(self, uid: str) -> None:
        self._pods.pop(uid, None)
        if uid in self._seen:
            self.diary.append((self._seen.pop(uid)[0], uid, "gone"))
        self._count()

    async def _is_there(self, pod: Object) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        state = _state(pod)
        if self._seen.get(uid) != (name, state):
            self.diary.append((name, uid, state))
        self._seen[uid] = name, state
        self._pods[uid] = pod
        self._count()
        if not self.held:
            await self._work(pod)

    def _count(self) -> None:
        ready = sum(state == "ready" for _, state in self._seen.values())
        self.fewest_ready = min(self.fewest_ready, ready) if self.watching else ready

    async def _work_when_let_go(self) -> None:
        while True:
            await self._let_go.wait()
            self._let_go.clear()
            for pod in list(self._pods.values()):
                await self._work(pod)

    async def _work(self, pod: Object) -> None:
        if _state(pod) == "new":
            [container] = pod["spec"]["containers"]
            bad = container["image"] == BAD_IMAGE
            waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
            while self._pods.get(pod["metadata"]["uid"]) is pod:
                try:
                    await self.say(pod, ready=not bad, state={"waiting": waiting} if bad else {"running": {}})
                except ApiError as error:
                    if not error.passes:  # it has changed since, which the watch tells
                        return
                    await asyncio.sleep(0.05)
                else:
                    return

    async def say(
        self, pod: Object, *, ready: bool, state: Object, phase: str = "Running", last: Object | None = None
    ) -> None:
        """Tell of a pod what a kubelet would."""
        [container] = pod["spec"]["containers"]
        told = {
            "name": container["name"],
            "ready": ready,
            "restartCount": 0,
            "image": container["image"],
            "imageID": "",
        }
        status = {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [{**told, "state": state, "lastState": last or {}}],
        }
        await self._api.merge(pod, {"status": status}, part="/status")


def _state(pod: Object) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        return "ending"
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "Ready":
            return "ready" if condition["status"] == "True" else "unready"
    return "new"


class Sandbox:
    """Everything that a test of the operator needs, in a namespace of its own."""

    def __init__(self, kubeconfig: Path, namespace: str, directory: Path, api: ThrottledApi, catalog: Catalog) -> None:
        self.kubeconfig, self.namespace, self.directory = kubeconfig, namespace, directory
        self.api, self.catalog = api, catalog
        self.node = Node(api, namespace)
        self._operators: list[Operator] = []
        self.expected_errors: list[str] = []
        """Parts of the lines of level ERROR that a test means to bring about."""

    # ---- operators ----

    def operator(self, *, url: str | None = None, **settings: object) -> Operator:
        """An operator that is not started yet; `url`: of something between it and the API server."""
        given = {
            "catalog": self.catalog.url,
            "image": GOOD_IMAGE,
            "namespaces": self.namespace,
            "lease_namespace": self.namespace,
            "host": "127.0.0.1",
            "port": 0,
            "lease_duration": 15,
            "identity": f"operator-{len(self._operators)}",
            "resync": 2,
            "catalog_interval": 0.5,
            "retry_first": 0.2,
            "retry_last": 2,
            "frontier_interval": 0.5,
            **settings,
        }
        environment: dict[str, object] = {f"EPOCHAL_OPERATOR_{name.upper()}": value for name, value in given.items()}
        environment["KUBECONFIG"] = self._through(url) if url else self.kubeconfig
        log = self.directory / f"operator-{len(self._operators)}.log"
        self._operators.append(Operator(log, environment))
        return self._operators[-1]

    def operator_as(self, kubeconfig: Path, **settings: Any) -> Operator:
        """An operator that is another user."""
        operator = self.operator(**settings)
        operator.settings["KUBECONFIG"] = kubeconfig
        return operator

    async def program(self, module: str, *arguments: str, kubeconfig: Path | None = None) -> str:
        """Run a program of ours to its end, as another user where a kubeconfig is given; what it printed."""
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig or self.kubeconfig)}
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments), env=environment, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await running.communicate()
        assert running.returncode == 0
        return said.decode()

    def _through(self, url: str) -> Path:
        path = self.directory / f"kubeconfig-{url.rpartition(':')[2]}"
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n"
            f"clusters: [{{name: x, cluster: {{server: '{url}'}}}}]\n"
            "users: [{name: x, user: {}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n"
        )
        return path

    async def close(self) -> None:
        """End all operators, and complain of what they should not have logged."""
        for operator in self._operators:
            await operator.kill()
        wrong = [line for line in self.logs().splitlines() if _is_wrong(line)]
        assert not [line for line in wrong if not any(part in line for part in self.expected_errors)], self.logs()

    def logs(self) -> str:
        """What all operators have logged."""
        return "".join(operator.log.read_text() for operator in self._operators if operator.log.exists())

    # ---- streams ----

    def document(self, name: str = "flights", segments: int = 2, **spec: Any) -> Object:
        """A manifest."""
        whole = {"time": {"shape": "int"}, "payload": {"encoding": "msgpack"}, "segments": segments, **spec}
        metadata = {"name": name, "namespace": self.namespace}
        return {"apiVersion": "epochal.dev/v1alpha1", "kind": "Stream", "metadata": metadata, "spec": whole}

    async def declare(self, name: str = "flights", segments: int = 2, **spec: Any) -> Object:
        """Make a stream."""
        return await self.api.create(self.document(name, segments, **spec))

    async def change(self, name: str = "flights", **spec: Any) -> Object:
        """Change its spec, by a merge; again when it has changed meanwhile."""
        while True:
            stream = await self.stream(name)
            assert stream is not None
            try:
                return await self.api.merge(stream, {"spec": spec})
            except ApiError as error:
                if error.status != 409:
                    raise

    async def delete(self, name: str = "flights") -> None:
        """Delete it, as kubectl does without waiting."""
        stream = await self.stream(name)
        assert stream is not None
        await self.api.delete(stream, {"uid": stream["metadata"]["uid"]})

    async def stream(self, name: str = "flights") -> Object | None:
        """How it is now."""
        return await self.api.get("Stream", self.namespace, name)

    async def children(self, name: str = "flights") -> dict[tuple[str, str], Object]:
        """Its objects, by kind and name."""
        found: dict[tuple[str, str], Object] = {}
        for kind in CHILDREN:
            items, _ = await self.api.list(kind, self.namespace, f"{SELECTOR},{STREAM_LABEL}={name}")
            found |= {(kind.kind, item["metadata"]["name"]): item for item in items}
        return found

    async def lose(self, item: Object) -> None:
        """Delete exactly this object, as somebody else would."""
        await self.api.delete(item, {"uid": item["metadata"]["uid"]})

    async def is_made_anew(self, old: Object) -> None:
        """Wait until another object has the kind and name of this one."""
        kind, namespace, name = old["kind"], old["metadata"]["namespace"], old["metadata"]["name"]

        async def look() -> bool:
            found = await self.api.get(kind, namespace, name)
            return found is not None and found["metadata"]["uid"] != old["metadata"]["uid"]

        await eventually(look)

    async def conditions(self, name: str = "flights") -> dict[str, tuple[str, str]]:
        """Status and reason of each condition."""
        stream = await self.stream(name)
        told = (stream or {}).get("status", {}).get("conditions", ())
        return {item["type"]: (item["status"], item["reason"]) for item in told}

    async def is_told(self, kind: str, reason: str, name: str = "flights") -> None:
        """Wait for a condition with this reason."""

        async def look() -> bool:
            return (await self.conditions(name)).get(kind, ("", ""))[1] == reason

        await eventually(look)

    async def is_ready(self, name: str = "flights") -> Object:
        """Wait until everything is as declared, in the generation that it has now; the stream then."""

        async def look() -> Object:
            stream = await self.stream(name)
            assert stream is not None
            status = stream.get("status", {})
            current = status.get("observedGeneration") == stream["metadata"]["generation"]
            told = {item["type"]: item["reason"] for item in status.get("conditions", ())}
            wanted = {"Ready": "Serving", "Progressing": "Complete", "Degraded": "AsExpected"}
            return stream if current and told == wanted else {}

        return await eventually(look)

    async def is_gone(self, name: str = "flights") -> None:
        """Wait until neither it nor anything of it is there."""

        async def look() -> bool:
            return await self.stream(name) is None and not await self.children(name)

        await eventually(look)

    async def at_the_catalog(self, name: str = "flights") -> str | None:
        """Its uid there."""
        async with CatalogClient(self.catalog.url) as client:
            found = [each for each in await client.list(self.namespace) if each.name == name]
        return found[0].uid if found else None

    async def events(self) -> list[str]:
        """The reasons of events about streams, as they came."""
        found, _ = await self.api.list(KINDS["Event"], self.namespace)
        ours = [item for item in found if item["involvedObject"]["kind"] == "Stream"]
        return [item["reason"] for item in sorted(ours, key=lambda item: int(item["metadata"]["resourceVersion"]))]


@contextlib.asynccontextmanager
async def open_sandbox(kubeconfig: Path, namespace: str, directory: Path) -> AsyncIterator[Sandbox]:
    """A sandbox on which nothing runs but the catalog and the node."""
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(ThrottledApi(kubeconfig=kubeconfig))
        catalog = Catalog(directory)
        await catalog.start()
        stack.push_async_callback(catalog.stop)
        set_up = Sandbox(kubeconfig, namespace, directory, api, catalog)
        stack.push_async_callback(set_up.close)
        working = asyncio.create_task(set_up.node.run())
        stack.callback(working.cancel)
        yield set_up


def _is_wrong(line: str) -> bool:
    """Whether a line of a log, as text or as JSON, is what no operator should say."""
    return "Traceback" in line or re.search(r'^\S+ \S+ (ERROR|CRITICAL) |"level": "(error|critical)"', line) is not None


async def scrape(url: str) -> str:
    """The text behind a URL."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()
