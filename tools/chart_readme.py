"""The table of values in the chart's README.md, made from the comments of its values.yaml.

Run as `python tools/chart_readme.py [CHART]`: writes the part of CHART/README.md between the marks again.

It compares three texts that must agree: the comments (`@param PATH TEXT`), the values, and the table for readers. A
value without a comment, and a comment without a value, are errors.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

BEGIN, END = "<!-- values: made by tools/chart_readme.py -->", "<!-- end of values -->"
_LINE = re.compile(r"^\s*## @(?P<kind>section|param) (?P<rest>.+)$")


def table(text: str) -> str:
    """The Markdown of all values in values.yaml's `text`, a section each.

    Raises:
        ValueError: values that no comment describes, or comments that describe no value.
    """
    values = yaml.safe_load(text)
    lines: list[str] = []
    described: list[str] = []
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        if found["kind"] == "section":
            lines += ["", f"### {found['rest']}", "", "| value | default | meaning |", "|---|---|---|"]
            continue
        path, _, meaning = found["rest"].partition(" ")
        described.append(path)
        default = json.dumps(_at(values, path))
        lines.append(f"| `{path}` | `{default}` | {meaning.replace('|', chr(92) + '|')} |")
    if missing := sorted(set(_paths(values, described)) - set(described)):
        raise ValueError(f"values without a line `## @param`: {', '.join(missing)}")
    if twice := sorted({path for path in described if described.count(path) > 1}):
        raise ValueError(f"described twice: {', '.join(twice)}")
    return "\n".join(lines[1:]) + "\n"


def fill(readme: str, made: str) -> str:
    """`readme` with `made` between the marks. Raises `ValueError` if they are not there."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{made}\n{END}{after}"


def _at(values: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(values, dict) or part not in values:
            raise ValueError(f"a line `## @param {path}` describes no value")
        values = values[part]
    return values


def _paths(values: dict[str, Any], described: Sequence[str], prefix: str = "") -> Iterator[str]:
    """Each value; a group of values is one of its own only where a comment describes it as a whole."""
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and value and path not in described:
            yield from _paths(value, described, path + ".")
        else:
            yield path


def main(arguments: Sequence[str]) -> int:
    """Entry point; the exit status is 1 when values and comments do not agree."""
    chart = Path(arguments[0] if arguments else "charts/epochal")
    readme = chart / "README.md"
    try:
        readme.write_text(fill(readme.read_text(), table((chart / "values.yaml").read_text())))
    except ValueError as error:
        print(f"chart_readme.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
