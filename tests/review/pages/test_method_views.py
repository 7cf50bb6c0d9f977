"""What only runs of one method have: figures and tables by the hooks of the contract."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from shoal.methods.contract.base import RunHistory
from shoal.methods.fedpnp.fedcc import FedCC
from shoal.review.pages.figures import draw_figures
from tests.engine.rounds.test_every_method_runs import CASES
from tests.runs import straight


@pytest.mark.long
def test_a_run_of_cfcl_has_the_table_of_its_exchange(home: Path, small: Callable[..., Any]) -> None:
    run = straight(small(**CASES["cfcl"]))
    assert run.figures / "exchange.csv" in draw_figures(run)
    table = pd.read_csv(run.figures / "exchange.csv")
    assert list(table) == ["sample", "from", "to", "round"]
    assert len(table) > 0


@pytest.mark.long
def test_a_method_draws_from_what_the_run_holds(
    home: Path, small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = straight(small(method={"name": "fedcc"}, rounds=2))
    names = {path.name for path in draw_figures(run)}
    histories: list[RunHistory] = []

    def figures(self: FedCC, history: RunHistory) -> dict[str, Figure]:
        histories.append(history)
        return {"own": Figure()}

    monkeypatch.setattr(FedCC, "figures", figures)
    assert {path.name for path in draw_figures(run)} == names | {"own.png"}
    (history,) = histories
    assert history.server is not None
    assert (history.server.round, list(history.rounds["round"])) == (2, [1, 2])
    assert len(history.clients) == len(history.client_names) == history.updates["client"].nunique()
    shutil.move(run.lineage().partition.folder, home / "elsewhere")
    assert {path.name for path in draw_figures(run)} == names, "without its data a run keeps what was drawn"
