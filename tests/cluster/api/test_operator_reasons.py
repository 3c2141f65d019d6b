"""Conditions say in words why a stream is not served: a class that does not exist, a container that is killed."""

from typing import Any

from tests.cluster.api.sandbox import Sandbox


async def message(sandbox: Sandbox, kind: str) -> str:
    stream = await sandbox.stream()
    assert stream is not None
    return next(str(item["message"]) for item in stream["status"]["conditions"] if item["type"] == kind)


async def test_a_storage_class_that_does_not_exist_is_named(sandbox: Sandbox) -> None:
    sandbox.node.held = True  # no pod starts without its volume
    await sandbox.operator().start()
    storage: dict[str, Any] = {"size": "1Gi", "storageClassName": "no-such-class"}
    await sandbox.declare(segments=1, history={"storage": storage})
    await sandbox.is_told("Degraded", "VolumePending")
    assert 'flights-0 (ProvisioningFailed: storageclass.storage.k8s.io "no-such-class" not found)' in await message(
        sandbox, "Degraded"
    )
    sandbox.node.held = False
    await sandbox.is_ready()


async def test_what_crashed_is_named_with_its_reason_and_exit_code(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    await sandbox.declare(segments=1)
    await sandbox.is_ready()
    sandbox.node.held = True
    pod = (await sandbox.children())["Pod", "flights-0"]
    back_off = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}
    killed = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    await sandbox.node.say(pod, ready=False, state=back_off, last=killed)
    await sandbox.is_told("Degraded", "PublisherFailing")
    assert "publisher ended with OOMKilled, exit code 137" in await message(sandbox, "Degraded")
    assert "publisher ended with OOMKilled, exit code 137" in await message(sandbox, "Ready")
