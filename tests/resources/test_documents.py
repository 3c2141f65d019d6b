"""Manifests in YAML: several in a file, and what YAML must not smuggle in."""

import pytest

from epochal.errors import ManifestError
from epochal.resources.documents import load_manifests

ONE = """
apiVersion: epochal.dev/v1alpha1
kind: Stream
metadata: {name: NAME}
spec:
  time: {shape: int}
  payload: {encoding: msgpack}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        load_manifests(text)
    return [str(problem) for problem in caught.value.problems]


def test_reads_several_documents_and_skips_empty_ones() -> None:
    text = "---\n" + ONE.replace("NAME", "a") + "---\n---\n" + ONE.replace("NAME", "b")
    assert [manifest.qualified for manifest in load_manifests(text)] == ["default/a", "default/b"]
    assert [manifest.qualified for manifest in load_manifests(text, namespace="x")] == ["x/a", "x/b"]


def test_the_path_says_which_document() -> None:
    found = problems(ONE.replace("NAME", "A") + "---\n" + ONE.replace("NAME", "b").replace("int", "flt"))
    assert [line.partition(": ")[0] for line in found] == ["document 1", "document 2"]
    assert "metadata.name" in found[0]
    assert "spec.time.shape" in found[1]


def test_one_name_twice_is_refused() -> None:
    text = ONE.replace("NAME", "a")
    assert "declares default/a again" in problems(f"{text}---\n{text}")[0]


def test_a_key_twice_is_refused_with_both_lines() -> None:
    found = problems(ONE.replace("NAME", "a") + "  segments: 1\n  segments: 2\n")
    assert found == ["document 1: spec.segments: is given twice (lines 8 and 9)"]


@pytest.mark.parametrize("text", ["", "\n---\n---\n", "# only a remark\n"])
def test_text_without_a_manifest_is_reported(text: str) -> None:
    assert "holds no manifest" in problems(text)[0]


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
MERGES = "m0: &m0 {a: 1}\n" + "".join(f"m{n}: &m{n}\n  <<: [{', '.join([f'*m{n - 1}'] * 9)}]\n" for n in range(1, 9))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, "aliases written out"),
        (MERGES, "merge key"),
        ("&a [*a]", "aliases written out"),
        ("[" * 100_000, "nested more than"),
        ("- " * 10_000, "nested more than"),
        ("x: " + "9" * 5000, "digits"),
        ("x: [", "expected"),
        ("x: !!python/object:os.system {}", "python/object"),
        ("x: \x00", "special characters"),
        ("? [a]\n: b", "not a text"),
        ("x" * ((1 << 20) + 1), "more than 1048576 characters"),
        ("x: .nan", "finite"),
        ("1: x", "quotes"),
    ],
)
def test_hostile_yaml_is_refused_quickly(text: str, reason: str) -> None:
    assert reason in " ".join(problems(text))


def test_a_date_stays_a_text() -> None:
    text = ONE.replace("NAME", "a").replace("{name: a}", "{name: a, annotations: {day: 2013-01-01}}")
    assert load_manifests(text)[0].metadata.annotations == {"day": "2013-01-01"}
