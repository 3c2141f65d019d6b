"""Relays in `get`, `describe`, `doctor` and `sub --via`; here one is listed with a publisher's own addresses."""

import asyncio
import json
from typing import Any

import pytest
import yaml
from tests.patience import PATIENCE

from epochal.catalog_api.answers import StreamInfo
from epochal.catalog_api.requests import RegisterRelay, RelayAddresses, RelayReport
from epochal.cli.doctor import checks, examination
from epochal.cli.doctor.checks import Verdict
from epochal.cli.io.documents import Documents
from epochal.client.catalog.catalog import CatalogClient

DEAD = RelayAddresses("tcp://127.0.0.1:1", "tcp://127.0.0.1:1")


async def register(url: str, stream: str, key: str, addresses: RelayAddresses | None = None, **report: Any) -> None:
    """A relay of a stream, by default at its publisher's addresses."""
    async with CatalogClient(url) as catalog:
        info = await catalog.lookup(*stream.split("/"), wait=PATIENCE)
        owner = info.segments[0].publisher
        assert owner is not None
        own = RelayAddresses(owner.addresses["events"], owner.addresses["requests"])
        said = RelayReport(**{"state": "ready", **report})
        await catalog.register_relay(RegisterRelay(stream, info.uid, "eu", key, addresses or own, 100, report=said))


def test_relays_are_listed_and_described(run, declared, catalog: str) -> None:
    stream = declared(segments=1)
    assert "no relays" in run("get", "relays", stream).err
    assert "Relays:" not in run("describe", "stream", stream).out
    assert json.loads(run("describe", "stream", stream, "-o", "json").out)["listed_relays"] == []
    asyncio.run(register(catalog, stream, f"{stream}-1", load=3, lag=0.25, filter="delay/"))
    asyncio.run(register(catalog, stream, f"{stream}-2", DEAD, state="waiting", path=["hub-0", "hub-1"]))
    header, first, second = run("get", "relays", stream).out.splitlines()
    assert header.split() == ["NAME", "ID", "STREAM", "STATE", "LOAD", "LAG", "PATH", "AGE"]
    assert first.split()[:-1] == ["eu", f"{stream}-1", stream, "ready", "3/100", "0.2", "s", "direct"]
    assert second.split()[:-1] == ["eu", f"{stream}-2", stream, "waiting", "0/100", "-", "hub-0,hub-1"]
    wide = run("get", "relays", stream, "-o", "wide").out
    assert wide.count("tcp://127.0.0.1:1") == 2
    assert "delay/" in wide
    assert run("get", "relays", stream, "-o", "name").out == f"relay/{stream}-1\nrelay/{stream}-2\n"
    listed = json.loads(run("get", "relays", stream, "-o", "json").out)["items"]
    assert [item["path"] for item in listed] == [[], ["hub-0", "hub-1"]]
    told = run("describe", "stream", stream).out.partition("\nRelays:\n")[2].splitlines()
    assert told == [
        f"  {stream}-1:  eu, ready, load 3/100, lag 0.2 s, path direct, reads delay/",
        f"  {stream}-2:  eu, waiting, load 0/100, lag -, path hub-0,hub-1, reads everything",
    ]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_described_stream_as_a_document_has_its_relays(run, declared, catalog: str, form: str) -> None:
    stream = declared(segments=1)
    asyncio.run(register(catalog, stream, f"{stream}-1", load=3, lag=0.25, filter="delay/"))
    asyncio.run(register(catalog, stream, f"{stream}-2", DEAD, state="waiting", path=["hub-0", "hub-1"]))
    item = yaml.safe_load(run("describe", "stream", stream, "-o", form).out)
    shown = ("name", "state", "load", "capacity", "lag", "path", "filter")
    assert {relay["id"]: tuple(relay[field] for field in shown) for relay in item["listed_relays"]} == {
        f"{stream}-1": ("eu", "ready", 3, 100, 0.25, [], "delay/"),
        f"{stream}-2": ("eu", "waiting", 0, 100, None, ["hub-0", "hub-1"], ""),
    }
    assert item["relays"] == 2, "the catalog's own fields are as they were"


def test_sub_reads_on_the_way_that_is_chosen(run, declared, catalog: str) -> None:
    stream = declared(segments=1)
    assert run("pub", stream, "-t", "3", "1", "--finish").status == 0
    asyncio.run(register(catalog, stream, f"{stream}-1"))
    for via in ("relay:eu", "relay", "direct", "auto"):
        result = run("sub", stream, "--since", "start", "--epochs", "--count", "1", "--raw", "--via", via)
        assert (result.status, result.out) == (0, "1\n"), result.err
    wrong = run("sub", stream, "--via", "relays")
    assert wrong.status == 2
    assert "via= is auto, direct, relay or relay:NAME" in wrong.err


async def test_doctor_finds_relays_that_cannot_be_reached(services) -> None:
    stream = await services.stream()
    async with Documents(services.url, patience=0.0) as documents:
        await register(services.url, stream, "well")
        streams = [StreamInfo.from_json(await documents.stream(*stream.split("/")))]
        (found,) = [
            each for each in await examination._relays(streams, 10.0, services.url) if "waiting" not in each.seen
        ]
        assert (found.check, found.verdict, found.seen) == ("relays", Verdict.OK, "all 2 ports of 1 relay answer")
        await register(services.url, stream, "dead", DEAD)
        failed = [
            each for each in await examination._relays(streams, 10.0, services.url) if each.verdict is Verdict.FAIL
        ]
        assert [each.seen.partition(":")[0] for each in failed] == [
            f"dead ({stream}) events at tcp",
            f"dead ({stream}) requests at tcp",
        ]
        assert all("refused" in each.seen.lower() for each in failed)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, ""),
        ({"state": "waiting"}, "warn"),
        ({"state": "draining", "load": 9}, ""),
        ({"load": 10}, "warn"),
    ],
)
def test_relays_that_take_no_readers_are_named(fields: dict[str, Any], found: str) -> None:
    item = {"id": "r", "stream": "demo/x", "state": "ready", "load": 0, "capacity": 10, **fields}
    assert " ".join(str(each.verdict) for each in checks.check_relays([item])) == found
