"""What only runs of one method have: figures by the hook of the contract."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from shoal.methods.contract.base import Server
from shoal.methods.fedpnp.fedcc import FedCC
from shoal.review.pages.figures import draw_figures
from tests.runs import straight


@pytest.mark.long
def test_a_method_draws_from_what_the_run_holds(
    home: Path, small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = straight(small(method={"name": "fedcc"}, rounds=2))
    names = {path.name for path in draw_figures(run)}
    given: list[tuple[int, int]] = []

    def figures(self: FedCC, server: Server, client_names: Sequence[str]) -> dict[str, Figure]:
        given.append((server.round, len(client_names)))
        return {"own": Figure()}

    monkeypatch.setattr(FedCC, "figures", figures)
    assert {path.name for path in draw_figures(run)} == names | {"own.png"}
    assert given == [(2, 3)]
    shutil.move(run.lineage().partition.folder, home / "elsewhere")
    assert {path.name for path in draw_figures(run)} == names, "without its data a run keeps what was drawn"
