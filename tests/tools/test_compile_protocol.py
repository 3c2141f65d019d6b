"""The build hook: what it compiles, when it does, and what it says where it cannot. `make test-compiled` compiles."""

import tomllib
from pathlib import Path
from typing import Any, cast

import pytest

import compile_protocol
from compile_protocol import CompileError, CompileProtocol

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
CONFIG = WHEEL["hooks"]["custom"]
PURE = ["*/values.py", "slow.py"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tiny project with one module to compile and one that stays as it is."""
    for name in (
        *compile_protocol.SEEN,
        "p/__init__.py",
        "p/room/__init__.py",
        "p/room/machine.py",
        "p/room/values.py",
        "p/slow.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    (tmp_path / "pyproject.toml").write_text("[tool]\nmypy = {}\nhatch = {}\n")
    return tmp_path


def hook(tree: Path) -> CompileProtocol:
    config = {"package": "p", "pure": PURE, "requires": ["mypy>=2"]}
    return CompileProtocol(str(tree), config, cast(Any, None), cast(Any, None), str(tree), "wheel")


def initialized(tree: Path, version: str) -> dict[str, Any]:
    data: dict[str, Any] = {"force_include": {}, "pure_python": True, "infer_tag": False}
    hook(tree).initialize(version, data)
    return data


def test_each_module_is_compiled_unless_it_is_left_out(tree: Path) -> None:
    assert compile_protocol.modules(tree, "p", PURE) == ["p/room/machine.py"]
    (tree / "p" / "new.py").write_text("")
    assert compile_protocol.modules(tree, "p", PURE) == ["p/new.py", "p/room/machine.py"]


def test_what_is_left_out_is_there(tree: Path) -> None:
    with pytest.raises(CompileError, match=r"leaves out what is not in p: gone\.py"):
        compile_protocol.modules(tree, "p", ["gone.py"])
    assert len(compile_protocol.modules(ROOT, CONFIG["package"], CONFIG["pure"])) > 25


def test_it_is_asked_for_by_the_environment() -> None:
    assert [compile_protocol.asked({"EPOCHAL_COMPILED": value}) for value in ("1", "yes", "0", "")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert not compile_protocol.asked({})


def test_a_wheel_is_pure_unless_it_is_asked_for(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EPOCHAL_COMPILED", raising=False)
    assert initialized(tree, "standard") == {"force_include": {}, "pure_python": True, "infer_tag": False}
    assert hook(tree).dependencies() == []


def test_an_editable_install_is_always_pure(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_COMPILED", "1")
    assert initialized(tree, "editable") == {"force_include": {}, "pure_python": True, "infer_tag": False}


def test_a_compiled_wheel_has_the_modules_beside_their_sources(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_COMPILED", "1")
    made = tree / "made" / "epochal" / "protocol" / "times.cpython-311.so"
    made.parent.mkdir(parents=True)
    made.touch()
    monkeypatch.setattr(compile_protocol, "compiled", lambda *_: tree / "made")
    assert initialized(tree, "standard") == {
        "force_include": {str(made): "epochal/protocol/times.cpython-311.so"}, "pure_python": False, "infer_tag": True,
    }  # fmt: skip
    assert hook(tree).dependencies() == ["mypy>=2"]


def test_who_has_no_compiler_learns_what_to_do(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EPOCHAL_COMPILED", "1")
    monkeypatch.setenv("CC", "/nowhere/cc -pthread")
    with pytest.raises(SystemExit):
        initialized(tree, "standard")
    assert "needs a C compiler (on Debian: apt-get install gcc libc6-dev)" in (told := capsys.readouterr().err)
    assert "without EPOCHAL_COMPILED the wheel is pure Python" in told


def test_what_has_not_changed_is_compiled_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_protocol, "check_tools", lambda: None)
    kept = tree / compile_protocol.CACHE / compile_protocol.key(tree, "p")
    kept.mkdir(parents=True)
    assert compile_protocol.compiled(tree, "p", PURE) == kept


@pytest.mark.parametrize("changed", ["p/room/machine.py", "p/slow.py", "core/epochal/errors.py"])
def test_what_has_changed_is_compiled_again(tree: Path, changed: str) -> None:
    before = compile_protocol.key(tree, "p")
    assert before == compile_protocol.key(tree, "p")
    (tree / changed).write_text("# changed\n")
    assert compile_protocol.key(tree, "p") != before


def test_other_options_are_another_result(tree: Path) -> None:
    before = compile_protocol.key(tree, "p")
    (tree / "pyproject.toml").write_text("[tool]\nmypy = {strict = true}\nhatch = {}\n")
    assert compile_protocol.key(tree, "p") != before
