"""How the operator comes to watch: before streams are defined, after they were undefined, and by a plug-in's log-in."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.api.sandbox import Operator, Sandbox, eventually, open_sandbox
from tests.cluster.harness.apiserver import ApiServer

from epochal.resources.definitions import all_crds

WATCH_ENDED = 4
EXEC = "client.authentication.k8s.io/v1"


async def test_streams_that_are_defined_later_are_watched(
    api_servers: Callable[..., ApiServer], tmp_path: Path
) -> None:
    """With lists made once an hour: what is seen is seen by watching.

    An API server lets the watches of a definition that was deleted go on for two minutes. A silent watch is opened
    again before that, and refused. Then the operator ends; once started again it waits for the definition.
    """
    server = api_servers(controllers=True)
    server.kubectl("create", "namespace", "demo")
    async with open_sandbox(server.kubeconfig, "demo", tmp_path) as set_up:
        operator = set_up.operator(resync=3600, watch_silence=5)
        await operator.start()

        async def told() -> bool:
            return "epochal-operator crd | kubectl apply" in operator.log.read_text()

        await eventually(told)
        requests = await operator.counted("epochal_operator_kubernetes_requests_total", '"404"')

        async def asked_again() -> bool:
            return await operator.counted("epochal_operator_kubernetes_requests_total", '"404"') > requests + 2

        await eventually(asked_again)
        assert operator.log.read_text().count("streams are not defined") == 1, "and not at each try"
        await asyncio.to_thread(server.define, all_crds())
        await lists(operator, 1)
        await set_up.declare()
        await set_up.is_ready()
        await set_up.delete()
        await set_up.is_gone()
        set_up.expected_errors.append("stopping: streams cannot be watched: 404")
        await asyncio.to_thread(server.kubectl, "delete", "crd", "streams.epochal.dev", "--wait=true")
        assert await operator.ended() == WATCH_ENDED
        await operator.start()

        async def undefined() -> bool:
            return operator.log.read_text().count("streams are not defined") == 2

        await eventually(undefined)
        await asyncio.to_thread(server.define, all_crds())
        await lists(operator, 2)
        await set_up.declare("again")
        await set_up.is_ready("again")


async def lists(operator: Operator, times: int) -> None:
    async def look() -> bool:
        return operator.log.read_text().count("can be listed again") >= times

    await eventually(look)


async def test_a_plug_in_logs_in_for_lists_and_watches(
    sandbox: Sandbox, cluster_with_streams: ApiServer, tmp_path: Path
) -> None:
    server, namespace = cluster_with_streams, sandbox.namespace
    server.kubectl("create", "serviceaccount", "robot", "-n", namespace)
    binding = ["create", "rolebinding", "robot", "-n", namespace, "--clusterrole=cluster-admin"]
    server.kubectl(*binding, f"--serviceaccount={namespace}:robot")
    token = server.kubectl("create", "token", "-n", namespace, "robot").strip()
    said = {"apiVersion": EXEC, "kind": "ExecCredential", "status": {"token": token}}
    plugin = tmp_path / "login"
    plugin.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n")
    plugin.chmod(0o755)
    document: dict[str, Any] = yaml.safe_load(server.kubeconfig.read_text())
    for user in document["users"]:
        user["user"] = {"exec": {"apiVersion": EXEC, "command": str(plugin), "interactiveMode": "Never"}}
    kubeconfig = tmp_path / "plug-in"
    kubeconfig.write_text(yaml.safe_dump(document))
    operator = sandbox.operator_as(kubeconfig, resync=3600, catalog_interval=3600)
    await operator.start()
    await sandbox.declare()
    await sandbox.is_ready()
    assert await operator.counted("epochal_operator_watch_events_total", '"Pod"') > 0
    assert "cannot be watched" not in operator.log.read_text()
