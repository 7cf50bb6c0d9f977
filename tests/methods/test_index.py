"""The index of methods: every method says which question it answers, and the command lists it."""

from __future__ import annotations

from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.methods.index import methods_by_question, title_of_method
from shoal.methods.registry import BUILT_IN


def test_every_method_says_what_it_is() -> None:
    assert {kind.name for kinds in methods_by_question().values() for kind in kinds} >= set(BUILT_IN)
    assert len({kind.title for kind in BUILT_IN.values()}) == len(BUILT_IN), "a method has its base class's title"
    assert all(kind.about.endswith(".") for kind in BUILT_IN.values())
    assert title_of_method("cfl") == "clustered federated learning (CFL)"


def test_the_command_has_the_index() -> None:
    said = CliRunner().invoke(app, ["run", "--methods"], env={"COLUMNS": "200"}).output
    for question, kinds in methods_by_question().items():
        assert question in said
        assert all(kind.name in said and kind.title in said for kind in kinds)
