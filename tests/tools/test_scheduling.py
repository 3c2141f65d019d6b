"""The order of the tests: what it names exists, and a file's tests stay together."""

from pathlib import Path

from tests.scheduling import LONGEST, ONE_PROCESS, group, rank

ROOT = Path(__file__).parents[2]


def test_what_is_named_exists() -> None:
    assert all((ROOT / name).is_dir() == name.endswith("/") for name in LONGEST)
    assert all((ROOT / name).exists() for name in LONGEST)
    assert set(ONE_PROCESS) <= set(LONGEST)


def test_the_tests_of_a_file_stay_together_and_those_of_spark_in_one_process() -> None:
    assert group("tests/cli/test_up.py::test_a[1]") == "tests/cli/test_up.py"
    assert group("tests/spark/test_batch.py::test_a") == group("tests/spark/test_tasks.py::test_b") == "tests/spark/"


def test_what_takes_longest_comes_first() -> None:
    tests = ["tests/kube/test_x.py::test_a", "tests/cli/test_x.py::test_b", "tests/spark/test_x.py::test_c"]
    assert sorted(tests, key=rank) == tests[::-1]
    assert rank("tests/publisher/test_lease.py::test_a") < rank("tests/publisher/test_reply.py::test_a")
