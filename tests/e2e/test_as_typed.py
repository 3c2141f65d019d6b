"""The commands as a person types them, together: up, apply, sub, pub, Ctrl-C; then nothing is left."""

import asyncio
import json
import os
import re
import signal
import socket
from pathlib import Path

import pytest
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.processes import children, runs

from epochal.local.child import console_script

MANIFEST = """
apiVersion: epochal.dev/v1alpha1
kind: Stream
metadata: {name: flights, namespace: demo}
spec:
  time: {shape: int}
  payload: {encoding: json}
  segments: 3
"""


async def start(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
    """One command in a process group of its own, as a shell starts it."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        console_script("epochal"), *arguments,
        stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **environment}, start_new_session=True,
    )  # fmt: skip


@pytest.mark.rule("E18")
async def test_up_apply_sub_pub_and_ctrl_c(tmp_path: Path) -> None:
    manifest, data = tmp_path / "flights.yaml", tmp_path / "data"
    manifest.write_text(MANIFEST)
    up = await start("up", "--data", str(data), "--port", str(free_port()))
    assert up.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            url = (await up.stdout.readline()).decode().split()[2]
            port = int(re.findall(r":([0-9]+)", url)[-1])
            apply = await start("apply", "-f", str(manifest), EPOCHAL_CATALOG=url)
            out, err = await apply.communicate()
            assert apply.returncode == 0, err
            sub = await start("sub", "demo/flights", "--since", "start", "--epochs", "--json", EPOCHAL_CATALOG=url)
            pub = await start("pub", "demo/flights", "--time", "3", "--finish", EPOCHAL_CATALOG=url)
            _, err = await pub.communicate(b'{"a": 1}\n{"a": 2}\n')
            assert pub.returncode == 0, err
            out, err = await sub.communicate()
            assert sub.returncode == 0, err
            assert json.loads(out.decode().splitlines()[0])["time"] == 3
            started = children(up.pid)
            assert len(started) == 2, "the catalog and one publisher for all segments"
            os.killpg(up.pid, signal.SIGINT)  # Ctrl-C reaches the whole group
            out, err = await up.communicate()
            assert (up.returncode, b"Traceback" in err) == (0, False), err
            assert not [pid for pid in started if runs(pid)]
            assert not (data / "lock").exists()
            with socket.create_server(("127.0.0.1", port)):
                pass  # the port is free
    finally:
        if up.returncode is None:
            os.killpg(up.pid, signal.SIGKILL)
            await up.communicate()
