"""The pods of Spark's drivers and executors: what their templates give, and the rights of a driver."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from tests.charts.rendering import Object

FOLDER = Path(__file__).parents[2] / "spark" / "kubernetes"


@pytest.fixture(params=["driver", "executor"])
def pod(request: pytest.FixtureRequest) -> Object:
    return dict(yaml.safe_load((FOLDER / f"{request.param}.yaml").read_text()))


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
    work = [line.split()[1] for line in (FOLDER / "Dockerfile").read_text().splitlines() if line.startswith("WORKDIR")]
    assert set(mounted) == {"/tmp", work[-1]}


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
