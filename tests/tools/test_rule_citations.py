"""How code and documentation cite a behaviour rule: by its name where it has one, and one rule a sentence."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import rule_report

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docs" / "rules.md"

PARTS = ("core", "services", "operator", "spark")

_ID = re.compile(r'(?<![\w"])[SNWQEF]\d{1,2}\b')  # in quotes it is the mark of a test
_NEW_PASSAGE = re.compile(r"\n\s*\n|\n\s*(?=[-*] |\d+\. )|\n(?=\|)|\|")
_ROW = re.compile(r"\S {3,}\S")
_END = re.compile(r"(?<=[.!?])\s+")
_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def cited(sentence: str) -> list[str]:
    return _ID.findall(sentence)


def sentences(text: str) -> list[str]:
    """What a full stop, an empty line, the next item of a list or a cell of a table ends; without `Sources:`.

    A line of a docstring that has columns is a sentence by itself.
    """
    rows = [f"\n\n{line}\n\n" if _ROW.search(line.strip()) else line for line in text.split("\n")]
    passages = (" ".join(passage.split()) for passage in _NEW_PASSAGE.split("\n".join(rows)))
    every = [sentence for passage in passages for sentence in _END.split(passage) if sentence]
    return [sentence for sentence in every if not sentence.startswith(("Source:", "Sources:"))]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file, with the lines where they begin: strings and comments of a module, else all."""
    if path.suffix != ".py":
        yield 1, _FENCED.sub("", path.read_text())
        return
    begun, comment, last = 0, "", (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.STRING:
            yield token.start[0], token.string.strip("\"'")
        elif token.type == tokenize.COMMENT:
            line, column = token.start
            if comment and (line - 1, column) != last:
                yield begun, comment
                comment = ""
            begun, last = (begun if comment else line), (line, column)
            comment += token.string.lstrip("# ") + "\n"
    if comment:
        yield begun, comment


def problems(text: str, names: dict[str, str]) -> list[str]:
    """What is wrong with the citations of a text."""
    found = []
    for sentence in sentences(text):
        rules = cited(sentence)
        if len(rules) > 1:
            found.append(f"cites {', '.join(rules)}: {sentence}")
        found += [
            f"{rule} without its name {names[rule]!r}: {sentence}"
            for rule in dict.fromkeys(rules)
            if rule in names and re.search(rf"\b{rule}\b(?! {names[rule]}\b)", sentence)
        ]
    return found


def cited_in() -> list[Path]:
    code = (path for part in PARTS for path in sorted((ROOT / part).rglob("*.py")))
    pages = (path for path in sorted((ROOT / "docs").rglob("*.md")) if path != RULES)
    return [*code, *pages, ROOT / "README.md"]


def test_every_citation_has_its_name_and_its_sentence_to_itself():
    names = {rule: row.name for rule, row in rule_report.read_rules(RULES.read_text()).items() if row.name}
    assert len(names) == 10
    assert [
        f"{path.relative_to(ROOT)}:{line}: {problem}"
        for path in cited_in()
        for line, text in prose(path)
        for problem in problems(text, names)
    ] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The catalog keeps it (E11 horizon). It is never lowered (E9).", 0),
        ("The catalog keeps it (E11\n    horizon).", 0),
        ("The catalog keeps it (E11).", 1),
        ("The catalog keeps it (E11 retention).", 1),
        ("It is kept (E9), and never lowered (E13).", 1),
        ("It is kept (E9; S3-S5).", 1),
        ("It is kept.\n\nSources: rules E9, E11; S3-S5.", 0),
        ("- kept (E9)\n- lowered (E8)", 0),
        ("| kept (E9) | lowered (E8) |\n| given (E7) |", 0),
        ("first     kept (E9)\nsecond    lowered (E8)", 0),
        ('Mark it `rule("E11", "E12")`.', 0),
    ],
)
def test_what_is_wrong_is_found(text, found):
    assert len(problems(text, {"E11": "horizon"})) == found


def test_a_module_is_read_as_strings_and_comments(tmp_path):
    module = tmp_path / "module.py"
    module.write_text('"""One."""\n\n# Two\n# three.\nfour = E5  # six\nseven = "eight"\n')
    assert sorted((line, " ".join(text.split())) for line, text in prose(module)) == [
        (1, "One."),
        (3, "Two three."),
        (5, "six"),
        (6, "eight"),
    ]
