"""What the operator says that it does, with what a real API server notes of who changed what."""

from tests.cluster.api.sandbox import Sandbox, eventually
from tests.cluster.harness.apiserver import ApiServer

from epochal.kube.api import KINDS


async def messages(sandbox: Sandbox, reason: str) -> list[str]:
    found, _ = await sandbox.api.list(KINDS["Event"], sandbox.namespace)
    return [item["message"] for item in found if item["reason"] == reason]


async def test_who_changed_what_is_put_back_is_said_in_one_line_and_one_event(
    sandbox: Sandbox, cluster_with_streams: ApiServer
) -> None:
    await sandbox.operator().start()
    await sandbox.declare(segments=1, relays=1)

    async def made() -> bool:
        return await sandbox.api.get("Relay", sandbox.namespace, "flights") is not None

    await eventually(made)
    kubectl = ("-n", sandbox.namespace)
    cluster_with_streams.kubectl(*kubectl, "scale", "relay/flights", "--replicas=5")
    patch = '{"spec":{"selector":{"epochal.dev/stream":"other"}}}'
    cluster_with_streams.kubectl(*kubectl, "patch", "service/flights", "--type=merge", "-p", patch)
    cluster_with_streams.kubectl(*kubectl, "label", "networkpolicy/flights-publisher", "epochal.dev/stream-")
    wanted = (  # an API server notes nothing about a label that was removed
        ("PutBack", "Relay flights: spec.replicas, which was changed by kubectl (scale)"),
        ("PutBack", "Service flights: spec.selector, which was changed by kubectl-patch at "),
        ("Changed", "NetworkPolicy flights-publisher: it is not as declared: metadata.labels.epochal.dev/stream"),
    )

    async def said() -> bool:
        found = {reason: await messages(sandbox, reason) for reason in ("PutBack", "Changed")}
        return all(any(message.startswith(start) for message in found[reason]) for reason, start in wanted)

    await eventually(said)
    for message in await messages(sandbox, "PutBack"):
        assert f"INFO epochal.operator {sandbox.namespace}/flights: PutBack {message}" in sandbox.logs()
    created = await messages(sandbox, "Created")
    assert created.count("Pod flights-0: there was none") == created.count("Service flights: there was none") == 1
