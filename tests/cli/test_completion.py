"""What a shell completes, asked as bash asks it."""

import subprocess

import pytest
from tests.patience import PATIENCE

from epochal.cli import candidates
from epochal.cli.candidates import find_streams
from epochal.local.child import console_script

ASK = """
PATH="$(dirname "$1"):$PATH"
source <(epochal completion bash)
ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _epochal_completion epochal; echo "${COMPREPLY[*]}"; }
ask epochal desc
ask epochal get pub
ask epochal sub --epo
ask epochal sub "$2"
"""


def test_bash_completes_commands_kinds_options_and_streams(run, declared, catalog: str) -> None:
    stream = declared(segments=1)
    command = ["bash", "-c", ASK, "bash", console_script("epochal"), stream[:-2]]
    result = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True, text=True)
    assert result.stdout.splitlines() == ["describe", "publishers", "--epochs", stream]
    assert result.stderr == ""


def test_names_alone_are_those_of_the_namespace(declared, catalog: str) -> None:
    stream = declared(segments=1)
    short = stream.removeprefix("demo/")
    assert find_streams(short, catalog, "demo") == [short]
    assert find_streams(short, catalog, None) == []
    assert find_streams(stream, catalog, None) == [stream]


def test_what_is_no_name_is_not_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell would run `$(...)` that a catalog has sent, once it is on the line."""

    async def hostile(_url: str) -> list[tuple[str, str]]:
        return [("demo", "good"), ("demo", "x$(touch owned)"), ("$(id)", "good"), ("demo", "a b"), ("demo", "\x1b[2J")]

    monkeypatch.setattr(candidates, "_all_streams", hostile)
    assert find_streams("", "http://127.0.0.1:1", "demo") == ["demo/good", "good"]


def test_no_catalog_completes_nothing_without_a_word(unused_tcp_port: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert find_streams("", f"http://127.0.0.1:{unused_tcp_port}", None) == []
    assert find_streams("", "nonsense", None) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(epochal, shell: str) -> None:
    result = epochal("completion", shell)
    assert (result.status, result.err) == (0, "")
    assert f"_EPOCHAL_COMPLETE=complete_{shell}" in result.out
