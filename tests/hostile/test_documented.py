"""Every limit that docs/hostile-input.md names has the value that the code has."""

import re
from pathlib import Path
from typing import Any

import pytest

from epochal.catalog_api import kinds
from epochal.client.catalog import catalog, http, watch
from epochal.client.encoding import encodings
from epochal.client.subscriber import subscriber
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.epochs import ring
from epochal.protocol.log import epoch_query
from epochal.protocol.publisher import limits, views
from epochal.protocol.publisher import server as serving
from epochal.protocol.relay import run, union
from epochal.protocol.relay import segment as relayed
from epochal.protocol.subscriber import cursor, follower
from epochal.protocol.topics import publisher_trie
from epochal.resources import manifest
from epochal.transport import sockets
from epochal_catalog.domain import pages
from epochal_catalog.runtime.settings import CatalogSettings
from epochal_publisher.relay.epochs import encoding
from epochal_publisher.relay.settings import RelaySettings
from epochal_publisher.settings import Settings as PublisherSettings
from epochal_publisher.sockets import events, peer_limits
from epochal_publisher.sockets.router import Ingest, Requests

PAGE = Path(__file__).parents[2] / "docs" / "hostile-input.md"
SERVING, FOLLOWING = serving.ServingSettings(), follower.FollowerSettings()
CODE: dict[str, float] = {
    "connections waiting to be accepted": peer_limits.BACKLOG,
    "frames of one message": wire.MAX_FRAMES,
    "bytes of the first frame": wire.MAX_FIRST_FRAME,
    "bytes of one header": wire.MAX_HEADER,
    "depth of nesting": wire.MAX_DEPTH,
    "items of one array": wire.MAX_ITEMS,
    "characters of one text": wire.MAX_TEXT,
    "bytes of one topic": wire.MAX_TOPIC,
    "bytes of one frame": Ingest.MAX_FRAME,
    "messages packed into one": Ingest.MAX_MESSAGES,
    "unread answers of one peer": Ingest.SEND_QUEUE,
    "writers at once in one segment": limits.MAX_WRITERS,
    "printable characters of a writer's id": m.MAX_ID,
    "opens that wait for the catalog": limits.MAX_WAITING_OPENS,
    "bytes of one request": Requests.MAX_FRAME,
    "requests packed into one message": Requests.MAX_MESSAGES,
    "joins begun by one peer": SERVING.max_pending_each,
    "joins begun by all": SERVING.max_pending,
    "answers under way to one peer": SERVING.max_answers_each,
    "answers under way to all": SERVING.max_answers,
    "prefixes of one filter": m.MAX_FILTER_ENTRIES,
    "bytes of their prefixes": m.MAX_FILTER_BYTES,
    "prefixes of one connection's view": publisher_trie.MAX_ENTRIES,
    "bytes of a view's prefixes": publisher_trie.MAX_BYTES,
    "bytes of all views of a process": views.MAX_BYTES,
    "silence after which a view is forgotten": SERVING.view_ttl,
    "chunks of credit": serving.MAX_CREDIT,
    "times wanted of a history": epoch_query.MOST_WANTED,
    "unread messages of one peer": Requests.SEND_QUEUE,
    "bytes of one subscription": events.MAX_SUBSCRIPTION,
    "joins that wait for their topics": relayed.MAX_WAITING,
    "filters remembered that nobody has any more": union.MAX_LINGERING,
    "peers known to have joined": run.MAX_GREETED,
    "relays in a row": m.MAX_RELAYS,
    "bytes of a cursor over HTTP": ring.MOST_ID,
    "bytes written to one reader and not read yet": 3 * encoding.PIECE,
    "bytes of a filter over HTTP": cursor.MAX_TOPICS,
    "bytes of a manifest": manifest.MAX_MANIFEST,
    "bytes of a page of a list": pages.PAGE_BYTES,
    "bytes of one answer of a catalog": http.MAX_ANSWER,
    "bytes of one event of a watch": watch.MAX_LINE,
    "pages of one list": catalog.MAX_PAGES,
    "characters of one text of a catalog": kinds.MAX_TEXT,
    "records of one payload": encodings.MAX_RECORDS,
    "live bytes kept while history is read": FOLLOWING.max_backlog,
    "bytes that wait for the program": subscriber.MAX_WAITING_BYTES,
}
"""What no setting changes."""


def tables(*head: str) -> list[list[str]]:
    """The rows of all tables with this head, cell by cell."""
    rows, inside = [], False
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells == list(head):
            inside = True
        elif inside and not set(line) <= set("|-"):
            rows.append(cells)
    return rows


ROWS = tables("limit", "value", "setting", "beyond it")
HTTP = tables("limit", "catalog", "publisher", "setting", "beyond it")


def default(settings: type[Any], name: str) -> float:
    return float(settings.model_fields[name].default)


def number(text: str) -> float:
    return float(text.removesuffix(" s"))


def test_every_fixed_limit_is_documented_and_no_other():
    fixed = [cells[0] for cells in ROWS if not cells[2]]
    assert sorted(fixed) == sorted(CODE)


@pytest.mark.parametrize("cells", ROWS, ids=lambda cells: str(cells[0]))
def test_a_limit_has_the_documented_value(cells):
    name, value, setting, _ = cells
    if setting == "the stream":
        assert re.fullmatch(r"`[a-zA-Z.]+`", value)
    elif setting:
        key = setting.strip("`")
        owners = [each for each in (PublisherSettings, CatalogSettings, RelaySettings) if key in each.model_fields]
        assert number(value) in [default(owner, key) for owner in owners]
    else:
        assert number(value) == CODE[name]


@pytest.mark.parametrize("cells", HTTP, ids=lambda cells: str(cells[0]))
def test_a_limit_of_http_has_the_documented_value(cells):
    _, of_catalog, of_publisher, setting, _ = cells
    key = setting.strip("`")
    assert number(of_catalog) == default(CatalogSettings, key)
    assert number(of_publisher) == default(PublisherSettings, key)


def test_every_test_of_a_relay_over_http_is_named_and_no_other():
    named = [cells[2].strip("`") for cells in tables("what is done to a relay over HTTP", "what comes of it", "test")]
    code = (Path(__file__).parent / "test_epochs.py").read_text()
    assert sorted(named) == sorted(re.findall(r"^def (test_\w+)", code, re.MULTILINE))


def test_how_long_one_socket_may_hold_up_the_others_is_documented():
    text = " ".join(PAGE.read_text().split())
    mebibytes, milliseconds = sockets.BURST_BYTES // 2**20, round(sockets.BURST_SECONDS * 1000)
    assert f"{sockets.BURST} messages, {mebibytes} MiB or {milliseconds} ms" in text
