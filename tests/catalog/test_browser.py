"""A web page in Chromium tries to reach a catalog on the same machine: as itself, and by DNS rebinding."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.browser import HOST, Site, needs_chromium
from tests.patience import PATIENCE

PAGE = """<!doctype html><title>flights</title><iframe name="sent"></iframe><script>
const manifest = name => JSON.stringify({apiVersion: "epochal.dev/v1alpha1", kind: "Stream",
  metadata: {namespace: "demo", name}, spec: {time: {shape: "int"}, payload: {encoding: "json"}}})
async function one(found, what, url, options) {
  try {
    const answer = await fetch(url, options)
    found[what] = answer.type == "opaque" ? "unreadable" : answer.status + " " + (await answer.text()).slice(0, 300)
  } catch (error) { found[what] = "blocked" }
}
function form(action, body) {  // a page may send forms anywhere; with this type the browser asks nobody first
  const sent = document.createElement("form")
  Object.assign(sent, {method: "post", enctype: "text/plain", action, target: "sent"})
  sent.append(Object.assign(document.createElement("input"), {name: body.slice(0, -1) + ',"x":"', value: '"}'}))
  document.body.append(sent)
  sent.submit()
  return new Promise(resolve => document.querySelector("iframe").onload = resolve)
}
async function run() {
  const found = {}, headers = {"Content-Type": "application/json"}, body = manifest("json")
  for (const [how, at] of Object.entries({foreign: CATALOG, rebound: ""})) {
    await one(found, how + " list", at + "/v1/streams")
    await one(found, how + " declare", at + "/v1/streams/demo/json", {method: "PUT", headers, body})
    await one(found, how + " delete", at + "/v1/streams/demo/flights", {method: "DELETE"})
    await one(found, how + " plain", at + "/v1/publishers", {method: "POST", body: REGISTRATION, mode: "no-cors"})
  }
  await form(CATALOG + "/v1/publishers", REGISTRATION)
  await fetch("/found", {method: "POST", body: JSON.stringify(found)})
}
onload = run
</script>"""


def site(catalog: str, uid: str) -> Site:
    """A site that somebody visits. All but its page comes from the catalog, as after the name was rebound to it."""
    registration = {
        "publisher": "evil", "instance": "evil", "stream": "demo/flights", "uid": uid, "segments": ["0"],
        "addresses": dict.fromkeys(("events", "requests", "ingest"), "tcp://127.0.0.1:1"),
    }  # fmt: skip
    given = {"CATALOG": catalog, "REGISTRATION": json.dumps(registration)}
    constants = "".join([f"<script>const {name} = {json.dumps(value)}</script>" for name, value in given.items()])

    async def rebound(request: web.Request) -> web.StreamResponse:
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, catalog + request.raw_path, data=await request.read(), headers=request.headers
            ) as answer,
        ):
            return web.Response(status=answer.status, body=await answer.read())

    return Site({"/page.html": constants + PAGE}, rebound)


async def attacked(client: Any, profile: Path) -> dict[str, str]:
    """What a page found in a catalog that has one stream."""
    uid = (await client.apply()).body["uid"]
    page = site(client.url, uid)
    async with page.served(), page.visited("/page.html", profile), asyncio.timeout(PATIENCE):
        found: dict[str, str] = await page.found
        return found


def statuses(found: dict[str, str], what: Iterable[str]) -> set[str]:
    return {found[item].split(" ")[0] for item in what}


REBOUND = ("rebound list", "rebound declare", "rebound delete", "rebound plain")


@pytest.mark.long
@needs_chromium
async def test_a_page_in_a_browser_reads_and_changes_nothing(start: Any, tmp_path: Path) -> None:
    async with start() as client:
        found = await attacked(client, tmp_path / "profile")
        assert statuses(found, ("foreign list", "foreign declare", "foreign delete")) == {"blocked"}
        assert found["foreign plain"] == "unreadable"
        assert statuses(found, REBOUND) == {"421"}
        assert [item["name"] for item in (await client("GET", "/v1/streams")).body["items"]] == ["flights"]
        assert (await client("GET", "/v1/publishers")).body["items"] == []


@pytest.mark.long
@needs_chromium
async def test_the_page_would_succeed_by_a_name_that_is_trusted(start: Any, tmp_path: Path) -> None:
    """So that the test before shows the catalog's doing, and not a page that does not work."""
    async with start(hosts=HOST) as client:
        found = await attacked(client, tmp_path / "profile")
        assert statuses(found, REBOUND[:3]) == {"200", "201", "204"}
        assert [item["name"] for item in (await client("GET", "/v1/streams")).body["items"]] == ["json"]
