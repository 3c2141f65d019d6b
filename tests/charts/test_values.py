"""Values: what is there is described, checked by the schema and used; what is not there is refused."""

import json
import re
from typing import Any

import jsonschema
import pytest
import yaml
from tests.charts.rendering import (
    CHART,
    EVERYTHING,
    HelmError,
    Object,
    containers,
    defaults,
    find,
    helm,
    leaves,
    nested,
    pods,
    render,
)

import chart_readme
from epochal.resources.documents import load_manifests
from set_version import version

SCHEMA: Object = json.loads((CHART / "values.schema.json").read_text())
WRONG: list[tuple[str, Any, str]] = [
    ("replicas", 2, "additional properties 'replicas' not allowed"),
    ("catalog.image.tags", "1", "at '/catalog/image': additional properties 'tags' not allowed"),
    ("operator.resync", "60s", "at '/operator/resync': got string, want integer"),
    ("image.pullPolicy", "Sometimes", "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'"),
    ("catalog.persistence.size", "1 GB", "at '/catalog/persistence/size': '1 GB' does not match pattern"),
    ("catalog.image.digest", "sha256:1", "at '/catalog/image/digest'"),
    ("watchNamespaces", "demo", "at '/watchNamespaces': got string, want array"),
    ("watchNamespaces", ["Demo"], "at '/watchNamespaces/0': 'Demo' does not match pattern"),
    ("networkPolicy.clients", [], "at '/networkPolicy/clients': minItems"),
    ("networkPolicy.clients", [{"namespaces": {}}], "additional properties 'namespaces' not allowed"),
    ("imagePullSecrets", ["pull"], "at '/imagePullSecrets/0': got string, want object"),
    ("catalog.extraEnv", [{"value": "1"}], "missing property 'name'"),
    ("tracing.endpoint", "collector:4318", "at '/tracing/endpoint': 'collector:4318' does not match pattern"),
    (
        "publishers.corsOrigins",
        ["page.example.org"],
        "at '/publishers/corsOrigins/0': 'page.example.org' does not match",
    ),
    ("publishers.webhookTargets", ["a,b"], "at '/publishers/webhookTargets/0': 'a,b' does not match"),
    ("tracing.env", [{"name": "OTEL_TRACES_SAMPLER"}], "at '/tracing/env': got array, want object"),
    ("tracing.env", {"OTEL_TRACES_SAMPLER_ARG": 0.1}, "at '/tracing/env/OTEL_TRACES_SAMPLER_ARG': got number, want"),
    ("tracing.env", {"PATH": "/bin"}, "at '/tracing/env': additional properties 'PATH' not allowed"),
    ("commonLabels", {"a": 1}, "at '/commonLabels/a': got number, want string"),
    ("fullnameOverride", "No_Name", "at '/fullnameOverride'"),
]


@pytest.mark.parametrize(("path", "value", "told"), WRONG, ids=[f"{path}={value}" for path, value, _ in WRONG])
def test_a_wrong_value_is_refused_with_its_place(path: str, value: Any, told: str):
    with pytest.raises(HelmError, match=re.escape(told)):
        render(nested(path, value))


def test_the_schema_is_one_and_takes_the_defaults():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(defaults(), SCHEMA)
    jsonschema.validate(EVERYTHING, SCHEMA)


def objects_of(schema: Object, path: str = "") -> dict[str, Object]:
    """Every object with named properties in a schema, by its path; what it refers to is followed."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    found = {path: schema} if "properties" in schema else {}
    for name, each in schema.get("properties", {}).items():
        found |= objects_of(each, f"{path}.{name}".lstrip("."))
    return found


def test_the_schema_is_closed_and_has_what_the_values_have():
    described = {path for path, _ in leaves(defaults())}
    allowed: set[str] = set()
    for path, schema in objects_of(SCHEMA).items():
        assert schema["additionalProperties"] is False, path
        allowed |= {f"{path}.{name}".lstrip(".") for name in schema["properties"]}
    assert described <= allowed
    extra = {path for path in allowed - described if not any(other.startswith(path + ".") for other in described)}
    parts_of_one_value = {path for path in extra if path.rpartition(".")[0].endswith(".resources")}
    assert extra - parts_of_one_value == {"global"}, "in the schema, but not in values.yaml"


def test_every_value_is_used_by_a_template():
    text = "".join(path.read_text() for path in (CHART / "templates").rglob("*.*"))
    for path, _ in leaves(defaults()):
        last = path.rpartition(".")[2]
        assert re.search(rf"\.{last}\b", text), path


def test_the_readme_has_the_values_as_they_are():
    readme = (CHART / "README.md").read_text()
    made = chart_readme.table((CHART / "values.yaml").read_text())
    assert readme == chart_readme.fill(readme, made), "run `make chart`"


def test_a_value_without_description_is_found():
    text = (CHART / "values.yaml").read_text()
    with pytest.raises(ValueError, match=r"without a line `## @param`: catalog\.new$"):
        chart_readme.table(text.replace("\ncatalog:\n", "\ncatalog:\n  new: 1\n"))


def test_a_description_without_value_is_found():
    with pytest.raises(ValueError, match=r"`## @param a\.b` describes no value"):
        chart_readme.table("## @param a.b What\na: {c: 1}\n")


# --- what values do --------------------------------------------------------------------------------------------------


def container(objects: list[Object], part: str) -> Object:
    (found,) = find(objects, "Deployment", f"-{part}")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def environment(objects: list[Object], part: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(objects, part)["env"] if "value" in each}


def test_an_image_is_named_by_digest_before_its_tag_before_the_common_one_before_the_version():
    assert container(render(), "catalog")["image"] == f"epochal-catalog:{version()}"
    values: Object = {"image": {"registry": "r.example.org/e", "tag": "1"}}
    assert container(render(values), "catalog")["image"] == "r.example.org/e/epochal-catalog:1"
    values["catalog"] = {"image": {"tag": "2"}}
    assert container(render(values), "catalog")["image"] == "r.example.org/e/epochal-catalog:2"
    values["catalog"]["image"]["digest"] = digest = "sha256:" + "a" * 64
    assert container(render(values), "catalog")["image"] == f"r.example.org/e/epochal-catalog@{digest}"


def test_the_chart_lists_the_images_that_it_runs():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    listed = {each["image"] for each in yaml.safe_load(chart["annotations"]["artifacthub.io/images"])}
    ran = {each["image"] for _, pod in pods(render({"toolbox": {"enabled": True}})) for each in containers(pod)}
    assert listed == ran | {environment(render(), "operator")["EPOCHAL_OPERATOR_IMAGE"]}


def test_the_examples_that_the_chart_shows_are_a_stream_and_its_relays():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    examples = yaml.safe_load(chart["annotations"]["artifacthub.io/crdsExamples"])
    found = load_manifests(yaml.safe_dump_all(examples))
    assert [(manifest.kind, manifest.name) for manifest in found] == [("Stream", "flights"), ("Relay", "flights-near")]


def test_the_operator_gets_what_publishers_are_made_of():
    told = environment(render(EVERYTHING), "operator")
    assert told["EPOCHAL_OPERATOR_IMAGE"] == "registry.example.org/epochal/epochal-publisher:1.2.3"
    assert told["EPOCHAL_OPERATOR_PULL_POLICY"] == "Always"
    assert told["EPOCHAL_OPERATOR_PULL_SECRETS"] == "pull"
    assert told["EPOCHAL_OPERATOR_NAMESPACES"] == "epochal,demo"
    assert told["EPOCHAL_OPERATOR_CATALOG"] == "http://epochal-catalog.epochal.svc:8700"


def test_all_that_send_traces_get_the_address_of_the_collector():
    tracing = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_TRACES_SAMPLER_ARG": "0.1"}
    values: Object = {
        "tracing": {"endpoint": "http://collector:4318", "env": {"OTEL_TRACES_SAMPLER_ARG": "0.1"}},
        "sidecar": {"inject": True},
    }
    objects = render(values)
    for part in ("catalog", "operator"):
        assert tracing.items() <= environment(objects, part).items()
    assert json.loads(environment(objects, "operator")["EPOCHAL_OPERATOR_PUBLISHER_ENV"]) == tracing
    policy = json.dumps(find(objects, "MutatingAdmissionPolicy", "-sidecar"))
    assert policy.count("OTEL_EXPORTER_OTLP_ENDPOINT") == 1, "the sidecar's, and no other container's"
    assert json.loads(environment(render(), "operator")["EPOCHAL_OPERATOR_PUBLISHER_ENV"]) == {}
    assert "OTEL_" not in json.dumps(render({"sidecar": {"inject": True}}))


def test_publishers_get_where_web_hooks_go_and_which_pages_read():
    publishers = {"webhookTargets": ["*.hooks.svc", "10.0.0.0/8"], "corsOrigins": ["https://a.example.org", "*"]}
    told = json.loads(environment(render({"publishers": publishers}), "operator")["EPOCHAL_OPERATOR_PUBLISHER_ENV"])
    assert told == {
        "EPOCHAL_PUBLISHER_WEBHOOK_TARGETS": "*.hooks.svc,10.0.0.0/8",
        "EPOCHAL_PUBLISHER_CORS_ORIGINS": "https://a.example.org,*",
    }


def test_what_a_part_says_itself_wins_over_tracing():
    said = [{"name": "OTEL_TRACES_SAMPLER", "value": "always_off"}]
    values: Object = {"tracing": {"env": {"OTEL_TRACES_SAMPLER": "always_on"}}, "catalog": {"extraEnv": said}}
    objects = render(values)
    assert [each for each in container(objects, "catalog")["env"] if "OTEL" in each["name"]] == said
    assert environment(objects, "operator")["OTEL_TRACES_SAMPLER"] == "always_on"


def test_no_policy_of_the_chart_keeps_traces_from_their_collector():
    for each in render(EVERYTHING):
        if each["kind"] == "NetworkPolicy":
            assert each["spec"]["policyTypes"] == ["Ingress"]


def test_the_catalog_is_where_clients_in_a_cluster_look_by_default():
    service = find(render(), "Service", "-catalog")
    assert (service["metadata"]["name"], service["metadata"]["namespace"]) == ("epochal-catalog", "epochal")
    assert service["spec"]["ports"][0]["port"] == 8700


def test_the_user_of_all_pods_can_be_left_to_the_platform():
    named = {"runAsUser", "runAsGroup", "fsGroup"}
    for fixed in (True, False):
        objects = render({"fixedUser": fixed, "toolbox": {"enabled": True}})
        for _, pod in pods(objects):
            assert pod["spec"]["securityContext"].keys() & named == (named if fixed else set())
            assert pod["spec"]["securityContext"]["runAsNonRoot"]
        (operator,) = find(objects, "Deployment", "-operator")["spec"]["template"]["spec"]["containers"]
        assert {"name": "EPOCHAL_OPERATOR_FIXED_USER", "value": str(fixed).lower()} in operator["env"]


def test_all_listen_on_the_same_address():
    told: Object = {}
    for _, pod in pods(render({"listen": "::"})):
        for container in containers(pod):
            told |= {each["name"]: each.get("value") for each in container.get("env", []) if "HOST" in each["name"]}
    assert told == dict.fromkeys(
        ("EPOCHAL_CATALOG_HOST", "EPOCHAL_OPERATOR_HOST", "EPOCHAL_OPERATOR_PUBLISHER_HOST"), "::"
    )


def test_the_definitions_are_kept_by_default():
    kept, given_up = (
        {each["metadata"]["name"]: each["metadata"].get("annotations", {}) for each in objects}
        for objects in map(definitions, ({}, {"crds": {"keep": False}}))
    )
    assert set(kept) == set(given_up) == {"streams.epochal.dev", "relays.epochal.dev"}
    assert all(annotations["helm.sh/resource-policy"] == "keep" for annotations in kept.values())
    assert not any("helm.sh/resource-policy" in annotations for annotations in given_up.values())
    kinds = {each["kind"] for each in render({"crds": {"enabled": False}})}
    assert "CustomResourceDefinition" not in kinds


def definitions(values: Object) -> list[Object]:
    return [each for each in render(values) if each["kind"] == "CustomResourceDefinition"]


def test_the_claim_is_kept_only_when_asked():
    claim = find(render(), "PersistentVolumeClaim", "-catalog")
    assert "annotations" not in claim["metadata"]
    claim = find(render(nested("catalog.persistence.keep", True)), "PersistentVolumeClaim", "-catalog")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not [each for each in render(nested("catalog.persistence.enabled", False)) if "Claim" in each["kind"]]


def test_objects_of_the_user_are_templates():
    names = {each["metadata"]["name"] for each in render(EVERYTHING, release="x")}
    assert {"x-extra", "x-text"} <= names


@pytest.mark.parametrize(
    ("crds", "told"),
    [
        ({}, "leaves the definitions and all Streams"),
        ({"enabled": False}, "leaves the definitions and all Streams"),
        ({"keep": False}, "leaves no Stream"),
    ],
)
def test_what_an_uninstall_leaves_is_named_at_the_install(crds: Object, told: str) -> None:
    given = f"--set-json=crds={json.dumps(crds)}"
    notes = helm("install", "x", str(CHART), "--dry-run=client", given).partition("NOTES:")[2]
    assert told in notes
    assert ("without --wait" in notes) == (crds.get("keep") is False), "Helm would wait for what it does only later"


@pytest.mark.parametrize("part", ["operator", "catalog", "toolbox"])
def test_every_component_takes_what_the_user_adds_to_its_pod(part: str) -> None:
    values = EVERYTHING[part]
    pod = find(render(EVERYTHING), "Deployment", f"-{part}")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["priorityClassName"] == values["priorityClassName"]
    assert values["extraEnv"][0] in container["env"]
    assert values["extraVolumes"][0] in pod["volumes"]
    assert values["extraVolumeMounts"][0] in container["volumeMounts"]
