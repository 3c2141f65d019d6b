"""Decides which checks of `epochal doctor` run, and in what order; each of them ends in time.

Probes collect facts, and checks judge them. `epochal report` writes the same findings into its archive.
"""

import asyncio
import importlib.metadata
import resource
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import zmq

from epochal.catalog_api.answers import StreamInfo
from epochal.cli import target
from epochal.cli.doctor import checks, probes
from epochal.cli.doctor.checks import Finding, fail, ok, warn
from epochal.cli.io.documents import Document, Documents
from epochal.cli.listed_kinds import PUBLISHERS, RELAYS, STREAMS, Kind, lease_state
from epochal.client.catalog.url import DEFAULT_CATALOG, catalog_advice, catalog_url
from epochal.errors import EpochalError
from epochal.local import DEFAULT_DATA

if TYPE_CHECKING:
    from epochal.kube import Choice

DOCTOR_TIMEOUT = 5.0
"""Seconds for each answer, unless --timeout says otherwise."""
MOST_PROBED = 64
"""At most this many publishers, and relays, are tried: enough to see what is wrong with a network."""
AT_ONCE = 16
LEAST_FREE = 100 * 2**20
"""With fewer free bytes the disk of the data directory may soon be full."""


async def examine(catalog: str | None, data: Path | None, timeout: float) -> list[Finding]:
    """All findings. Raises `ConfigError` for a `catalog` that is no URL."""
    findings = [checks.check_python(sys.version_info[:3]), checks.check_libzmq(zmq.zmq_version_info())]
    java = await asyncio.to_thread(probes.java_major, timeout)
    findings.append(checks.check_java(java, probes.installed("pyspark")))
    choice = target.chosen()
    streams, remote = await (
        _realm(catalog_url(catalog), timeout) if choice is None else _cluster(choice, catalog, timeout)
    )
    if data is not None:
        findings.append(_directory(probes.look_at_directory(data)))
    elif choice is None:
        findings += await _data(catalog_url(catalog), timeout)
    segments = sum(len(stream.segments) for stream in streams)
    findings.append(checks.check_files(*resource.getrlimit(resource.RLIMIT_NOFILE), segments))
    return findings + remote


async def _data(url: str, timeout: float) -> list[Finding]:
    """Check the data directory of the local mode whose catalog answers, and no other one."""
    try:
        named = await probes.named_directory(url, timeout)
    except (EpochalError, TimeoutError):
        usual = _usual(url)
        return [] if usual is None else [_directory(probes.look_at_directory(usual))]
    if named is None:
        return [ok("data", "the catalog names no data directory, so none is looked at")]
    seen = probes.look_at_directory(named)
    if seen.holder is None:
        advice = "is the catalog on another machine, or of another user? look there with: epochal doctor"
        return [warn("data", f"{named}: the catalog names it, but no process of this machine uses it", advice)]
    return [_directory(seen)]


async def data_directory(catalog: str | None, timeout: float) -> Path | None:
    """The data directory of local mode; None on a cluster, or if the catalog does not name one."""
    if target.chosen() is not None:
        return None
    url = catalog_url(catalog)
    try:
        return await probes.named_directory(url, timeout)
    except (EpochalError, TimeoutError):
        return _usual(url)


def _usual(url: str) -> Path | None:
    """The default data directory, if it is the default catalog that does not answer and the directory exists."""
    return DEFAULT_DATA.absolute() if url == DEFAULT_CATALOG and DEFAULT_DATA.is_dir() else None


async def _cluster(choice: "Choice", catalog: str | None, timeout: float) -> tuple[list[StreamInfo], list[Finding]]:
    """Check the cluster, then its catalog: the streams and all findings."""
    from epochal.cli.doctor.cluster_checks import look_at_cluster

    # Each probe of a port blocks a thread while it waits for a port-forward, which may need a thread itself, to resolve
    # the API server's address. With twice as many threads as probes there is always one for it.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2 * AT_ONCE))
    try:
        async with target.open_cluster(choice) as cluster:
            findings = await look_at_cluster(cluster, timeout)
            try:
                async with asyncio.timeout(timeout):
                    url = await target.where(catalog)
            except (EpochalError, TimeoutError) as error:
                return [], [*findings, fail("catalog", str(error) or "no answer in time", "see the findings above")]
            name = f"service {cluster.catalog_name}" if cluster.catalog_name else catalog
            findings.append(ok("forward", f"{name} is reached at {url} for the time of this look"))
            streams, found = await _realm(url, timeout)
            return streams, [*findings, *found]
    except EpochalError as error:
        return [], [fail("kubernetes", str(error), "which cluster is meant? see kubectl config get-contexts")]


async def _realm(url: str, timeout: float) -> tuple[list[StreamInfo], list[Finding]]:
    """Check a catalog and everything that it lists: the streams and all findings."""
    advice = catalog_advice(url)
    try:
        seen = await probes.look_at_catalog(url, timeout)
    except TimeoutError:
        return [], [fail("catalog", f"{url} does not answer within {timeout:g} s", advice)]
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return [], [fail("catalog", f"{url} cannot be reached: {probes.reason(error)}", advice)]
    findings = [
        checks.check_latency(url, seen.seconds),
        checks.check_versions(importlib.metadata.version("epochal"), seen.version),
        checks.check_clock(seen.skew),
    ]
    if seen.problem:
        findings.insert(1, fail("catalog", f"it is not ready: {seen.problem}", "look at its log, and at its disk"))
    try:
        async with asyncio.timeout(timeout), Documents(url, patience=0.0, timeout=timeout) as documents:
            listed, publishers = await documents.all(STREAMS.path), await documents.all(PUBLISHERS.path)
    except (EpochalError, TimeoutError) as error:
        return [], [*findings, fail("streams", f"cannot be listed: {str(error) or 'no answer in time'}", advice)]
    streams, unread = _read_streams(listed)
    findings += checks.check_leases(publishers)
    probed = _live(publishers)[:MOST_PROBED]
    first = {item["id"]: next(iter(item["segments"])) for item in probed}
    findings += await _ports(PUBLISHERS, probed, timeout, url, first)
    if any(stream.relays for stream in streams):
        findings += await _relays(streams, timeout, url)
    return streams, [*findings, *unread, *(checks.check_streams(streams) if streams or not listed else [])]


def _read_streams(listed: list[Document]) -> tuple[list[StreamInfo], list[Finding]]:
    """The streams, and a finding for each that the catalog has sent in a form that this version cannot read."""
    streams, unread = list[StreamInfo](), list[Finding]()
    for item in listed:
        try:
            streams.append(StreamInfo.from_json(item))
        except (ValueError, TypeError):
            name = f"{item.get('namespace')}/{item.get('name')}"
            seen = f"{name}: the catalog describes it in a form that is not known here"
            unread.append(fail("streams", seen, "run the same version on both sides"))
    return streams, unread


async def _relays(streams: Sequence[StreamInfo], timeout: float, url: str) -> list[Finding]:
    """Check the ports and the state of relays. Only a ready relay answers a hello with a welcome."""
    try:
        async with asyncio.timeout(timeout), Documents(url, patience=0.0, timeout=timeout) as documents:
            relays = await documents.all(RELAYS.path)
    except (EpochalError, TimeoutError) as error:
        return [fail("relays", f"cannot be listed: {str(error) or 'no answer in time'}", catalog_advice(url))]
    first = {stream.uid: stream.segments[0].id for stream in streams}
    greeted = {item["id"]: first[item["uid"]] for item in relays if item["state"] == "ready" and item["uid"] in first}
    reached = await _ports(RELAYS, relays[:MOST_PROBED], timeout, url, greeted)
    return [*reached, *checks.check_relays(relays)]


def _live(publishers: list[Document]) -> list[Document]:
    return [item for item in publishers if lease_state(item) in ("live", "unverified")]


async def _ports(
    kind: Kind, owners: list[Document], timeout: float, url: str, greeted: Mapping[str, str]
) -> list[Finding]:
    """Try every address of every publisher or relay, some at a time. One that has left meanwhile is no finding.

    `greeted`: id -> the segment for which a hello is sent.
    """
    gate, check = asyncio.Semaphore(AT_ONCE), _CHECKS[kind.name]

    async def reach(item: Document, socket: str, address: str) -> Finding | None:
        async with gate:
            there = await target.way(address)
            reason = await probes.reach(there, socket, timeout)
            if reason is None and address == item["addresses"].get("requests") and item["id"] in greeted:
                reason = await probes.greet(there, item["uid"], greeted[item["id"]], timeout)
        if reason is None:
            return None
        seen = f"{kind.key(item)} ({item['stream']}) {socket} at {address}: {reason}"
        return fail(check, seen, "can this machine reach that host and port? is the process alive?")

    addresses = [(item, *each) for item in owners for each in _addresses(item)]
    failed = await asyncio.gather(*(reach(*each) for each in addresses))
    if any(failed):
        there = await _still_there(kind, owners, timeout, url)
        found = [
            finding for finding, (item, *_) in zip(failed, addresses, strict=True) if finding and item["id"] in there
        ]
        if found:
            return found
        owners = [item for item in owners if item["id"] in there]
        addresses = [each for each in addresses if each[0]["id"] in there]
    if not addresses:
        return []
    return [ok(check, f"all {len(addresses)} ports of {checks.count(len(owners), kind.name)} answer")]


_CHECKS = {PUBLISHERS.name: "ports", RELAYS.name: "relays"}


def _addresses(item: Document) -> list[tuple[str, str]]:
    """(socket, address) pairs, with those of single segments, which only relays have."""
    own = [addresses for addresses in item["segments"].values() if isinstance(addresses, dict)]
    return [each for addresses in (item["addresses"], *own) for each in addresses.items()]


async def _still_there(kind: Kind, owners: list[Document], timeout: float, url: str) -> set[str]:
    """The ids that are still registered with the same addresses; all, if the catalog does not answer."""
    known = {item["id"]: item["addresses"] for item in owners}
    try:
        async with asyncio.timeout(timeout), Documents(url, patience=0.0, timeout=timeout) as documents:
            now = await documents.all(kind.path)
    except (EpochalError, TimeoutError):
        return set(known)
    return {item["id"] for item in _live(now) if known.get(item["id"]) == item["addresses"]}


def _directory(seen: probes.DirectorySeen) -> Finding:
    """Judge the data directory of local mode."""
    if not seen.exists:
        return warn("data", f"{seen.path} is not there", "`epochal up --data DIR` makes it")
    if not seen.writable:
        return fail("data", f"{seen.path} cannot be written to", "choose another with --data, or mend its permissions")
    if seen.free_bytes < LEAST_FREE:
        return warn("data", f"{seen.path}: {seen.free_bytes // 2**20} MiB free", "free some space")
    use = "not in use" if seen.holder is None else f"in use by process {seen.holder}"
    return ok("data", f"{seen.path}: {use}, {seen.free_bytes // 2**30} GiB free")
