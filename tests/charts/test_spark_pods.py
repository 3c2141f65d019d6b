"""The pods of Spark's drivers and executors: their templates, with and without a sidecar, and a driver's rights."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from tests.charts.rendering import Object

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "spark" / "kubernetes"


def template(name: str) -> Object:
    return dict(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))


@pytest.fixture(params=["driver", "executor", "driver-sidecar", "executor-sidecar"])
def pod(request: pytest.FixtureRequest) -> Object:
    return template(request.param)


def test_kubernetes_takes_the_templates_with_what_spark_adds(pod: Object):
    pod["metadata"]["name"] = "flights"
    pod["spec"]["containers"][0]["image"] = "epochal-spark:dev"
    kubernetes_validate.validate(pod, "1.37", strict=True)


def test_spark_runs_restricted(pod: Object):
    spec = pod["spec"]
    (container,) = spec["containers"]
    assert container["name"] == "spark", "what podTemplateContainerName names"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_only_the_driver_has_a_token(pod: Object):
    component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
    assert pod["spec"]["automountServiceAccountToken"] is (component == "spark-driver")


def test_spark_can_write_where_the_image_says_it_works(pod: Object):
    mounted = {mount["mountPath"]: mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    volumes = {volume["name"] for volume in pod["spec"]["volumes"] if "emptyDir" in volume}
    assert set(mounted.values()) == volumes
    image = (ROOT / "Dockerfile").read_text().partition(" AS spark\n")[2]
    (work,) = [line.split()[1] for line in image.splitlines() if line.startswith("WORKDIR")]
    assert set(mounted) - {"/run/epochal"} == {"/tmp", work}


def test_a_driver_may_manage_its_executors_and_read_no_secret():
    account, role, binding = yaml.safe_load_all((FOLDER / "rights.yaml").read_text())
    for each in (account, role, binding):
        kubernetes_validate.validate(each, "1.37", strict=True)
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]
    resources = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert resources == {"pods", "services", "configmaps", "persistentvolumeclaims", "networkpolicies"}


def test_a_driver_has_a_token_and_its_executors_have_none():
    account, role, _ = yaml.safe_load_all((FOLDER / "rights.yaml").read_text())
    tokens = {
        name: yaml.safe_load((FOLDER / f"{name}.yaml").read_text())["spec"]["automountServiceAccountToken"]
        for name in ("driver", "executor")
    }
    assert account["automountServiceAccountToken"] is False, "no other pod of the account gets one"
    assert tokens == {"driver": True, "executor": False}
    for rule in role["rules"]:
        assert {"create", "patch", "delete", "deletecollection"} <= set(rule["verbs"]), "Spark applies, and removes all"


# --- with a sidecar ---------------------------------------------------------------------------------------------------

SIDECAR = "epochal-sidecar"


def sidecar_of(spec: Object) -> Object:
    """The sidecar of a pod, which must be its first container of all."""
    first = spec["initContainers"][0]
    assert first["name"] == SIDECAR
    return dict(first)


def without_sidecar(pod: Object) -> Object:
    """A template as it is without what the sidecar and its clients need."""
    spec = {name: value for name, value in pod["spec"].items() if name != "initContainers"}
    spec["volumes"] = [each for each in spec["volumes"] if each["name"] != SIDECAR]
    (container,) = spec["containers"]
    mounts = [each for each in container["volumeMounts"] if each["name"] != SIDECAR]
    left = {name: value for name, value in container.items() if name != "env"}
    labels = {name: value for name, value in pod["metadata"]["labels"].items() if name != "epochal.dev/sidecar"}
    return pod | {"metadata": {"labels": labels}, "spec": spec | {"containers": [left | {"volumeMounts": mounts}]}}


@pytest.mark.parametrize("name", ["driver", "executor"])
def test_the_templates_with_a_sidecar_are_the_others_and_a_sidecar(name: str):
    assert without_sidecar(template(f"{name}-sidecar")) == template(name)


@pytest.mark.parametrize("name", ["driver-sidecar", "executor-sidecar"])
def test_the_sidecar_is_a_native_one_that_spark_waits_for(name: str):
    sidecar = sidecar_of(template(name)["spec"])
    assert sidecar["restartPolicy"] == "Always", "or a driver's pod would never complete"
    assert sidecar["startupProbe"]["httpGet"] == {"path": "/readyz", "port": SIDECAR}
    assert sidecar["ports"] == [{"name": SIDECAR, "containerPort": 8705}]


@pytest.mark.parametrize("name", ["driver-sidecar", "executor-sidecar"])
def test_the_sidecar_is_restricted_and_shares_its_socket_by_the_pods_group(name: str):
    spec = template(name)["spec"]
    security = sidecar_of(spec)["securityContext"]
    assert (security["runAsNonRoot"], security["readOnlyRootFilesystem"]) == (True, True)
    assert (security["allowPrivilegeEscalation"], security["capabilities"]) == (False, {"drop": ["ALL"]})
    assert spec["securityContext"]["fsGroup"] == 10001


@pytest.mark.parametrize("name", ["driver-sidecar", "executor-sidecar"])
def test_both_ends_name_the_same_socket_in_a_directory_that_both_have(name: str):
    spec = template(name)["spec"]
    (spark,) = spec["containers"]
    sidecar = sidecar_of(spec)
    ends = {each["name"]: each.get("value", each.get("valueFrom")) for each in spark["env"] + sidecar["env"]}
    assert ends["EPOCHAL_SIDECAR"] == ends["EPOCHAL_SIDECAR_LISTEN"] == "ipc:///run/epochal/ingest.sock"
    assert ends["EPOCHAL_SIDECAR_REQUIRED"] == "true"
    pod_uid = {"name": "EPOCHAL_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    assert pod_uid in spark["env"]
    assert pod_uid in sidecar["env"]
    assert {"name": SIDECAR, "emptyDir": {}} in spec["volumes"]
    for container in (spark, sidecar):
        assert {"name": SIDECAR, "mountPath": "/run/epochal"} in container["volumeMounts"]


def test_prometheus_is_let_to_the_sidecars_port():
    policy = template("sidecar-metrics")
    kubernetes_validate.validate(policy, "1.37", strict=True)
    for name in ("driver-sidecar", "executor-sidecar"):
        labels = template(name)["metadata"]["labels"]
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["spec"]["ingress"][0]["ports"] == [{"port": SIDECAR}]


def test_apaches_operator_gets_the_same_templates():
    spec = yaml.safe_load((ROOT / "examples" / "spark" / "apache-operator.yaml").read_text())["spec"]
    for name in ("driver", "executor"):
        whole = template(f"{name}-sidecar")
        assert spec[f"{name}Spec"]["podTemplateSpec"] == {"metadata": whole["metadata"], "spec": whole["spec"]}


def test_kubeflows_operator_gets_the_same_in_its_own_fields():
    spec = yaml.safe_load((ROOT / "examples" / "spark" / "kubeflow-operator.yaml").read_text())["spec"]
    for name in ("driver", "executor"):
        whole, given = template(f"{name}-sidecar"), spec[name]
        (spark,) = whole["spec"]["containers"]
        assert given["labels"] == whole["metadata"]["labels"]
        assert given["podSecurityContext"] == whole["spec"]["securityContext"]
        assert sidecar_of(given) == sidecar_of(whole["spec"])
        assert {field: given[field] for field in ("env", "securityContext")} == {
            field: spark[field] for field in ("env", "securityContext")
        }
        assert given["volumeMounts"][:-1] == spark["volumeMounts"]
        assert {each["name"] for each in given["volumeMounts"]} == {each["name"] for each in spec["volumes"]}
    assert spec["volumes"][:-1] == whole["spec"]["volumes"], "the last one is the job's own"
