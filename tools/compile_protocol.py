"""Put the protocol's machines into the wheel as compiled code too, where that is asked for.

Hatchling calls this when it builds a wheel. With EPOCHAL_COMPILED=1 in the environment, the modules below
`epochal.protocol` are compiled by mypyc, and the wheel is for this platform and this version of Python. The sources are
in the wheel beside them. Otherwise, and in an editable install, nothing is done here: the wheel is pure Python.

What is compiled, and what is not, is in pyproject.toml (`[tool.hatch.build.targets.wheel.hooks.custom]`).
Compiling takes more than a minute, so the result is kept in .cache/compiled, by a hash of all that it is made of.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from importlib import metadata, util
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ASKED = "EPOCHAL_COMPILED"
CACHE = Path(".cache", "compiled")
SHARED = "compiled"
"""The name of the one library that holds all machines; each module is a small file that loads it."""
SEEN = ("core/epochal/errors.py", "tools/compile_protocol.py")
"""The files beside the package that the result depends on: the module that it imports, and how it is compiled."""


class CompileError(Exception):
    """Compiled code was asked for and cannot be made; the message says what to do."""


def asked(environment: Mapping[str, str]) -> bool:
    """Whether the environment asks for compiled code: EPOCHAL_COMPILED is there, not empty and not 0."""
    return environment.get(ASKED, "") not in ("", "0")


def modules(root: Path, package: str, pure: Sequence[str]) -> list[str]:
    """The files to compile, relative to `root` and sorted: all but those that one of the patterns `pure` matches.

    Raises:
        CompileError: a pattern matches nothing.
    """
    apart: set[Path] = set()
    for pattern in pure:
        if not (matched := set((root / package).glob(pattern))):
            raise CompileError(f"pyproject.toml leaves out what is not in {package}: {pattern}")
        apart |= matched
    found = (path for path in (root / package).rglob("*.py") if path.name != "__init__.py" and path not in apart)
    return sorted(str(path.relative_to(root)) for path in found)


def check_tools() -> None:
    """See that all is there that compiling needs.

    Raises:
        CompileError: something is missing.
    """
    missing = []
    if not all(util.find_spec(name) for name in ("mypyc", "setuptools")):
        missing.append("mypy and setuptools (pip install mypy setuptools)")
    if not compiler():
        missing.append("a C compiler (on Debian: apt-get install gcc libc6-dev)")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        missing.append("Python's headers (on Debian: apt-get install python3-dev)")
    if missing:
        raise CompileError(
            f"compiling needs {', and '.join(missing)}; without {ASKED} the wheel is pure Python and needs none of this"
        )


def compiler() -> str | None:
    """The path of the C compiler, if there is one."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(command.split()[0])


def key(root: Path, package: str) -> str:
    """The hash of all that the result depends on."""
    tools = tomllib.loads((root / "pyproject.toml").read_text())["tool"]
    made_by = [sys.version, sysconfig.get_config_var("EXT_SUFFIX"), metadata.version("mypy"), os.environ.get("CFLAGS")]
    made_of = hashlib.sha256(repr([made_by, tools["mypy"], tools["hatch"]]).encode())
    for path in sorted([*(root / package).rglob("*.py"), *(root / name for name in SEEN)]):
        made_of.update(f"\n{path.relative_to(root)}\n".encode() + path.read_bytes())
    return made_of.hexdigest()[:16]


def compiled(root: Path, package: str, pure: Sequence[str]) -> Path:
    """The folder with the compiled modules, made unless it is there.

    Raises:
        CompileError: it cannot be made.
    """
    check_tools()
    files = modules(root, package, pure)
    kept = root / CACHE / key(root, package)
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            # In a process of its own, because mypyc writes a lot and changes setuptools as it needs it.
            command = [sys.executable, str(root / "tools" / "compile_protocol.py"), scratch, *files]
            done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise CompileError(f"mypyc or the C compiler failed:\n{done.stdout}{done.stderr}")
            if not kept.is_dir():  # another build may have come first
                Path(scratch, "made").rename(kept)
    return kept


def compile_into(scratch: Path, files: Sequence[str]) -> None:
    """Compile `files`, relative to the working directory, into `scratch`/made."""
    from mypyc.build import mypycify
    from setuptools import Distribution  # type: ignore[import-untyped]  # it has no types

    # What is not compiled is looked at for its types only: the libraries that it imports need not be there.
    options = ["--config-file=pyproject.toml", "--follow-imports=silent", *files]
    extensions = mypycify(
        options, group_name=f"epochal.protocol.{SHARED}", target_dir=str(scratch / "c"), debug_level="0"
    )
    command = Distribution({"name": "epochal", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(scratch / "made"), str(scratch / "objects")
    command.ensure_finalized()
    command.run()


class CompileProtocol(BuildHookInterface[BuilderConfig]):
    """The hook that hatchling calls."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What is installed for the build, where pip prepares an environment for it."""
        return list(self.config["requires"]) if asked(os.environ) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the compiled modules to the wheel; `version` is "editable" for an editable install."""
        if version == "editable" or not asked(os.environ):
            return
        try:
            made = compiled(Path(self.root), self.config["package"], self.config["pure"])
        except CompileError as error:
            self.app.abort(str(error))
            raise
        for path in sorted(made.rglob("*.so")):
            build_data["force_include"][str(path)] = str(path.relative_to(made))
        build_data["pure_python"], build_data["infer_tag"] = False, True


if __name__ == "__main__":
    compile_into(Path(sys.argv[1]), sys.argv[2:])
