"""`examples/browser.html` in a browser: each epoch once and whole, also where the relay goes away meanwhile."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.browser import Site, needs_chromium
from tests.patience import PATIENCE
from tests.publisher.relaying import relaying
from tests.publisher.test_epochs_http import KEYS, TWO, publish

PAGE = (Path(__file__).parents[2] / "examples" / "browser.html").read_text()
WATCH = """<script type="module">
const state = document.getElementById("state")
while (state.textContent !== "the stream is complete") await new Promise(next => setTimeout(next, 50))
const rows = [...document.querySelectorAll("#rows tr")].map(row => [...row.cells].map(cell => cell.textContent))
const found = {rows, frontier: document.getElementById("frontier").textContent,
  bars: document.querySelectorAll("#chart rect").length, label: document.getElementById("chart").ariaLabel}
await fetch("/found", {method: "POST", body: JSON.stringify(found)})
</script>"""


@pytest.mark.long
@needs_chromium
@pytest.mark.rule("F18", "E18")
async def test_the_page_shows_each_epoch_once_and_whole_also_after_the_relay_was_away(
    start: Any, tmp_path: Path
) -> None:
    stream, _ = start(**TWO)
    site = Site({"/browser.html": PAGE.replace("</body>", WATCH + "</body>")})
    async with site.served() as origin:
        settings: dict[str, Any] = {"cors_origins": origin}
        async with relaying(stream, **settings) as relay:
            port = relay.http.port
            async with relay.client.writer(stream.name) as writer:
                await publish(writer, 0, {"n": 1}, topic=b"a/1")
                async with site.visited(f"/browser.html?since=start&topic=a/&relay={relay.url}", tmp_path / "profile"):
                    while not len(relay.readers.places):  # noqa: ASYNC110  # nobody announces it
                        await asyncio.sleep(0.05)
                    await writer.append(1, [{"n": 2}] * 3, key=b"a", topic=b"a/2")
                    await writer.append(1, ["other"], key=b"a", topic=b"b")
                    await writer.advance(2)
                    await writer.append(2, ["half"], topic=b"a/1")
                    await writer.abort(2)
                    await relay.http._close()
                    for n in range(12):
                        await writer.append(3, ["x" * 200_000], key=KEYS[n % 4], topic=b"a/1")
                    await writer.advance(4)
                    async with relaying(stream, port=port, **settings):
                        await publish(writer, 4, 7, topic=b"a/1")
                        await writer.finish()
                        async with asyncio.timeout(PATIENCE):
                            found = await site.found
    assert [row[:4] for row in found["rows"]] == [
        ["4", "4", "0, 1", "a/1"], ["3", "12", "0, 1", "a/1"], ["2", "-", "aborted", "-"], ["1", "3", "0", "a/2"],
        ["0", "4", "0, 1", "a/1"],
    ]  # fmt: skip
    assert found["rows"][4][4] == '{"n":1}  {"n":1}  {"n":1}'
    assert (found["frontier"], found["bars"]) == ("everything", 5)
    assert found["label"] == "Records of the epochs 0 to 4, at most 12"
