"""The index of methods: every method says which question it answers, and the page has the same rows."""

from __future__ import annotations

from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.methods.index import methods_by_question, title_of_method
from shoal.methods.registry import BUILT_IN
from tests.sources import ROOT


def test_every_method_says_what_it_is() -> None:
    assert {kind.name for kinds in methods_by_question().values() for kind in kinds} >= set(BUILT_IN)
    assert len({kind.title for kind in BUILT_IN.values()}) == len(BUILT_IN), "a method has its base class's title"
    assert all(kind.about.endswith(".") for kind in BUILT_IN.values())
    assert title_of_method("cfl") == "clustered federated learning (CFL)"


def index_lines() -> list[str]:
    """Return the index as lines of Markdown: a table with a row for each method, below its question."""
    lines = ["| method | `method.name` | what it does |", "|---|---|---|"]
    for question, kinds in methods_by_question().items():
        lines.append(f"| **{question}** | | |")
        lines += [f"| {kind.title} | `{kind.name}` | {kind.about} |" for kind in kinds if kind.name in BUILT_IN]
    return lines


def test_the_page_and_the_command_have_the_index() -> None:
    assert "\n".join(index_lines()) in (ROOT / "docs" / "methods.md").read_text()
    said = CliRunner().invoke(app, ["run", "--methods"], env={"COLUMNS": "200"}).output
    for question, kinds in methods_by_question().items():
        assert question in said
        assert all(kind.name in said and kind.title in said for kind in kinds)
