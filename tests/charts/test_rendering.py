"""What holds of the chart's objects whatever its values: by default, with each option flipped, and with all of them."""

import functools
import json
from typing import Any

import kubernetes_validate
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
    identity,
    leaves,
    merged,
    nested,
    pods,
    render,
    selects,
)

from epochal.resources.documents import load_manifests
from set_version import version

LONGEST_RELEASE = "r" * 53
"""Helm allows no longer name."""
ADMISSION = {f"{verb}AdmissionPolicy{what}" for verb in ("Mutating", "Validating") for what in ("", "Binding")}
"""Kinds that are rendered only for a Kubernetes that has them all."""
LONGEST = {"Stream": 52, **dict.fromkeys({"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", *ADMISSION}, 253)}
"""Characters that the name of a kind can have, where it is not 63."""
FLIPPED: dict[str, Object] = {
    f"{path}={not value}": nested(path, not value) for path, value in leaves(defaults()) if isinstance(value, bool)
}
MINE: Object = {"create": False, "name": "mine"}
CASES: dict[str, Object] = {
    "defaults": {},
    "everything": EVERYTHING,
    "everything, cluster-wide": merged(EVERYTHING, {"watchNamespaces": []}),
    "one namespace elsewhere": {"watchNamespaces": ["demo"]},
    "another's claim": nested("catalog.persistence.existingClaim", "mine"),
    "other accounts": {
        "operator": {"serviceAccount": MINE, "releaseStreams": {"serviceAccount": MINE}},
        "catalog": {"serviceAccount": MINE},
    },
    "a long override": {"fullnameOverride": "o" * 63},
    **FLIPPED,
}
EXPECTED_ELSEWHERE = {
    ("PersistentVolumeClaim", "mine"),
    ("ServiceAccount", "mine"),
    ("ServiceAccount", "default"),
    ("Secret", "pull"),
}
"""What the cases refer to and bring themselves."""
OURS = {"Stream", "ServiceMonitor", "PodMonitor", "PrometheusRule"}
"""Kinds that Kubernetes itself does not know."""
VERSIONS = ("1.29", "1.37")
"""The oldest that the chart allows and the newest that there is."""


@pytest.fixture(params=CASES, name="objects")
def objects_of(request: pytest.FixtureRequest) -> list[Object]:
    return render(CASES[request.param])


def test_helm_finds_nothing_to_complain_of():
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def test_kubernetes_takes_every_object(objects: list[Object]):
    for each in objects:
        if each["kind"] not in OURS:
            for version in ("1.36", VERSIONS[1]) if each["kind"] in ADMISSION else VERSIONS:
                validate(json.dumps(each), version)


@functools.cache  # most objects are the same in most cases
def validate(text: str, version: str) -> None:
    kubernetes_validate.validate(json.loads(text), version, strict=True)


def test_kubernetes_would_refuse_a_field_that_it_does_not_know():
    service = find(render(), "Service", "-catalog")
    with pytest.raises(kubernetes_validate.ValidationError, match="notAField"):
        kubernetes_validate.validate(merged(service, {"spec": {"notAField": 1}}), VERSIONS[0], strict=True)


def test_streams_are_what_the_model_of_streams_takes(objects: list[Object]):
    for each in objects:
        if each["kind"] == "Stream":
            load_manifests(yaml.safe_dump(each))


def test_no_object_is_there_twice(objects: list[Object]):
    found = [identity(each) for each in objects]
    assert len(found) == len(set(found))


@pytest.mark.parametrize("values", [{}, EVERYTHING, {"fullnameOverride": "o" * 63}, {"nameOverride": "o" * 63}])
def test_no_name_is_too_long(values: Object):
    for each in render(values, release=LONGEST_RELEASE, namespace="n" * 63):
        kind, _, name = identity(each)
        assert len(name) <= LONGEST.get(kind, 63), each
        assert all(len(value) <= 63 for value in each["metadata"].get("labels", {}).values())
        if kind not in OURS:
            validate(json.dumps(each), VERSIONS[1])


def test_names_that_are_cut_stay_names():
    for length in (38, 39, 44, 45, 53):  # where names, and names with the chart in them, are cut
        for each in render(release="r" * (length - 1) + "x"):
            assert "--" not in each["metadata"]["name"]
            assert not each["metadata"]["name"].endswith("-")


def test_two_releases_in_one_namespace_share_nothing():
    one = {identity(each) for each in render(EVERYTHING, release="one")}
    two = {identity(each) for each in render(merged(EVERYTHING, {"crds": {"enabled": False}}), release="two")}
    assert not one & two


def test_two_releases_of_one_name_in_two_namespaces_share_nothing():
    one = {identity(each) for each in render(namespace="one")}
    two = {identity(each) for each in render({"crds": {"enabled": False}}, namespace="two")}
    assert not one & two


def test_pods_of_one_release_are_not_chosen_by_another():
    one, two = render(EVERYTHING, release="one"), render(EVERYTHING, release="two")
    theirs = [pod["metadata"]["labels"] for _, pod in pods(two)]
    chosen = [labels for selector in selectors(one) for labels in theirs if selects(selector, labels)]
    assert not chosen


# --- references ------------------------------------------------------------------------------------------------------


def selectors(objects: list[Object]) -> list[Object]:
    """Each label selector by which an object chooses pods of this release."""
    found: list[Object] = []
    for each in objects:
        spec = each.get("spec", {})
        match each["kind"]:
            case "Service":
                found.append({"matchLabels": spec["selector"]})
            case "Deployment" | "PodDisruptionBudget":
                found.append(spec["selector"])
            case "NetworkPolicy":
                found.append(spec["podSelector"])
    return found


def test_every_selector_chooses_pods_that_are_there(objects: list[Object]):
    labels = [pod["metadata"]["labels"] for _, pod in pods(objects)]
    for selector in selectors(objects):
        assert any(selects(selector, each) for each in labels), selector


def test_what_runs_all_the_time_is_chosen_by_its_own_deployment_only(objects: list[Object]):
    deployments = [each for each in objects if each["kind"] == "Deployment"]
    for each in deployments:
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert [other for other in deployments if selects(other["spec"]["selector"], labels)] == [each]


def test_the_service_leads_to_the_catalogs_port_only(objects: list[Object]):
    service = find(objects, "Service", "-catalog")
    (container,) = find(objects, "Deployment", "-catalog")["spec"]["template"]["spec"]["containers"]
    (port,) = service["spec"]["ports"]
    assert {"name": port["targetPort"], "containerPort": port["port"]} in container["ports"]
    chosen = [
        name
        for name, pod in pods(objects)
        if selects({"matchLabels": service["spec"]["selector"]}, pod["metadata"]["labels"])
    ]
    assert len(chosen) == 1


def test_service_monitors_find_the_service_and_pod_monitors_name_ports_that_are_there():
    objects = render(EVERYTHING)
    monitor = find(objects, "ServiceMonitor", "-catalog")
    service = find(objects, "Service", "-catalog")
    assert selects(monitor["spec"]["selector"], service["metadata"]["labels"])
    assert monitor["spec"]["endpoints"][0]["port"] in [port["name"] for port in service["spec"]["ports"]]
    operator = find(objects, "PodMonitor", "-operator")
    (container,) = find(objects, "Deployment", "-operator")["spec"]["template"]["spec"]["containers"]
    assert operator["spec"]["podMetricsEndpoints"][0]["port"] in [port["name"] for port in container["ports"]]


def test_everything_that_is_referred_to_is_there(objects: list[Object]):
    there = {(each["kind"], each["metadata"]["name"]) for each in objects} | EXPECTED_ELSEWHERE
    for _, pod in pods(objects):
        assert set(references(pod["spec"])) <= there
    for each in objects:
        if each["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            subject = each["subjects"][0]
            assert (each["roleRef"]["kind"], each["roleRef"]["name"]) in there
            assert (subject["kind"], subject["name"]) in there


def references(spec: Object) -> list[tuple[str, str]]:
    """What the spec of a pod needs to be there."""
    found = [("ServiceAccount", spec.get("serviceAccountName", "default"))]
    found += [("Secret", each["name"]) for each in spec.get("imagePullSecrets", [])]
    for volume in spec.get("volumes", []):
        if "persistentVolumeClaim" in volume:
            found.append(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]))
        else:
            assert "emptyDir" in volume, volume
    return found


def test_volumes_that_are_mounted_are_there(objects: list[Object]):
    for name, pod in pods(objects):
        volumes = {each["name"] for each in pod["spec"]["volumes"]}
        for container in containers(pod):
            mounts = container["volumeMounts"]
            assert {each["name"] for each in mounts} <= volumes, name
            assert len({each["mountPath"] for each in mounts}) == len(mounts)


# --- Pod Security: restricted ----------------------------------------------------------------------------------------


def test_every_pod_is_restricted(objects: list[Object]):
    assert len(list(pods(objects))) >= 2
    for name, pod in pods(objects):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"].get("runAsUser", 10000) >= 10000, "or left to the platform, by fixedUser"
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert spec["enableServiceLinks"] is False
        assert isinstance(spec["automountServiceAccountToken"], bool), "said, and not left to the service account"
        assert spec["terminationGracePeriodSeconds"] <= 60 if "terminationGracePeriodSeconds" in spec else True


def test_every_container_is_restricted(objects: list[Object]):
    for name, pod in pods(objects):
        for container in containers(pod):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in security
            assert not [port for port in container.get("ports", []) if "hostPort" in port]
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]
            assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]], "nothing else can be written"


def test_only_who_talks_to_kubernetes_has_a_token(objects: list[Object]):
    with_token = {name.rpartition("-")[2] for name, pod in pods(objects) if pod["spec"]["automountServiceAccountToken"]}
    assert with_token <= {"operator", "release"}
    for each in objects:
        if each["kind"] == "ServiceAccount":
            assert each["automountServiceAccountToken"] is False


def test_streams_are_released_of_the_operator_that_claimed_them(objects: list[Object]):
    leases = {}
    for name, pod in pods(objects):
        for container in containers(pod):
            given = {each["name"]: each.get("value") for each in container.get("env", [])}
            if container.get("args", [""])[0] in ("run", "release"):
                leases[name.rpartition("-")[2]] = given["EPOCHAL_OPERATOR_LEASE_NAME"]
    assert leases.get("release", leases["operator"]) == leases["operator"]


def test_they_are_released_once_none_was_claimed_for_as_long_as_is_said():
    for settle in (15, 2.5):
        (job,) = [each for each in render(nested("operator.releaseStreams.settle", settle)) if each["kind"] == "Job"]
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["args"] == ["release", "--settle", str(settle)]


def test_what_runs_all_the_time_is_watched(objects: list[Object]):
    for part in ("catalog", "operator"):
        (container,) = find(objects, "Deployment", f"-{part}")["spec"]["template"]["spec"]["containers"]
        ports = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["port"] in ports
            assert container[probe]["httpGet"]["path"] == "/healthz"
    (catalog,) = find(objects, "Deployment", "-catalog")["spec"]["template"]["spec"]["containers"]
    assert catalog["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_one_pod_at_a_time_has_the_database(objects: list[Object]):
    spec = find(objects, "Deployment", "-catalog")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert find(objects, "Deployment", "-operator")["spec"]["strategy"] == {"type": "Recreate"}


# --- labels, and what an upgrade may not change ----------------------------------------------------------------------


def test_every_object_has_the_usual_labels(objects: list[Object]):
    for each in objects:
        if not each["metadata"]["name"].endswith(("-extra", "-text")):
            labels = each["metadata"]["labels"]
            assert labels["app.kubernetes.io/managed-by"] == "Helm", identity(each)
            assert labels["app.kubernetes.io/part-of"] == "epochal"
            assert {"helm.sh/chart", "app.kubernetes.io/version", "app.kubernetes.io/component"} < set(labels)


def test_selectors_never_change():
    """They are immutable: with any other, `helm upgrade` would fail."""
    for part in ("catalog", "operator"):
        assert find(render(EVERYTHING, release="x"), "Deployment", f"-{part}")["spec"]["selector"] == {
            "matchLabels": {
                "app.kubernetes.io/name": "epochal",
                "app.kubernetes.io/instance": "x",
                "app.kubernetes.io/component": part,
            }
        }


def test_an_upgrade_with_the_same_images_restarts_nothing(tmp_path: Any):
    """Pods are the same in a chart of another version, but for the images that its version names."""
    for path in CHART.rglob("*"):
        if path.is_file():
            copy = tmp_path / "epochal" / path.relative_to(CHART)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text().replace(f"version: {version()}", "version: 99.0.0"))
    given = ("--set", "image.tag=same")
    newer = yaml.safe_load_all(helm("template", "epochal", str(tmp_path / "epochal"), "-n", "epochal", *given))
    templates = dict(pods([each for each in newer if each]))
    for name, pod in pods(render({"image": {"tag": "same"}})):
        if name.startswith("Deployment"):
            assert templates[name] == pod


def test_the_same_values_give_the_same_objects():
    once = helm("template", "epochal", str(CHART))
    assert once == helm("template", "epochal", str(CHART)), "nothing is drawn at random"


def test_an_older_kubernetes_is_refused():
    with pytest.raises(HelmError, match=r"requires kubeVersion: >=1\.29\.0-0"):
        render(flags=("--kube-version", "1.28"))
