"""docs/tracing.md against what it speaks of: its program, its commands, and the names of spans and metrics."""

import asyncio
import os
import re
from pathlib import Path

from tests.patience import PATIENCE
from tests.tracing.receiver import receiving

from epochal.local.child import console_script
from epochal.otel import names

PAGE = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text(encoding="utf-8")


def block(mark: str, kind: str) -> str:
    """The code under a mark."""
    (found,) = re.findall(rf"<!-- {mark} -->\n```{kind}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


async def test_the_program_prints_what_the_page_says(services) -> None:
    stream = await services.stream(encoding="json")
    child = await services.run(block("program", "python").replace("demo/readings", stream))
    (printed,) = re.findall(r"prints\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    async with asyncio.timeout(PATIENCE):
        out, _ = await child.communicate()
    assert (child.returncode, out.decode()) == (0, printed.replace("demo/readings", stream))


async def test_the_commands_lead_from_an_epoch_to_its_trace(services) -> None:
    stream = await services.stream(encoding="json")
    lines = [line.removeprefix("$ ") for line in block("commands", "console").splitlines()]
    async with receiving() as received:
        environment = {
            **os.environ,
            "EPOCHAL_CATALOG": services.url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": received.url,
            "PATH": f"{Path(console_script('epochal')).parent}:{os.environ['PATH']}",
        }
        shell = await asyncio.create_subprocess_exec(
            "bash", "-ec", "\n".join(lines).replace("demo/readings", stream), env=environment,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE):
            out, err = await shell.communicate()
        assert shell.returncode == 0, err.decode()
        (send,) = await received.until(f"send {stream}")
        await received.until(f"process {stream}")
    ids = send.trace_id.hex()
    assert out.decode().splitlines()[0] == '1\t{"celsius": 20.5}'
    assert out.decode().rstrip().endswith(f"  yes      http://127.0.0.1:9411/zipkin/traces/{ids}")


def test_every_span_and_metric_has_its_row() -> None:
    spans = re.findall(r"^\| [^|]+ \| `(\w+)[^`]*` \|", PAGE, re.MULTILINE)
    assert {"batch", names.COMMIT, "send", "forward", "append", "process", names.RECONCILE, "GET"} == set(spans)
    assert names.span_name("send", "NS/STREAM") in PAGE
    metrics = {names.SENT_MESSAGES, names.OPERATION_DURATION, names.PROCESS_DURATION, names.SIDECAR_FALLBACKS}
    assert {*metrics, names.SPANS_DROPPED} == set(re.findall(r"^\| `([a-z.]+\.[a-z.]+)` \|", PAGE, re.MULTILINE))


def test_the_attributes_that_it_names_are_set() -> None:
    known = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    assert set(re.findall(r"`(epochal\.[a-z_.]+)`", PAGE)) - {"epochal.processing"} <= known
