"""The manifest: defaults, every kind of wrong field, normal form, what is planned, what may not change."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import ManifestError
from epochal.resources.manifest import OBJECT_UID, StreamManifest, immutable_changes

FULL: dict[str, Any] = {
    "apiVersion": "epochal.dev/v1alpha1",
    "kind": "Stream",
    "metadata": {"name": "flights", "namespace": "demo", "labels": {"team": "x"}},
    "spec": {
        "time": {"shape": "int"},
        "payload": {
            "encoding": "msgpack",
            "schema": {"fields": [{"name": "delay", "type": "int32", "nullable": True}]},
        },
        "segments": 3,
        "history": {
            "retention": {"mode": "keep", "time": "24h", "bytes": "1Gi"},
            "durability": "batch",
            "storage": {"size": "10Gi", "storageClassName": "standard"},
        },
        "progress": {"minWriters": 2, "writerTimeout": "500ms", "whenLost": "hold"},
        "watermark": {"noteTime": "frontier", "timeout": "30s", "interval": "5s", "maxSkew": "5m"},
        "push": {"bufferBytes": "64Mi", "heartbeat": "1s", "initialFilter": "none"},
        "access": {
            "publish": [{"serviceAccount": "spark", "namespace": "jobs"}],
            "subscribe": [{"serviceAccount": "*"}],
        },
        "publishers": {
            "segmentsPerPod": 2,
            "advertise": "a.example",
            "resources": {"limits": {"cpu": "1"}},
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "x"}],
            "topologySpread": False,
            "dedicated": True,
        },
        "relays": 1,
    },
}


def document(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "epochal.dev/v1alpha1",
        "kind": "Stream",
        "metadata": {"name": "flights"},
        "spec": {"time": {"shape": "int"}, "payload": {"encoding": "msgpack"}, **spec},
    }


def problems(document: object) -> dict[str, str]:
    with pytest.raises(ManifestError) as caught:
        StreamManifest.from_document(document)
    return {problem.path: f"{problem.reason}; {problem.hint}" for problem in caught.value.problems}


def test_defaults() -> None:
    manifest = StreamManifest.from_document(document())
    spec = manifest.spec
    assert manifest.qualified == "default/flights"
    assert (spec.segments, spec.relays, spec.publishers.segments_per_pod) == (1, 0, None)
    retention = spec.history.retention
    assert (retention.mode, retention.time_seconds, retention.bytes) == ("keep", 3600.0, 256 << 20)
    assert spec.history.durability == "auto"
    assert (spec.progress.min_writers, spec.progress.writer_timeout, spec.progress.when_lost) == (1, 30.0, "release")
    assert (spec.push.buffer_bytes, spec.push.heartbeat, spec.push.initial_filter) == (64 << 20, 1.0, "firehose")
    assert manifest.not_in_effect() == []


def test_every_field_is_accepted_and_survives() -> None:
    manifest = StreamManifest.from_document(FULL)
    assert manifest.to_document() == FULL
    assert StreamManifest.from_document(json.loads(json.dumps(manifest.to_document()))).to_document() == FULL


def test_the_normal_form_fills_in_defaults_but_not_what_is_planned() -> None:
    spec = StreamManifest.from_document(document()).to_document()["spec"]
    assert spec["history"] == {"retention": {"mode": "keep", "time": "1h", "bytes": "256Mi"}, "durability": "auto"}
    assert spec["progress"]["whenLost"] == "release"
    assert (spec["publishers"], spec["relays"]) == ({"dedicated": False}, 0)
    assert "watermark" not in spec


def test_how_many_segments_a_publisher_serves_is_kept_as_it_was_given_also_one() -> None:
    for asked in ({"segmentsPerPod": 1}, {"segmentsPerPod": 3}):
        manifest = StreamManifest.from_document(document(segments=3, publishers=asked))
        assert manifest.to_document()["spec"]["publishers"] == {**asked, "dedicated": False}
    for nothing in ({}, {"segmentsPerPod": None}):
        manifest = StreamManifest.from_document(document(segments=3, publishers=nothing))
        assert "segmentsPerPod" not in manifest.to_document()["spec"]["publishers"]
        assert manifest.spec.publishers.segments_per_pod is None
    with_more = StreamManifest.from_document(document(publishers={"topologySpread": False}))
    assert with_more.to_document()["spec"]["publishers"] == {"topologySpread": False, "dedicated": False}


@pytest.mark.parametrize("durability", ["batch", "interval"])
def test_a_durability_that_needs_a_disk_needs_storage(durability: str) -> None:
    with pytest.raises(ManifestError, match=rf"spec.history.durability: {durability} needs spec.history.storage"):
        StreamManifest.from_document(document(history={"durability": durability}))


@pytest.mark.parametrize(
    ("history", "policy"),
    [
        ({}, "memory"),
        ({"storage": {"size": "1Gi"}}, "batch"),
        ({"storage": {"size": "1Gi"}, "durability": "interval"}, "interval"),
        ({"storage": {"size": "1Gi"}, "durability": "memory"}, "memory"),
        ({"storage": {"size": "1Gi"}, "retention": {"mode": "none"}}, "memory"),
    ],
)
def test_the_durability_decides_the_policy(history: dict[str, Any], policy: str) -> None:
    assert StreamManifest.from_document(document(history=history)).spec.history.policy == policy


def test_planned_fields_are_reported_also_after_normalising() -> None:
    manifest = StreamManifest.from_document(FULL)
    told = {item.path for item in manifest.not_in_effect()}
    assert told == {
        "spec.history.storage.storageClassName",
        "spec.watermark",
        "spec.access",
        "spec.publishers.advertise",
        "spec.publishers.resources",
        "spec.publishers.nodeSelector",
        "spec.publishers.tolerations",
        "spec.publishers.topologySpread",
    }
    assert all(item.note.startswith("planned") or "cluster" in item.note for item in manifest.not_in_effect())
    again = StreamManifest.from_document(manifest.to_document())
    assert again.not_in_effect() == manifest.not_in_effect()


def test_on_a_cluster_pods_and_volumes_are_made_as_asked_for() -> None:
    metadata = {**FULL["metadata"], "annotations": {"epochal.dev/object-uid": "8f6c"}}
    manifest = StreamManifest.from_document({**FULL, "metadata": metadata})
    told = {item.path for item in manifest.not_in_effect()}
    assert told == {"spec.watermark", "spec.access"}


def test_values_that_ask_for_nothing_are_not_reported() -> None:
    given = document(
        relays=0, history={"durability": "memory"}, push={"initialFilter": "firehose"}, publishers={"advertise": ""}
    )
    assert StreamManifest.from_document(given).not_in_effect() == []


def test_a_namespace_from_outside_only_fills_a_gap() -> None:
    assert StreamManifest.from_document(document(), namespace="jobs").qualified == "jobs/flights"
    assert StreamManifest.from_document(FULL, namespace="jobs").qualified == "demo/flights"


def test_all_problems_are_reported_at_once() -> None:
    wrong = document(
        time={"shape": "(int, flt)"},
        segments="3",
        history={"retention": {"mode": "never", "time": 24, "bytes": "1Gb"}, "storage": {}},
        progress={"minWriters": 0, "writerTimeout": "1ms", "whenLost": "wait"},
        push={"bufferBytes": 3, "heartbeat": "90s"},
        access={"publish": [{"serviceAcount": "x"}], "subscribe": "x"},
        watermark={"noteTime": "frontier"},
        relay=1,
    )
    wrong["metadata"] = {"name": "Flights", "labels": {"a": 1}}
    found = problems(wrong)
    expected = {
        "metadata.name": "lower-case letters",
        "metadata.labels.a": "must be a text",
        "spec.time.shape": "is no time shape",
        "spec.segments": "must be a whole number, not the text '3'",
        "spec.history.retention.mode": "must be one of keep, none",
        "spec.history.retention.time": "must be a duration",
        "spec.history.retention.bytes": "is not a quantity",
        "spec.history.storage.size": "is required",
        "spec.progress.minWriters": "at least 1",
        "spec.progress.writerTimeout": "1ms is out of bounds; at least 100ms",
        "spec.progress.whenLost": "must be one of release, hold",
        "spec.push.bufferBytes": "at least 64Ki",
        "spec.push.heartbeat": "at most 1m",
        "spec.access.publish[0].serviceAccount": "is required",
        "spec.access.publish[0].serviceAcount": "did you mean 'serviceAccount'?",
        "spec.access.subscribe": "must be a list",
        "spec.relay": "did you mean 'relays'?",
        "spec.watermark.noteTime": "needs time.shape int",
    }
    assert found.keys() == expected.keys()
    for path, text in expected.items():
        assert text in found[path], path


@pytest.mark.parametrize("wrong", [None, [], "x", 3, True])
def test_what_is_no_mapping_is_refused(wrong: object) -> None:
    assert "mapping" in problems(wrong)["document"]


@pytest.mark.parametrize("field", ["apiVersion", "kind", "metadata", "spec"])
def test_missing_parts_are_reported_with_an_example(field: str) -> None:
    wrong = document()
    del wrong[field]
    assert "is required; e.g. " in problems(wrong)[field]


def test_other_kinds_and_versions_are_refused() -> None:
    found = problems({**document(), "kind": "stream", "apiVersion": "v1"})
    assert "did you mean 'Stream'?" in found["kind"]
    assert "must be epochal.dev/v1alpha1" in found["apiVersion"]


@pytest.mark.parametrize(
    ("spec", "path", "told"),
    [
        ({"segments": 2, "publishers": {"httpPort": 80, "segmentsPerPod": 1}}, "spec.publishers.httpPort", "several"),
        ({"relays": 2, "relayHttpPort": 80}, "spec.relayHttpPort", "not of 2; set relays: 1"),
        ({"relayHttpPort": 80}, "spec.relayHttpPort", "not of 0"),
        ({"relays": 1, "relayHttpPort": 80, "publishers": {"httpPort": 80}}, "spec.relayHttpPort", "httpPort too"),
    ],
)
def test_a_port_is_named_where_exactly_one_process_has_it(spec: dict[str, Any], path: str, told: str) -> None:
    found = problems(document(**spec))
    assert found.keys() == {path}
    assert told in found[path]


def test_ports_are_those_of_local_mode() -> None:
    spec: dict[str, Any] = {"segments": 2, "relays": 1, "relayHttpPort": 81}
    given = document(publishers={"httpPort": 80, "segmentsPerPod": 2}, **spec)
    here = StreamManifest.from_document(given)
    assert here.local_ports == {"spec.publishers.httpPort": 80, "spec.relayHttpPort": 81}
    assert here.not_in_effect() == []
    given["metadata"]["annotations"] = {OBJECT_UID: "u"}
    on_a_cluster = StreamManifest.from_document(given)
    assert on_a_cluster.local_ports == {}
    assert [item.path for item in on_a_cluster.not_in_effect()] == list(here.local_ports)
    plain = StreamManifest.from_document(document()).to_document()["spec"]
    assert "relayHttpPort" not in plain
    assert "httpPort" not in plain.get("publishers", {})


@pytest.mark.parametrize(("encoding", "ok"), [("msgpack", True), ("json", True), ("arrow", True), ("bytes", False)])
def test_bytes_have_no_schema(encoding: str, ok: bool) -> None:
    given = document(payload={"encoding": encoding, "schema": {"fields": [{"name": "a", "type": "bool"}]}})
    if ok:
        StreamManifest.from_document(given)
    else:
        assert "spec.payload.schema" in problems(given)


def test_a_schema_is_checked_field_by_field() -> None:
    wrong = {"fields": [{"name": "a", "type": "int33"}, {"name": "a", "type": "bool", "nullable": 1}], "x": 1}
    found = problems(document(payload={"encoding": "json", "schema": wrong}, segments=0))
    assert set(found) == {
        "spec.segments",
        "spec.payload.schema.x",
        "spec.payload.schema.fields[0].type",
        "spec.payload.schema.fields[1].nullable",
    }
    assert "did you mean 'int32'?" in found["spec.payload.schema.fields[0].type"]
    assert "must be a mapping" in problems(document(payload={"encoding": "json", "schema": []}))["spec.payload.schema"]


def test_a_schema_is_normalised_and_cannot_change() -> None:
    given = {"fields": [{"name": "at", "type": " timestamp[us,UTC]"}]}
    old = StreamManifest.from_document(document(payload={"encoding": "json", "schema": given}))
    normal = {"fields": [{"name": "at", "type": "timestamp[us, UTC]", "nullable": True}]}
    assert old.to_document()["spec"]["payload"]["schema"] == normal
    assert old.spec.payload.fields is not None
    same = StreamManifest.from_document(document(payload={"encoding": "json", "schema": normal}))
    assert immutable_changes(old, same) == []
    new = StreamManifest.from_document(document(payload={"encoding": "json"}))
    assert [problem.path for problem in immutable_changes(old, new)] == ["spec.payload.schema"]


@pytest.mark.parametrize("wrong", [True, 3.0, "3", None, [], 0, 1025, 10**400])
def test_segments_are_a_bounded_whole_number(wrong: object) -> None:
    assert "spec.segments" in problems(document(segments=wrong))


def test_what_is_not_plain_data_is_refused() -> None:
    assert "finite" in problems(document(relays=float("nan")))["spec.relays"]
    keyed: dict[Any, Any] = {**document(), 1: 2}
    assert "name is the number 1" in problems(keyed)["document"]
    assert "kind object" in problems(document(relays=object()))["spec.relays"]


def test_a_hostile_document_costs_little() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"x": deep}
    assert "levels deep" in next(iter(problems(deep).values()))
    wide: list[Any] = [0] * 10
    for _ in range(30):
        wide = [wide] * 10
    assert problems(wide)
    assert "more than 20000" in problems([[0]] * 30_000)["document"]
    cycle: list[Any] = []
    cycle.append(cycle)
    assert problems(cycle)


def test_immutable_fields() -> None:
    old = StreamManifest.from_document(document())
    new = StreamManifest.from_document(
        document(time={"shape": "(int, int)"}, payload={"encoding": "json"}, segments=2, push={"heartbeat": "2s"})
    )
    assert [problem.path for problem in immutable_changes(old, new)] == [
        "spec.time.shape",
        "spec.payload.encoding",
        "spec.segments",
    ]
    same = StreamManifest.from_document(document(time={"shape": " int "}, push={"heartbeat": "2s"}))
    assert immutable_changes(old, same) == []


def test_the_shape_is_read() -> None:
    manifest = StreamManifest.from_document(document(time={"shape": "(int,(int , int))"}))
    assert manifest.spec.time.shape.bottom == (0, (0, 0))
    assert manifest.to_document()["spec"]["time"] == {"shape": "(int, (int, int))"}


shapes = st.recursive(
    st.just("int"), lambda inner: st.lists(inner, min_size=2, max_size=3).map(lambda x: f"({', '.join(x)})")
)
specs = st.fixed_dictionaries(
    {
        "time": st.fixed_dictionaries({"shape": shapes.filter(lambda shape: shape.count("int") <= 32)}),
        "payload": st.fixed_dictionaries({"encoding": st.sampled_from(["bytes", "msgpack", "json", "arrow"])}),
    },
    optional={
        "segments": st.integers(1, 1024),
        "relays": st.integers(0, 1000),
        "progress": st.fixed_dictionaries(
            {},
            optional={
                "minWriters": st.integers(1, 100),
                "writerTimeout": st.integers(100, 10**7).map("{}ms".format),
                "whenLost": st.sampled_from(["release", "hold"]),
            },
        ),
        "history": st.fixed_dictionaries(
            {},
            optional={
                "retention": st.fixed_dictionaries(
                    {}, optional={"mode": st.sampled_from(["keep", "none"]), "bytes": st.integers(1 << 16, 1 << 50)}
                ),
                "durability": st.sampled_from(["auto", "memory"]),
            },
        )
        | st.fixed_dictionaries(
            {
                "durability": st.sampled_from(["auto", "batch", "interval", "memory"]),
                "storage": st.fixed_dictionaries({"size": st.integers(1 << 20, 1 << 60)}),
            }
        ),
        "watermark": st.fixed_dictionaries({}, optional={"noteTime": st.sampled_from(["manual", "wallclock"])}),
    },
)


@given(specs)
def test_normalising_is_idempotent_and_json_safe(spec: dict[str, Any]) -> None:
    once = StreamManifest.from_document(document(**spec))
    text = json.dumps(once.to_document())
    again = StreamManifest.from_document(json.loads(text))
    assert json.dumps(again.to_document()) == text
    assert again.spec == once.spec
    assert again.not_in_effect() == once.not_in_effect()
    assert immutable_changes(once, again) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["spec", "metadata", "time"]), inner),
    max_leaves=20,
)


@given(json_values, st.sampled_from([None, "metadata", "spec"]))
def test_any_document_is_accepted_or_refused_with_problems(value: Any, under: str | None) -> None:
    given = value if under is None else {**document(), under: value}
    with pytest.raises(ManifestError) as caught:
        StreamManifest.from_document(given)
    assert caught.value.problems
    assert all(problem.path and problem.reason for problem in caught.value.problems)
