"""A page's HTML as MkDocs writes it: bars in tables are bars."""

from pathlib import Path

import markdown  # type: ignore[import-untyped] # it comes without types

import docs_hooks

ROOT = Path(__file__).parents[2]


def rendered(text: str) -> str:
    return docs_hooks.on_page_content(markdown.markdown(text, extensions=["tables", "fenced_code"]))


def test_a_bar_in_a_cell_is_shown_without_its_backslash() -> None:
    assert "<code>-o table|json</code>" in rendered("| option | |\n|---|---|\n| `-o table\\|json` | one \\| two |\n")


def test_what_is_not_in_a_table_keeps_its_backslashes() -> None:
    assert "grep 'a\\|b'" in rendered("```\ngrep 'a\\|b'\n```\n")


def test_the_page_of_the_command_line_shows_no_escaped_bar() -> None:
    assert "\\|" not in rendered((ROOT / "docs" / "cli.md").read_text(encoding="utf-8"))
