"""What a server reads of single rows: differences of groups are found on planted groups, and judged on real runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.cli.console import out
from shoal.cli.explain import explain, show_server_view
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.run_folder import RunError
from shoal.lifecycle.starting import new_run
from shoal.review.served.row_reading import Sent, read_rows
from shoal.review.served.server_view import Sender, judged, played, server_view
from tests.runs import straight

POINTS = {"name": "gaussian", "limit": None, "options": {"samples": 60, "clusters": 3}}


def groups(rows: np.ndarray, centres: np.ndarray, least: int = 1) -> Sent:
    """What a client sends of its rows: numbers and sums by nearest centre, without groups of fewer than `least`."""
    nearest = ((rows[:, None] - centres) ** 2).sum(2).argmin(1)
    member = np.eye(len(centres))[nearest]
    member[:, member.sum(0) < least] = 0
    return Sent(member.sum(0), member.T @ rows, centres)


def test_a_row_that_moves_between_two_groups_is_read_and_no_other() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(-3, 0.5, (20, 4)), rng.normal(3, 0.5, (20, 4)), [[0.1, 0.0, 0.0, 0.0]]])
    centres = np.repeat([[-3.0], [3.0]], 4, axis=1)
    before = groups(rows, centres)
    after = groups(rows, centres + 1)
    assert before.counts.tolist() != after.counts.tolist()
    read = read_rows(len(rows), [before, after])
    assert read == pytest.approx(rows[-1:])
    assert len(read_rows(len(rows), [before])) == 0


def test_a_group_of_one_row_that_is_held_back_follows_from_the_total() -> None:
    rng = np.random.default_rng(1)
    rows = np.concatenate([rng.normal(0, 1, (30, 3)), [[9.0, 9.0, 9.0]]])
    sent = groups(rows, np.array([[0.0, 0, 0], [8, 8, 8]]), least=2)
    assert sent.counts.tolist() == [30, 0]
    assert read_rows(31, [sent], rows.sum(0)) == pytest.approx(rows[-1:])
    assert len(read_rows(31, [sent])) == 0


def test_a_space_in_which_nothing_was_sent_is_passed_over() -> None:
    rows = np.random.default_rng(1).normal(0, 1, (30, 3))
    moved = Sender(rows, None, [groups(rows, rows[:2])])
    assert judged({(0, b"tied"): Sender(rows - 1, None), (0, b"moved"): moved}).rows == 30
    with pytest.raises(RunError, match="no round whose messages"):
        judged({})


def test_the_view_of_a_run_is_judged_by_its_true_rows(home: Path, small: Callable[..., Any]) -> None:
    method = {"name": "fedkmeans", "standardise": True}
    settings = small(method=method, data=POINTS, model={"clusters": 9}, rounds=20)
    with pytest.raises(RunError, match="is not finished"):
        explain(new_run(settings).name, server_sees=True)
    run = straight(settings)
    view = server_view(run)
    assert view.rows == run.table("clients").query("round == 1")["samples"].sum()
    assert 0 < view.exact <= view.near <= 1
    assert played(OpenedRun(run), summed=True)[0].exact < view.exact
    with out.capture() as shown:
        show_server_view(run, as_json=False)
    assert f"reads {view.exact:.1%} of {view.rows:,} rows exactly" in " ".join(shown.get().split())


def test_of_a_masked_run_the_server_sees_totals_alone(home: Path, small: Callable[..., Any]) -> None:
    runs = {
        sums: straight(small(method={"name": "fedkmeans"}, data=POINTS, rounds=20, privacy={"sums": sums}))
        for sums in ("integer", "masked")
    }
    assert server_view(runs["masked"]) == played(OpenedRun(runs["integer"]), summed=True)[0]
    assert server_view(runs["masked"]) != server_view(runs["integer"])


@pytest.mark.parametrize("least", [1, 2])
def test_of_k_fed_a_server_reads_the_centres_of_single_points(
    home: Path, small: Callable[..., Any], least: int
) -> None:
    run = straight(small(method={"name": "kfed", "min_points": least}, data=POINTS, model={"clusters": 30}, rounds=1))
    assert (server_view(run).exact > 0) == (least == 1)


def test_a_method_that_sends_models_needs_an_attack_of_another_package(
    home: Path, small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = straight(small(method={"name": "fedcc"}, rounds=1))
    monkeypatch.setattr("shoal.review.served.server_view.entry_points", lambda **_: ())
    with pytest.raises(RunError, match="looks for rows in weights"):
        server_view(run)


def test_no_row_is_read_exactly_below_noise(home: Path, small: Callable[..., Any]) -> None:
    settings = small(
        method={"name": "fedkmeans"}, data=POINTS, rounds=3, privacy={"clip": 1.0, "noise": 0.1, "unit": "row"}
    )
    run = straight(settings)
    assert server_view(run).exact == 0
    with out.capture() as shown:
        show_server_view(run, as_json=False)
    assert "The messages have noise" in shown.get()
