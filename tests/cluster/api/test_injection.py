"""Injection of sidecars by the chart's policies, as a real API server and a real helm have it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.rendering import CHART, Object
from tests.cluster.harness import apiserver
from tests.cluster.harness.apiserver import ApiServer
from tests.cluster.harness.kubernetes import KubectlError, eventually

from set_version import version

TEMPLATES = Path(__file__).parents[3] / "spark" / "kubernetes"
SIDECAR = "epochal-sidecar"
HOME = "epochal"
COLLECTOR = "http://collector:4318"
INJECT = {"epochal.dev/inject": "true"}
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
RESTRICTED_CONTAINER: Object = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def notes() -> dict[str, str]:
    """What helm printed at the install."""
    return {}


@pytest.fixture(scope="module")
def server(notes: dict[str, str]) -> Iterator[ApiServer]:
    """An API server with the chart installed, injection on, and the policies in effect."""
    with apiserver.api_server() as server:
        given: tuple[str, ...] = ("--set", "sidecar.inject=true", "--set-json", 'imagePullSecrets=[{"name": "pull"}]')
        given += ("--set", f"tracing.endpoint={COLLECTOR}")
        notes["install"] = server.helm("install", "epochal", CHART, "-n", HOME, "--create-namespace", *given)
        server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "jobs", "labels": RESTRICTED}})
        wrong = pod("probe", annotations={"epochal.dev/sidecar-cpu": "?"})

        def in_effect() -> bool:
            try:
                server.kubectl("create", "-n", HOME, "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(wrong))
            except KubectlError:
                made = dry_run(server, HOME, pod("probe"))
                return SIDECAR in [each["name"] for each in made["spec"].get("initContainers", ())]
            return False

        eventually(in_effect)
        yield server


def pod(
    name: str, *, annotations: dict[str, str] | None = None, labels: dict[str, str] = INJECT, **spec: Any
) -> Object:
    """A pod that *restricted* lets in; `spec` is added to it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "annotations": annotations or {}},
        "spec": {"containers": [container("main")], **spec},
    }


def container(name: str, **more: Any) -> Object:
    return {"name": name, "image": "none", "securityContext": RESTRICTED_CONTAINER, **more}


def dry_run(server: ApiServer, namespace: str, manifest: Object) -> Any:
    said = server.kubectl(
        *("create", "-n", namespace, "--dry-run=server", "-o", "yaml", "-f", "-"), stdin=yaml.safe_dump(manifest)
    )
    return yaml.safe_load(said)


def made(server: ApiServer, manifest: Object) -> Any:
    """The pod as it is after it was created in a namespace that enforces *restricted*."""
    server.apply(manifest, namespace="jobs")
    return server.get("pod", manifest["metadata"]["name"], namespace="jobs")


def environment(container: Object) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container.get("env", ())}


def own(spec: Object) -> Object:
    """A container or pod spec without what the API server fills in."""
    filled = {"terminationMessagePath", "terminationMessagePolicy", "imagePullPolicy", "timeoutSeconds"}
    return {name: value for name, value in spec.items() if name not in filled}


def test_a_labelled_pod_gets_what_the_templates_have(server: ApiServer):
    spec = made(server, pod("plain"))["spec"]
    sidecar, *others = spec["initContainers"]
    assert others == []
    template = yaml.safe_load((TEMPLATES / "driver-sidecar.yaml").read_text())["spec"]["initContainers"][0]
    assert sidecar["image"] == f"epochal-publisher:{version()}"
    environment_there = environment(sidecar)
    assert environment_there.pop("EPOCHAL_SIDECAR_LOG_LEVEL") == "info"
    assert environment_there.pop("OTEL_EXPORTER_OTLP_ENDPOINT") == COLLECTOR
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in environment(spec["containers"][0]), "the program's is its own affair"
    uid = environment_there.pop("EPOCHAL_POD_UID")
    assert uid["fieldRef"]["fieldPath"] == "metadata.uid"
    expected = environment(template)
    expected.pop("EPOCHAL_POD_UID")
    assert environment_there == expected
    for field in ("args", "restartPolicy", "resources", "securityContext", "volumeMounts"):
        assert sidecar[field] == template[field], field
    for probe in ("startupProbe", "livenessProbe"):
        assert template[probe].items() <= {**sidecar[probe], "httpGet": template[probe]["httpGet"]}.items()
        assert template[probe]["httpGet"].items() <= sidecar[probe]["httpGet"].items()
    assert [(port["name"], port["containerPort"]) for port in sidecar["ports"]] == [(SIDECAR, 8705)]


def test_every_container_gets_socket_and_environment_and_keeps_its_own(server: ApiServer):
    own_variables = [{"name": "EPOCHAL_CATALOG", "value": "http://elsewhere:8700"}, {"name": "OTHER", "value": "1"}]
    first = container("first", volumeMounts=[{"name": "data", "mountPath": "/data"}])
    second = container("second", env=own_variables)
    before = container("before", command=["true"])
    given = pod(
        "several",
        containers=[first, second],
        initContainers=[before],
        volumes=[{"name": "data", "emptyDir": {}}],
        securityContext={"fsGroup": 185, "runAsUser": 185},
        imagePullSecrets=[{"name": "mine"}],
    )
    there = made(server, given)
    spec = there["spec"]
    assert [each["name"] for each in spec["initContainers"]] == [SIDECAR, "before"]
    for each in (*spec["containers"], spec["initContainers"][1]):
        assert {"name": SIDECAR, "mountPath": "/run/epochal"} in each["volumeMounts"]
        told = environment(each)
        assert told["EPOCHAL_SIDECAR"] == "ipc:///run/epochal/ingest.sock"
        assert told["EPOCHAL_SIDECAR_REQUIRED"] == "true"
        assert told["EPOCHAL_POD_UID"]["fieldRef"]["fieldPath"] == "metadata.uid"
    catalogs = [environment(each)["EPOCHAL_CATALOG"] for each in spec["containers"]]
    assert catalogs == ["http://epochal-catalog.epochal.svc:8700", "http://elsewhere:8700"]
    assert spec["containers"][1]["env"][:2] == own_variables
    assert {"name": "data", "mountPath": "/data"} in spec["containers"][0]["volumeMounts"]
    assert {each["name"] for each in spec["volumes"]} >= {"data", SIDECAR}
    assert spec["securityContext"] == {"fsGroup": 185, "runAsUser": 185}, "a group of the user's stays"
    assert spec["imagePullSecrets"] == [{"name": "mine"}, {"name": "pull"}]
    assert there["metadata"]["labels"]["epochal.dev/sidecar"] == "true", "by which Prometheus finds it"


def test_a_pod_without_a_group_gets_the_sidecars(server: ApiServer):
    assert made(server, pod("groupless"))["spec"]["securityContext"] == {"fsGroup": 10001}


@pytest.mark.parametrize("labels", [{}, {"epochal.dev/inject": "false"}], ids=["no label", "false"])
def test_other_pods_are_left_alone(server: ApiServer, labels: dict[str, str]):
    there = dry_run(server, "jobs", pod("other", labels=labels))
    assert "initContainers" not in there["spec"]
    assert "env" not in there["spec"]["containers"][0]


def test_injecting_twice_changes_nothing(server: ApiServer):
    once = made(server, pod("once"))
    again = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "twice", "labels": once["metadata"]["labels"]}}
    again["spec"] = {name: value for name, value in once["spec"].items() if name != "nodeName"}
    assert made(server, again)["spec"] == once["spec"]


@pytest.mark.parametrize("name", ["driver", "executor"])
def test_a_pod_of_the_templates_is_left_as_it_is(server: ApiServer, name: str):
    template = yaml.safe_load((TEMPLATES / f"{name}-sidecar.yaml").read_text())
    template["metadata"]["name"] = name
    template["spec"]["containers"][0]["image"] = "none"
    alone = dry_run(server, "jobs", template)
    template["metadata"]["labels"] |= INJECT
    assert dry_run(server, "jobs", template)["spec"] == alone["spec"]


def test_annotations_set_resources_and_log_level(server: ApiServer):
    annotations = {
        "epochal.dev/sidecar-cpu": "200m",
        "epochal.dev/sidecar-memory": "1Gi",
        "epochal.dev/sidecar-log-level": "debug",
    }
    sidecar = made(server, pod("annotated", annotations=annotations))["spec"]["initContainers"][0]
    assert sidecar["resources"] == {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    assert environment(sidecar)["EPOCHAL_SIDECAR_LOG_LEVEL"] == "debug"


WRONG = {
    "epochal.dev/sidecar-cpu": ("much", "a quantity above 0, such as 100m"),
    "epochal.dev/sidecar-memory": ("-1Gi", "a quantity above 0, such as 256Mi"),
    "epochal.dev/sidecar-log-level": ("loud", "debug, info, warning or error"),
    "epochal.dev/sidecar-ram": ("1Gi", "not known; there are epochal.dev/sidecar-cpu, -memory and -log-level"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_annotation_is_refused_by_name_with_the_right_form(server: ApiServer, name: str):
    value, right = WRONG[name]
    with pytest.raises(KubectlError) as refused:
        made(server, pod("wrong", annotations={name: value}))
    assert f"annotation {name}" in str(refused.value)
    assert right in str(refused.value)


def test_all_that_is_wrong_is_said_at_once(server: ApiServer):
    annotations = {name: value for name, (value, _) in WRONG.items()}
    with pytest.raises(KubectlError) as refused:
        made(server, pod("wrong", annotations=annotations))
    assert [name for name in WRONG if name not in str(refused.value)] == []
    assert str(refused.value).count("denied") == 1


def test_a_label_that_is_neither_true_nor_false_is_refused(server: ApiServer):
    with pytest.raises(KubectlError, match=r'label epochal\.dev/inject="yes": "true" or "false"'):
        made(server, pod("wrong", labels={"epochal.dev/inject": "yes"}))


def test_helm_says_who_gets_a_sidecar(server: ApiServer, notes: dict[str, str]):
    assert "New pods labelled epochal.dev/inject=true in any namespace get a sidecar." in notes["install"]
