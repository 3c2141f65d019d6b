"""Examples of what takes traces in a cluster: Kubernetes takes them, and the chart's values in them lead there."""

import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from tests.charts.rendering import Object, containers, nested, pods, render, selects
from tests.tracing.tools import CONFIG

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples" / "tracing").glob("*.yaml"))
OURS = ("epochal-collector", "epochal-zipkin")


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def example(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def objects_of(path: Path) -> list[Object]:
    return [dict(each) for each in yaml.safe_load_all(path.read_text())]


def test_there_is_one_for_each_that_the_documentation_names():
    text = (ROOT / "docs" / "sidecar-in-pods.md").read_text()
    assert {path.name for path in FILES} == set(re.findall(r"`examples/tracing/([a-z]+\.yaml)`", text))


def test_kubernetes_takes_it_under_the_restricted_standard(example: Path):
    for each in objects_of(example):
        kubernetes_validate.validate(each, "1.37", strict=True)
    for _, pod in pods(objects_of(example)):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        for container in containers(pod):
            security = container["securityContext"]
            assert (security["allowPrivilegeEscalation"], security["capabilities"]) == (False, {"drop": ["ALL"]})
            assert security["readOnlyRootFilesystem"] is True
            assert re.search(r":[0-9a-z.]+$", container["image"]), "of a version"


def test_each_service_leads_to_a_pod_and_the_ports_that_it_has(example: Path):
    objects = objects_of(example)
    services = [each for each in objects if each["kind"] == "Service"]
    assert services
    for service in services:
        (pod,) = (
            pod
            for _, pod in pods(objects)
            if selects({"matchLabels": service["spec"]["selector"]}, pod["metadata"]["labels"])
        )
        ports = {port["name"]: port["containerPort"] for each in containers(pod) for port in each["ports"]}
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]


def test_its_chart_values_are_taken_and_lead_to_its_service(example: Path):
    comment = "\n".join(line for line in example.read_text().splitlines() if line.startswith("#"))
    given = dict(re.findall(r"--set (\S+)=(\S+)", comment))
    found = re.fullmatch(
        r"http://(?P<name>[a-z]+)\.(?P<namespace>[a-z]+)\.svc:(?P<port>\d+)", given["tracing.endpoint"]
    )
    assert found is not None
    assert f"kubectl create namespace {found['namespace']}" in comment
    assert f"kubectl apply -n {found['namespace']} -f {example.relative_to(ROOT)}" in comment
    (service,) = (
        each for each in objects_of(example) if each["kind"] == "Service" and each["metadata"]["name"] == found["name"]
    )
    assert int(found["port"]) in {port["port"] for port in service["spec"]["ports"]}
    for value in given.items():
        render(nested(*value))


def test_images_of_ours_are_those_that_tools_images_makes():
    made = re.search(r"^tracing=\(([^)]*)\)", (ROOT / "tools" / "images").read_text(), re.MULTILINE)
    assert made is not None
    images = {container["image"] for _, pod in pods(objects_of(FILES[-1])) for container in containers(pod)}
    assert images == {f"localhost/{name}:dev" for name in OURS}
    assert {name.removeprefix("epochal-") for name in OURS} == set(made[1].split())


def test_the_collector_of_the_example_has_the_parts_of_ours():
    """The module has no exporter of OTLP; but receivers, processors and pipelines are written alike."""
    (config,) = (
        each for each in objects_of(ROOT / "examples" / "tracing" / "otlp.yaml") if each["kind"] == "ConfigMap"
    )
    theirs, ours = yaml.safe_load(config["data"]["config.yaml"]), yaml.safe_load(CONFIG.read_text())
    assert theirs["receivers"].keys() == ours["receivers"].keys()
    assert theirs["processors"].keys() == ours["processors"].keys()
    for pipeline in theirs["service"]["pipelines"].values():
        for part in ("receivers", "processors", "exporters"):
            assert set(pipeline[part]) <= theirs[part].keys()
