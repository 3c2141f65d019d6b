"""The custom resource definition: what Kubernetes asks of one, and that it agrees with the model it is made from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.resources.admission import SCHEMA, admitted, defaulted

from epochal.errors import ManifestError
from epochal.resources.cluster import check_drawable
from epochal.resources.crd import stream_crd
from epochal.resources.definitions import crd_text
from epochal.resources.feasible import check_feasible
from epochal.resources.manifest import StreamManifest, immutable_changes

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
SPEC = {"time": {"shape": "int"}, "payload": {"encoding": "msgpack"}}


def document(name: str = "flights", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "demo"}
    return {"apiVersion": "epochal.dev/v1alpha1", "kind": "Stream", "metadata": metadata, "spec": {**SPEC, **spec}}


def problems(found: dict[str, Any]) -> list[str]:
    try:
        check_feasible(StreamManifest.from_document(found))
    except ManifestError as error:
        return [str(problem) for problem in error.problems]
    return []


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def test_kubernetes_takes_the_definition() -> None:
    for version in ("1.29", "1.34", "1.37"):
        kubernetes_validate.validate(stream_crd(), version, strict=True)


def test_the_chart_has_the_definition_as_it_is_made() -> None:
    text = (ROOT / "charts/epochal/files/streams.epochal.dev.yaml").read_text()
    assert text == crd_text("streams"), "make crd"
    assert yaml.safe_load(text) == stream_crd()


@pytest.mark.parametrize(("path", "schema"), [pytest.param(*node, id=node[0]) for node in nodes(SCHEMA)])
def test_every_field_is_described_typed_and_bounded(path: str, schema: dict[str, Any]) -> None:
    if path != ".metadata":
        assert schema.get("description") or path.endswith("notInEffect[]")
    if schema.get("x-kubernetes-int-or-string"):
        assert "type" not in schema
        return
    kind = schema["type"]
    bound = {"string": ("maxLength", "enum", "format"), "array": ("maxItems",)}.get(kind, ())
    if path.startswith(".spec"):
        bound = {"string": ("maxLength", "enum"), "integer": ("maximum",)}.get(kind, bound)
    assert not bound or not path.startswith((".spec", ".status")) or any(key in schema for key in bound)
    assert not ("properties" in schema and "additionalProperties" in schema), "a structural schema has one of them"


def test_status_and_scale_and_what_kubectl_prints() -> None:
    [version] = stream_crd()["spec"]["versions"]
    assert version["subresources"]["status"] == {}
    for path in version["subresources"]["scale"].values():
        section, field = path.removeprefix(".").split(".")
        assert field in SCHEMA["properties"][section]["properties"]
    shown = [column["name"] for column in version["additionalPrinterColumns"] if not column["priority"]]
    assert shown == ["Segments", "Serving", "Ready", "Degraded", "Frontier", "Age"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_taken(path: Path) -> None:
    for found in yaml.safe_load_all(path.read_text()):
        assert admitted(found) == []


REFUSED: dict[str, dict[str, Any]] = {
    "a frontier of tuples": {"time": {"shape": "(int, int)"}, "watermark": {"noteTime": "frontier"}},
    "a durability without a volume": {"history": {"durability": "batch"}},
    "a schema of bytes": {"payload": {"encoding": "bytes", "schema": {"fields": [{"name": "a", "type": "int8"}]}}},
    "no segments": {"segments": 0},
    "negative segments": {"segments": -1},
    "too many segments": {"segments": 10**9},
    "segments of another kind": {"segments": "3"},
    "an unknown field": {"segmnets": 3},
    "an unknown encoding": {"payload": {"encoding": "xml"}},
    "a shape that is none": {"time": {"shape": "float"}},
    "a small volume": {"history": {"storage": {"size": "1Ki"}}},
    "a small volume as a number": {"history": {"storage": {"size": 1024}}},
    "a size that is none": {"history": {"retention": {"bytes": "many"}}},
    "a huge size": {"history": {"retention": {"bytes": "2Pi"}}},
    "a duration that is none": {"history": {"retention": {"time": "1d"}}},
    "a number as a duration": {"history": {"retention": {"time": 3600}}},
    "a short duration": {"history": {"retention": {"time": "10ms"}}},
    "a long duration": {"progress": {"writerTimeout": "25h"}},
    "an unknown fate of lost writers": {"progress": {"whenLost": "wait"}},
    "resources that are none": {"publishers": {"resources": {"limits": {"cpu": "much"}}}},
    "a toleration that is none": {"publishers": {"tolerations": [{"effect": "Never"}]}},
}


@pytest.mark.parametrize("what", REFUSED)
def test_both_the_definition_and_the_model_refuse(what: str) -> None:
    wrong = document(**REFUSED[what])
    assert admitted(wrong)
    with pytest.raises(ManifestError):
        StreamManifest.from_document(wrong)


@pytest.mark.parametrize(
    ("segments", "packed", "advertise", "taken"),
    [
        (2, 1, "streams.example.org", False),
        (1024, 1, "x" * 253, False),
        (3, 2, "streams.example.org", False),
        (2, 2, "streams.example.org", True),
        (1, 1, "streams.example.org", True),
        (3, 1, "{index}.example.org", True),
        (3, 1, "", True),
        (2, None, "streams.example.org", False),
        (1, None, "streams.example.org", True),
        (3, None, "{index}.example.org", True),
        (3, None, "", True),
    ],
)
def test_an_address_that_several_publishers_would_share_is_refused(
    segments: int, packed: int | None, advertise: str, taken: bool
) -> None:
    """Where the stream is run locally the address has no meaning, and the model takes it."""
    given: dict[str, Any] = {} if packed is None else {"segmentsPerPod": packed}
    found = document(segments=segments, publishers={**given, "advertise": advertise})
    problems = admitted(found)
    assert problems == [] if taken else "put {index} in it" in problems[0]
    try:
        check_drawable(StreamManifest.from_document(found))
    except ManifestError:
        assert not taken
    else:
        assert taken


def test_an_api_server_does_not_say_how_many_segments_a_publisher_serves() -> None:
    """It would be stored, and what is right on a cluster would be taken for what was asked for elsewhere."""
    assert defaulted(SCHEMA, document(segments=3))["spec"]["publishers"] == {
        "advertise": "",
        "dedicated": False,
        "topologySpread": True,
    } | ({"resources": {}, "nodeSelector": {}, "tolerations": []})


def test_a_stream_called_as_what_relays_follow_has_no_relays_of_its_own() -> None:
    assert admitted(document("direct")) == problems(document("direct")) == []
    [told] = admitted(document("direct", relays=1))
    [problem] = problems(document("direct", relays=1))
    assert "publishers" in told
    assert "spec.relays" in problem
    assert "publishers" in problem


@pytest.mark.parametrize("name", ["Flights", "-a", "1a", "a-", "a.b", "ä", "a" * 53])
def test_names_from_which_no_names_of_children_can_be_made_are_refused(name: str) -> None:
    assert admitted(document(name))
    with pytest.raises(ManifestError):
        StreamManifest.from_document(document(name))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"time": {"shape": "(int, int)"}}, "cannot change"),
        ({"payload": {"encoding": "json"}}, "cannot change"),
        ({"payload": {"encoding": "msgpack", "schema": {"fields": [{"name": "a", "type": "int8"}]}}}, "schema"),
        ({"segments": 2}, "scaling a stream is planned"),
    ],
)
def test_what_cannot_change_is_refused_by_both(change: dict[str, Any], word: str) -> None:
    old, new = document(), document(**change)
    [told] = admitted(new, old)
    assert word in told
    assert immutable_changes(StreamManifest.from_document(old), StreamManifest.from_document(new))


def test_what_may_change_is_taken() -> None:
    new = document(
        history={"retention": {"time": "2h"}},
        publishers={"segmentsPerPod": 2},
        progress={"minWriters": 3, "whenLost": "hold"},
    )
    assert admitted(new, document()) == []


# What the definition takes and the model refuses: it cannot be said in a schema, and becomes a condition of the object.
LEFT_TO_THE_MODEL: dict[str, dict[str, Any]] = {
    "brackets that do not match": {"time": {"shape": "(int"}},
    "a type that is none": {"payload": {"encoding": "json", "schema": {"fields": [{"name": "a", "type": "float16"}]}}},
    "a name twice": {"payload": {"encoding": "json", "schema": {"fields": [{"name": "a", "type": "int8"}] * 2}}},
    "a part of a byte": {"history": {"storage": {"size": "1073741824.5"}}},
}
# What the definition refuses and the model takes: another spelling of the same, which nobody needs.
LEFT_OUT: dict[str, dict[str, Any]] = {
    "a shape with other white space": {"time": {"shape": "int\t"}},
    "an empty value": {"history": {"storage": None}},
    "a label of a node that no node can have": {"publishers": {"nodeSelector": {"a": "x" * 2000}}},
}


@pytest.mark.parametrize("what", LEFT_TO_THE_MODEL)
def test_what_only_the_model_refuses(what: str) -> None:
    assert admitted(document(**LEFT_TO_THE_MODEL[what])) == []
    with pytest.raises(ManifestError):
        StreamManifest.from_document(document(**LEFT_TO_THE_MODEL[what]))


@pytest.mark.parametrize("what", LEFT_OUT)
def test_what_only_the_definition_refuses(what: str) -> None:
    assert admitted(document(**LEFT_OUT[what]))
    StreamManifest.from_document(document(**LEFT_OUT[what]))


sizes = st.integers(-1, 2**62) | st.builds(
    "{}{}".format, st.integers(0, 2000), st.sampled_from(["", "k", "Ki", "Mi", "Gi", "Ti", "Pi", "G", "E", "x"])
)
durations = st.builds("{}{}".format, st.integers(0, 10**6), st.sampled_from(["ms", "s", "m", "h", "", "d"]))
counts = st.integers(-1, 3000) | st.sampled_from(["1", None, 1.5, True])
words = st.sampled_from(["auto", "batch", "interval", "memory", "keep", "none", "manual", "frontier", "x"])
shapes = st.sampled_from(["int", "(int, int)", "((int, int), int)", "", "float", "int,"])
amounts = st.integers(-1, 9) | st.sampled_from(["1", "500m", "1.5Gi", "x", ""])
labels = st.dictionaries(st.sampled_from(["disk", "zone"]), st.sampled_from(["a", "ssd"]) | st.integers(0, 1))
accounts = st.lists(
    st.fixed_dictionaries(
        {"serviceAccount": st.sampled_from(["a", "*", ""])}, optional={"namespace": st.sampled_from(["b", "B"])}
    ),
    max_size=2,
)
tolerations = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "key": st.sampled_from(["a", ""]),
            "operator": st.sampled_from(["Exists", "exists"]),
            "tolerationSeconds": counts.filter(lambda value: value is not None),
        },
    ),
    max_size=2,
)


def section(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


ports = st.sampled_from([0, 1, 8080, 8081, 65535, 65536])
specs = st.fixed_dictionaries(
    {
        "time": st.fixed_dictionaries({"shape": shapes}),
        "payload": st.fixed_dictionaries({"encoding": st.sampled_from(["bytes", "json", "xml"])}),
    },
    optional={
        "segments": counts.filter(lambda value: value is not None),
        "relays": st.integers(-1, 2) | st.just(1001),
        "relayHttpPort": ports,
        "unknown": st.just(1),
        "history": section(
            durability=words,
            storage=st.fixed_dictionaries({"size": sizes}),
            retention=section(mode=words, time=durations, bytes=sizes),
        ),
        "progress": section(
            minWriters=counts.filter(lambda value: value is not None), writerTimeout=durations, whenLost=words
        ),
        "watermark": section(noteTime=words, interval=durations),
        "push": section(bufferBytes=sizes, heartbeat=durations, initialFilter=words),
        "access": section(publish=accounts, subscribe=accounts),
        "publishers": section(
            segmentsPerPod=st.integers(0, 1025),
            httpPort=ports,
            advertise=st.sampled_from(["", "p-{index}.example"]),
            resources=section(requests=st.dictionaries(st.sampled_from(["cpu", "memory"]), amounts)),
            nodeSelector=labels,
            tolerations=tolerations,
            topologySpread=st.booleans() | st.just("yes"),
        ),
    },
)


@settings(max_examples=300)
@given(specs)
def test_the_definition_and_the_model_agree(spec: dict[str, Any]) -> None:
    found = document(**spec)
    refused = admitted(found)
    only_by_the_model = spec["time"]["shape"] == "int,"  # see LEFT_TO_THE_MODEL
    assert bool(refused) == bool(problems(found)) or only_by_the_model
