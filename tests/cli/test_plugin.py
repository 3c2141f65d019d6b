"""`kubectl epochal` and `epochal --kube` before any cluster is asked; with one, tests/cluster has them."""

from pathlib import Path

import pytest

from epochal.cli import plugin


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ("get streams", "--kube get streams"),
        ("get streams --context prod", "--kube --context prod get streams"),
        ("get streams --context=prod -A", "--kube --context=prod get streams -A"),
        ("-n demo get streams", "--kube get -n demo streams"),
        ("--namespace=demo get streams", "--kube get --namespace=demo streams"),
        ("get streams -n demo", "--kube get streams -n demo"),
        ("--no-color --kubeconfig f sub x", "--kube --no-color --kubeconfig f sub x"),
        ("pub x --time 1 -- --context", "--kube pub x --time 1 -- --context"),
        ("get --context", "--kube --context get"),
        ("--version", "--kube --version"),
        ("", "--kube"),
    ],
)
def test_options_of_kubectl_are_understood_wherever_they_stand(given: str, arguments: str) -> None:
    assert plugin.arguments(given.split()) == arguments.split()


def test_completion_speaks_as_kubectl_expects(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["kubectl_complete-epochal", "desc"])
    plugin.complete()
    assert capsys.readouterr() == ("describe\n:4\n", "")
    monkeypatch.setattr("sys.argv", ["kubectl_complete-epochal", "apply", "-f", ""])
    plugin.complete()
    assert capsys.readouterr().out.endswith(":0\n")  # the shell may suggest files


def test_without_a_cluster_names_are_not_completed(capfd, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert plugin.complete_words(["sub", "--kubeconfig", missing], "") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("command", ["up", "log", "completion"])
def test_what_works_on_this_machine_takes_no_cluster(epochal, command: str) -> None:
    result = epochal("--kube", command)
    assert (result.status, result.out) == (2, "")
    assert f"`epochal {command}` works on this machine; leave --kube out" in result.err


@pytest.mark.parametrize("options", [("--kube",), ("--context", "x"), ("--kube-namespace", "x")])
def test_any_of_the_options_chooses_a_cluster(epochal, options: tuple[str, ...], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    result = epochal(*options, "get", "streams")
    assert (result.status, result.out) == (2, "")
    assert result.err == (
        f"error: no kubeconfig: there is no {tmp_path / 'missing'}; name one with KUBECONFIG, "
        "as for kubectl (or --kubeconfig of the command epochal)\n"
    )
    result = epochal(*options, "doctor")
    assert result.status == 1
    assert "fail  kubernetes   no kubeconfig" in result.out


def test_a_choice_ends_with_its_run(epochal, tmp_path: Path, catalog: str) -> None:
    assert epochal("--kubeconfig", tmp_path / "missing", "get", "streams").status == 2
    assert epochal("get", "streams", "--catalog", catalog).status == 0


def test_applying_to_the_catalog_of_a_cluster_says_what_does_not_follow(run, manifest, monkeypatch) -> None:
    result = run("apply", "-f", "-", "--timeout", "0", "--catalog", "http://nowhere.demo.svc:1", stdin=manifest("x"))
    assert result.status == 4
    assert "declared at the cluster's catalog alone: no publishers start" in result.err
