"""`make demo-cluster`, as far as it needs no cluster: what it submits, and what it makes of what pods told."""

import re
import shlex
from pathlib import Path

import kubernetes_validate
import yaml
from examples.demo.cluster import IMAGES, TRACING, kept, submit_command
from examples.demo.follow import LineView, replay, tell
from examples.demo.run import Run
from examples.demo.tally import Join, Kill, Sums, Tally, check_early, check_late, truth_of
from examples.demo.verdict import verdict

ROOT = Path(__file__).parents[2]
FILES = ROOT / "examples" / "demo" / "kubernetes"


def test_the_manual_submits_what_the_demo_does():
    page = (ROOT / "docs" / "spark.md").read_text()
    (shown,) = re.findall(r"\$ (spark-submit --master k8s:.*?)\n```", page, re.DOTALL)
    url = "https://KUBERNETES:6443"
    catalog = "http://epochal-catalog.epochal.svc:8700"
    assert shlex.split(shown.replace("\\\n", " ")) == submit_command(
        url, "demo", "localhost/epochal-spark:dev", catalog, 14
    )


def test_kubernetes_takes_the_demos_files_and_their_pods_are_restricted():
    (volume,) = yaml.safe_load_all((FILES / "work.yaml").read_text())
    (pod,) = yaml.safe_load_all((FILES / "follower.yaml").read_text())
    for each in (volume, pod):
        kubernetes_validate.validate(each, "1.37", strict=True)
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert f"claimName={volume['metadata']['name']}" in " ".join(submit_command("", "", "", "", 3))


def test_every_image_that_it_imports_is_one_that_is_built():
    built = re.search(r"^order=\(([^)]*)\)", (ROOT / "tools" / "images").read_text(), re.MULTILINE)
    assert built is not None
    assert set(IMAGES) == set(built[1].split())


def test_what_is_kept_is_reached_by_the_commands_that_are_printed(tmp_path):
    """The ports that the demo forwards end with it, and with them the address of a trace."""
    config = tmp_path / "of a demo"
    said = kept(config, traces=True).splitlines()
    assert said[1] == f"export KUBECONFIG={shlex.quote(str(config))}"
    program, *words = shlex.split(said[-1])
    assert Path(program).name == "kubectl"
    assert words == ["port-forward", "--namespace", "epochal-demo", "service/zipkin", "9411:9411"]
    assert "http://127.0.0.1:9411/zipkin" in said[-2]
    services = [each for each in yaml.safe_load_all(TRACING.read_text()) if each["kind"] == "Service"]
    (zipkin,) = [each for each in services if each["metadata"]["name"] == "zipkin"]
    assert [port["port"] for port in zipkin["spec"]["ports"]] == [9411]
    assert "zipkin" not in kept(config, traces=False)


def test_what_a_pod_reported_is_what_it_computed(capsys):
    hour, join = 2013010105, Join(3, 10, (2013010104,))
    kill = Kill("1", 5, 10, (hour,), "deleted by force")
    tally, view = Tally(), LineView()
    tally.add(hour, [{"origin": "JFK", "dep_delay": 4}, {"origin": "JFK", "dep_delay": None}])
    view.joined(join)
    view.killed(kill)
    view.back(1.5)
    view.complete(hour, tally, late=False)
    tell("ended", faults=["an hour was aborted"])
    run, heard = Run(3, view), Tally()
    for line in capsys.readouterr().out.splitlines():
        replay(yaml.safe_load(line), run, heard)
    assert (run.join, run.kill, run.back_after) == (join, kill, 1.5)
    assert heard.hours == tally.hours == {hour: {"JFK": Sums(2, 1, 4)}}
    assert heard.faults == ["an hour was aborted"]


def test_one_number_that_differs_is_a_failure(capsys):
    hours = [2013010105 + hour for hour in range(10)]
    rows = [(hour, "JFK", 2, 1, 4) for hour in hours]

    def run() -> Run:
        made = Run(3, LineView(), kills=False, truth=truth_of(rows), join=Join(4, 10, (hours[4],)))
        made.early.hours.update(truth_of(rows))
        made.late.hours.update(truth_of(rows[5:]))
        return made

    assert verdict(run(), 1.0) == 0
    for tally in (lambda run: run.early, lambda run: run.late):
        wrong = run()
        tally(wrong).hours[hours[7]] = {"JFK": Sums(2, 1, 5)}
        assert verdict(wrong, 1.0) == 1
        assert "plain Spark says JFK (2, 1, 4)" in capsys.readouterr().err


def test_bytes_of_other_airports_are_a_failure(capsys):
    hours = [2013010105 + hour for hour in range(10)]
    rows = [(hour, airport, 2, 1, 4) for hour in hours for airport in ("JFK", "LGA")]

    def ended(sent: int | None) -> tuple[int, str]:
        run = Run(3, LineView(), kills=False, airport="JFK", truth=truth_of(rows), sent=sent, everything=5000)
        run.join = Join(4, 10, (hours[4],), "JFK", ("relay:flights",))
        run.early.hours.update(truth_of(rows))
        run.late.hours.update(truth_of(row for row in rows[10:] if row[1] == "JFK"))
        status = verdict(run, 1.0)
        return status, capsys.readouterr().out

    status, said = ended(1900)
    assert status == 0
    assert "late, JFK only   5 of 10 hours (50 %)" in said
    assert re.search(r"through a relay  sent 2 KiB +38 % of the 5 KiB of all airports\n", said), said
    assert ended(2501)[0] == ended(None)[0] == 1


def test_an_empty_tally_is_not_taken_for_everything_equal():
    truth = truth_of([(2013010105, "JFK", 2, 1, 4)])
    assert check_early(truth, Tally()) == ["2013-01-01 05:00 was never complete"]
    assert check_late(truth, Tally(), None) != []
