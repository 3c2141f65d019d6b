"""The Dockerfile: the stages that images share, the user, and what each starts."""

import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
IMAGES = ("catalog", "publisher", "operator", "toolbox", "spark")
TRACING = {"collector": "tests/tracing/collector/Dockerfile", "zipkin": "tests/tracing/zipkin/Dockerfile"}
"""Images of others' programs, for tests and demos."""
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


@pytest.fixture(params=IMAGES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def stages() -> dict[str, tuple[str, str]]:
    """Each stage's base and its instructions, without comments."""
    found = re.findall(r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    lines = {name: [line for line in body.splitlines() if line and not line.startswith("#")] for _, name, body in found}
    return {name: (base, "\n".join(lines[name])) for base, name, _ in found}


def needed(target: str) -> set[str]:
    """The stages that an image is made from, itself among them, with the defaults of all arguments."""
    todo, taken = [target], set[str]()
    while todo:
        name = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", todo.pop())
        if name in stages() and name not in taken:
            taken.add(name)
            base, body = stages()[name]
            todo += [base, *re.findall(r"--from=(\S+)", body)]
    return taken


def last(text: str, instruction: str) -> str:
    return [line for line in text.splitlines() if line.startswith(instruction + " ")][-1].partition(" ")[2]


def test_what_builds_and_our_wheel_are_made_once_for_all(name: str):
    """An argument of one image in a stage that others share would make the stage again for each."""
    shared = {stage for stage in needed(name) if any(stage in needed(other) for other in IMAGES if other != name)}
    assert {"locks", "builder", "sources", "runtime"} <= shared
    assert [stage for stage in shared if "ARG " in stages()[stage][1]] == []
    assert all(stage.startswith(f"{name}-") for stage in needed(name) - shared - {name, "wheel"})


def test_what_carries_data_is_compiled(name: str):
    compiled = name in ("publisher", "spark")
    assert ("compiler" in needed(name)) == ("wheel-1" in needed(name)) == compiled
    assert ("wheel-0" in needed(name)) != compiled


def test_without_a_base_what_builds_has_a_compiler_and_what_runs_has_not():
    assert "ARG BUILD_BASE=${BASE:-docker.io/library/python:3.13}\n" in TEXT
    assert stages()["runtime"][0] == "${BASE:-docker.io/library/python:3.13-slim}"


def test_arguments_that_choose_stages_are_declared_before_all_stages():
    head = TEXT[: TEXT.index("\nFROM ")]
    used = set(re.findall(r"^FROM .*\$\{(\w+)", TEXT, re.MULTILINE))
    assert used == {"BASE", "BUILD_BASE", "COMPILED"} == set(re.findall(r"^ARG (\w+)", head, re.MULTILINE))


def test_code_comes_after_what_changes_less(name: str):
    before = needed(f"{name}-dependencies")
    assert not before & {"sources", "wheel", "data-wheel"}
    body = stages()[name][1]
    assert (
        body.index(f"--from={name}-dependencies") < body.index(f"--from={name}-application") < body.index("ARG VERSION")
    )


def test_every_version_is_checked_by_hash(name: str):
    filled = (ROOT / "tools" / "fill-image").read_text()
    assert TEXT.count("pip --quiet install") == TEXT.count("--require-hashes --only-binary :all:") == 2
    assert filled.count("--require-hashes") == 1
    assert filled.count("--no-index") == 1, "our wheel needs nothing from elsewhere by then"
    assert f"fill-image dependencies /{name}.lock " in stages()[f"{name}-dependencies"][1]


def test_it_does_not_run_as_root(name: str):
    assert last(stages()[name][1], "USER") == "10001:10001"


def test_it_starts_a_command_of_this_project(name: str):
    (program,) = json.loads(last(stages()[name][1], "ENTRYPOINT"))
    assert program in SCRIPTS or (name == "spark" and Path(program).name == "entrypoint.sh")
    if program in SCRIPTS:
        assert f"fill-image application {program}" in stages()[f"{name}-application"][1]


def test_it_says_what_it_is(name: str):
    body = stages()[name][1]
    assert f'org.opencontainers.image.title="epochal-{name}"' in body
    for label in ("description", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in body
    assert "org.opencontainers.image.licenses=" in stages()["runtime"][1]
    assert f"fill-image sbom epochal-{name} " in body


def test_the_builder_of_images_knows_them_all():
    text = (ROOT / "tools" / "images").read_text()
    named = {key: tuple(names.split()) for key, names in re.findall(r"^(order|tracing)=\((.*?)\)", text, re.MULTILINE)}
    assert named == {"order": IMAGES, "tracing": tuple(TRACING)}


def test_what_is_copied_may_be_copied_and_is_looked_at_for_changes():
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", TEXT, re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    stamped = re.search(r"^sources=\((.*?)\)", (ROOT / "tools" / "images").read_text(), re.MULTILINE | re.DOTALL)
    assert stamped is not None
    for source in sources:
        parents = {str(path) for path in (Path(source), *Path(source).parents)}
        assert any(f"!{path}" in allowed for path in parents), source
        assert parents & set(stamped[1].split()), source


@pytest.mark.parametrize("name", TRACING)
def test_others_programs_run_as_no_root_and_say_what_they_are(name: str):
    text = (ROOT / TRACING[name]).read_text()
    assert last(text, "USER") == "10001:10001"
    assert f'org.opencontainers.image.title="epochal-{name}"' in text
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    for copied in (line.split()[1] for line in text.splitlines() if line.startswith("COPY ")):
        assert f"!{copied}" in allowed, "or it is not there to be copied"
