"""A Relay: that its definition and its model agree, and what both refuse."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.resources.admission import RELAY_SCHEMA, admitted
from tests.resources.test_crd import amounts, labels, nodes, section, sizes, tolerations

from epochal.errors import ConfigError, ManifestError
from epochal.resources.definitions import crd_text
from epochal.resources.feasible import check_feasible
from epochal.resources.relay import RelayManifest
from epochal.resources.relay_crd import relay_crd
from epochal_publisher.relay.settings import RelaySettings

ROOT = Path(__file__).parents[2]


def document(name: str = "near", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "demo"}
    return {"apiVersion": "epochal.dev/v1alpha1", "kind": "Relay", "metadata": metadata} | {
        "spec": {"stream": "flights", **spec}
    }


def problems(found: dict[str, Any]) -> list[str]:
    try:
        check_feasible(RelayManifest.from_document(found))
    except ManifestError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_kubernetes_takes_the_definition() -> None:
    for version in ("1.29", "1.34", "1.37"):
        kubernetes_validate.validate(relay_crd(), version, strict=True)


def test_the_chart_has_the_definition_as_it_is_made() -> None:
    text = (ROOT / "charts/epochal/files/relays.epochal.dev.yaml").read_text()
    assert text == crd_text("relays"), "make crd"
    assert yaml.safe_load(text) == relay_crd()


@pytest.mark.parametrize(("path", "schema"), [pytest.param(*node, id=node[0]) for node in nodes(RELAY_SCHEMA)])
def test_every_field_is_described_and_bounded(path: str, schema: dict[str, Any]) -> None:
    if path != ".metadata":
        assert schema.get("description") or path.endswith("corsOrigins[]")
    bound = {"string": ("maxLength", "enum"), "integer": ("maximum",), "array": ("maxItems",)}
    wanted = bound.get(schema.get("type", ""), ())
    assert not wanted or not path.startswith(".spec") or any(key in schema for key in wanted)


def test_status_and_scale_and_what_kubectl_prints() -> None:
    [version] = relay_crd()["spec"]["versions"]
    assert version["subresources"]["status"] == {}
    scale = version["subresources"]["scale"]
    assert (scale["specReplicasPath"], scale["statusReplicasPath"]) == (".spec.replicas", ".status.replicas")
    for path in scale.values():
        part, field = path.removeprefix(".").split(".")
        assert field in RELAY_SCHEMA["properties"][part]["properties"]
    shown = [column["name"] for column in version["additionalPrinterColumns"] if not column["priority"]]
    assert shown == ["Stream", "Replicas", "Ready", "Degraded", "Subscribers", "Age"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "replicas and autoscaling": ({"replicas": 2, "autoscaling": {"max": 3}}, "replicas"),
    "a least above the most": ({"autoscaling": {"min": 4, "max": 3}}, "less than min"),
    "more subscribers than a relay takes": (
        {"autoscaling": {"max": 3, "subscribersPerReplica": 101}, "capacity": 100},
        "more than capacity",
    ),
    "more subscribers by default than a relay takes": ({"autoscaling": {"max": 3}, "capacity": 499}, "capacity"),
    "itself upstream": ({"upstream": "near"}, "itself"),
    "one address for several": ({"replicas": 2, "advertise": "r.example.org"}, "put {pod} in it"),
    "one address for any number": ({"autoscaling": {"max": 3}, "advertise": "r.example.org"}, "put {pod} in it"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_goes_wrong_together_is_refused_by_both_in_words(what: str) -> None:
    spec, word = REFUSED[what]
    [told] = admitted(document(**spec))
    assert word in told
    [problem] = problems(document(**spec))
    assert word in problem


def test_a_relay_cannot_be_called_as_what_it_follows() -> None:
    [told] = admitted(document("direct"))
    assert "publishers" in told
    assert "publishers" in problems(document("direct"))[0]


@pytest.mark.parametrize(
    ("origin", "word"),
    [
        ("dashboard.example.org", "is no origin"),
        ("https://dashboard.example.org/", "is no origin"),
        ("https://a.example,b.example", "is no origin"),
        ("", "is no origin"),
        ("https://a.example:443", "write 'https://a.example'"),
        ("http://a.example:80", "write 'http://a.example'"),
    ],
)
def test_an_origin_that_the_process_refuses_is_refused_where_it_is_declared(origin: str, word: str) -> None:
    declared = document(http={"corsOrigins": ["https://a.example", origin]})
    [problem] = problems(declared)
    assert "spec.http.corsOrigins[1]" in problem
    assert word in problem
    assert admitted(declared)
    with pytest.raises(ConfigError):
        RelaySettings.read(catalog="http://c:1", stream="demo/flights", cors_origins=f"{origin},*,x")


@pytest.mark.parametrize("origin", ["*", "https://a.example.org", "http://a.example.org:443", "http://[::1]:8080"])
def test_what_browsers_call_an_origin_is_taken_by_all(origin: str) -> None:
    declared = document(http={"corsOrigins": [origin]})
    assert admitted(declared) == problems(declared) == []
    RelaySettings.read(catalog="http://c:1", stream="demo/flights", cors_origins=origin)


def test_its_stream_cannot_change() -> None:
    [told] = admitted(document(stream="other"), document())
    assert "cannot change" in told
    assert admitted(document(replicas=7), document(replicas=1)) == []


def test_the_least_is_taken_and_means_one_relay_of_the_publishers() -> None:
    assert admitted(document()) == []
    spec = RelayManifest.from_document(document()).spec
    assert (spec.bounds, spec.upstream, spec.capacity) == ((1, 1), "direct", 1000)
    assert RelayManifest.from_document(document(autoscaling={"min": 2, "max": 9})).spec.bounds == (2, 9)


numbers = st.integers(-1, 1001)
specs = st.fixed_dictionaries(
    {"stream": st.sampled_from(["flights", "Flights", "", "a" * 53])},
    optional={
        "replicas": numbers,
        "autoscaling": section(min=numbers, max=numbers, subscribersPerReplica=st.sampled_from([0, 1, 600, 10**7])),
        "upstream": st.sampled_from(["direct", "far", "near", "Far"]),
        "capacity": st.sampled_from([0, 1, 400, 1000]),
        "bufferBytes": sizes,
        "http": section(
            corsOrigins=st.lists(st.sampled_from(["*", "https://a.example"]), max_size=40)
            | st.lists(st.sampled_from(["*", "https://a.example", "http://a:80", "http://a:443", "a", ""]), max_size=3)
        ),
        "advertise": st.sampled_from(["", "{pod}.example", "x.example", "{node}", "a b"]),
        "resources": section(limits=st.dictionaries(st.sampled_from(["cpu", "memory"]), amounts)),
        "nodeSelector": labels,
        "tolerations": tolerations,
        "topologySpread": st.booleans() | st.just("yes"),
        "unknown": st.just(1),
    },
)


@settings(max_examples=300)
@given(specs)
def test_the_definition_and_the_model_agree(spec: dict[str, Any]) -> None:
    assert bool(admitted(document(**spec))) == bool(problems(document(**spec)))
