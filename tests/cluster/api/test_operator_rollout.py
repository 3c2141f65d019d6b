"""A wrong image for several streams, on a real API server: one of them loses one pod, the others wait; and back."""

from tests.cluster.api.sandbox import BAD_IMAGE, Sandbox, eventually

NAMES = [f"s{at}" for at in range(5)]


async def pods(sandbox: Sandbox) -> dict[tuple[str, str], str]:
    """The uid of each pod, by stream and image."""
    found = {}
    for name in NAMES:
        for (kind, pod), item in (await sandbox.children(name)).items():
            if kind == "Pod":
                found[pod, item["spec"]["containers"][0]["image"]] = item["metadata"]["uid"]
    return found


async def test_a_wrong_image_stops_at_one_stream_and_going_back_heals_it(sandbox: Sandbox) -> None:
    first = sandbox.operator()
    await first.start()
    for name in NAMES:
        await sandbox.declare(name, 2)
    for name in NAMES:
        await sandbox.is_ready(name)
    before = await pods(sandbox)
    await first.stop()
    bad = sandbox.operator(image=BAD_IMAGE)
    await bad.start()

    async def stopped() -> list[str]:
        told = {name: (await sandbox.conditions(name))["Progressing"] for name in NAMES}
        stuck = [name for name in NAMES if told[name] == ("False", "RolloutStuck")]
        held = [name for name in NAMES if told[name] == ("False", "RolloutStopped")]
        return stuck if len(stuck) == 1 and len(held) == 4 else []

    [stuck] = await eventually(stopped)
    await bad.has_looked(15)
    now = await pods(sandbox)
    assert len(before.items() - now.items()) == 1
    assert [pod for pod, image in now if image == BAD_IMAGE] == [f"{stuck}-0"]
    other = await sandbox.stream(next(name for name in NAMES if name != stuck))
    assert other is not None
    [message] = [item["message"] for item in other["status"]["conditions"] if item["type"] == "Progressing"]
    assert f"{sandbox.namespace}/{stuck}-0 (ImagePullBackOff: no such image)" in message
    await bad.stop()
    await first.start()
    for name in NAMES:
        await sandbox.is_ready(name)
    healed = await pods(sandbox)
    assert healed.keys() == before.keys()
    assert len(before.items() - healed.items()) == 1, "nothing else was replaced"
