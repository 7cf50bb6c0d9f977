"""The index of methods: every method stands under one question, and the page has the same rows."""

from __future__ import annotations

from typer.testing import CliRunner

from shoal.cli.methods import app
from shoal.methods.index import QUESTIONS, name_of_method
from shoal.methods.registry import METHODS
from tests.sources import ROOT


def test_every_method_stands_under_one_question() -> None:
    keys = [entry.key for question in QUESTIONS for entry in question.entries]
    assert sorted(keys) == sorted(METHODS)
    for question in QUESTIONS:
        assert question.text.endswith("?")
        assert all(entry.about.endswith(".") and entry.name for entry in question.entries)
    assert name_of_method("cfl") == "clustered federated learning (CFL)"


def index_lines() -> list[str]:
    """Return the index as lines of Markdown: a table with a row for each method, below its question."""
    lines = ["| method | `method.name` | what it does |", "|---|---|---|"]
    for question in QUESTIONS:
        lines.append(f"| **{question.text}** | | |")
        lines += [f"| {entry.name} | `{entry.key}` | {entry.about} |" for entry in question.entries]
    return lines


def test_the_page_and_the_command_have_the_index() -> None:
    assert "\n".join(index_lines()) in (ROOT / "docs" / "methods.md").read_text()
    said = CliRunner().invoke(app, [], env={"COLUMNS": "200"}).output
    for question in QUESTIONS:
        assert question.text in said
        assert all(entry.key in said and entry.name in said for entry in question.entries)
