"""The first tier itself: what an operator's tests may count on."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.harness import building, evidence
from tests.cluster.harness.apiserver import ApiServer
from tests.cluster.harness.building import UnfitError
from tests.cluster.harness.certificates import write_kubeconfig
from tests.cluster.harness.kubernetes import KubectlError, Kubernetes, eventually
from tests.cluster.harness.programs import NotReadyError, Program, end, started_at
from tests.patience import PATIENCE
from tests.ports import free_port


def _owned(name: str, owner: dict[str, str]) -> dict[str, object]:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", **owner}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": [reference]}}


def test_clients_see_the_version_that_was_built(api_server):
    said = api_server.kubectl("version", "-o", "json")
    assert f'"gitVersion": "{building.kubernetes_version()}"' in said


def test_a_service_account_may_do_only_what_its_roles_say(api_server, api_namespace, tmp_path):
    api_server.kubectl("create", "serviceaccount", "reader", "-n", api_namespace)
    api_server.kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods", "-n", api_namespace)
    api_server.kubectl(
        *("create", "rolebinding", "reader", "--role=reader", "-n", api_namespace),
        f"--serviceaccount={api_namespace}:reader",
    )
    reader = api_server.run_as_service_account(api_namespace, "reader", tmp_path / "kubeconfig")
    assert reader.get("pods")["items"] == []
    with pytest.raises(KubectlError, match="forbidden"):
        reader.get("secrets")


def test_what_an_account_asked_for_can_be_read_back(api_server, api_namespace, tmp_path):
    api_server.kubectl("create", "serviceaccount", "curious", "-n", api_namespace)
    curious = api_server.run_as_service_account(api_namespace, "curious", tmp_path / "kubeconfig")
    with pytest.raises(KubectlError, match="forbidden"):
        curious.get("pods", "--subresource=status", "some", namespace=api_namespace)
    user = f"system:serviceaccount:{api_namespace}:curious"
    asked = [call for call in api_server.calls() if call.user == user]
    assert [(call.verb, call.group, call.resource, call.name, call.code) for call in asked] == [
        ("get", "", "pods/status", "some", 403)
    ]
    assert asked[0].agent.startswith("kubectl/")


def test_a_pod_is_an_object_that_is_not_run(api_server, api_namespace):
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "still"},
        "spec": {"containers": [{"name": "c", "image": "none"}]},
    }
    api_server.apply(pod, namespace=api_namespace)
    assert api_server.get("pod", "still", namespace=api_namespace)["status"]["phase"] == "Pending"


def test_with_controllers_children_are_collected_and_namespaces_end(controlled_api_server):
    server = controlled_api_server
    server.kubectl("create", "namespace", "passing")
    server.kubectl("create", "configmap", "owner", "-n", "passing")
    uid = server.get("configmap", "owner", namespace="passing")["metadata"]["uid"]
    server.apply(_owned("child", {"name": "owner", "uid": uid}), namespace="passing")
    server.kubectl("delete", "configmap", "owner", "-n", "passing")
    server.wait("configmap/child", "delete", namespace="passing")
    server.kubectl("delete", "namespace", "passing", "--timeout=60s")
    assert server.find("namespace", "passing") is None


def test_several_run_at_once_and_leave_nothing(api_servers: Callable[..., ApiServer]):
    first, second = api_servers(), api_servers()
    first.kubectl("create", "namespace", "mine")
    assert second.find("namespace", "mine") is None
    pids = [program.pid for program in second.programs]
    second.stop()
    assert [pid for pid in pids if started_at(pid) is not None] == []
    assert not second.directory.exists()
    assert first.find("namespace", "mine") is not None


def test_a_component_that_cannot_start_is_said_with_its_log(tmp_path: Path):
    program = Program("talker", ["sh", "-c", "echo no such luck >&2; exit 1"], tmp_path / "log")
    program.start()
    with pytest.raises(NotReadyError, match=r"talker ended by itself(?s:.*)no such luck"):
        program.wait_until(lambda: False, PATIENCE)


def test_a_program_that_ignores_the_end_is_killed(tmp_path: Path):
    ready = tmp_path / "ready"
    program = Program("deaf", ["sh", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 1; done"], tmp_path / "log")
    program.start()
    program.wait_until(ready.exists, PATIENCE)
    start = started_at(program.pid)
    assert start is not None
    end(program.pid, start, timeout=0.5)  # load: it is to end
    assert eventually(lambda: not program.running)


def test_evidence_of_a_cluster_that_is_away_says_so_and_fails_no_test(tmp_path: Path):
    write_kubeconfig(tmp_path / "kubeconfig", {"server": f"https://127.0.0.1:{free_port()}"}, {})
    evidence.collect(Kubernetes(tmp_path / "kubeconfig"), tmp_path)
    assert (tmp_path / "events.txt").read_text().startswith("FAILED")


def test_what_is_missing_on_a_machine_is_reported_all_at_once_by_the_packages_that_bring_it():
    with pytest.raises(UnfitError, match="apt-get install first second"):
        building.require({"no-such-program": "second", "sh": "dash", "nor-this": "first"})
