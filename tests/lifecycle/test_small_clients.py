"""A client with too few samples does not take part, and the run says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shoal.core.errors import PartitionError
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import SettingsError
from shoal.lifecycle.starting import new_run
from tests.added_sets import add_set

REASON = "2 of 4 clients have fewer than 2 samples: 'far', 'tiny'"


def add(home: Path, clients: list[str]) -> None:
    table = pd.DataFrame({"client": clients, "v": np.random.default_rng(0).normal(size=len(clients))})
    table.assign(w=table["v"] * 2 + 1).to_csv(home / "t.csv", index=False)
    add_set(home / "t.csv", "sites", places.store(), force=True)


def test_small_clients_are_named_by_the_run(home: Path, small: Callable[..., Any]) -> None:
    add(home, ["a"] * 20 + ["b"] * 20 + ["far", "tiny"])
    changes = {"method": {"name": "kfed"}, "data": {"name": "sites", "limit": None}, "model": {"clusters": 2}}
    settings = small(**changes, partition={"kind": "by_column", "clients": 0})
    run = new_run(settings)
    (event,) = run.events()
    assert (event.kind, event.level) == ("clients_too_small", "warning")
    assert event.message == f"clients that do not take part: {REASON}"
    assert event.facts["clients"] == {"far": 1, "tiny": 1}
    add(home, ["a"] * 20 + ["far", "tiny"])
    with pytest.raises(PartitionError, match=r"2 of 3 clients have fewer than 2 samples .*'far', 'tiny'.*add samples"):
        new_run(settings)


@pytest.mark.parametrize(("held", "told"), [(3, True), (4, False)])
def test_samples_that_count_for_nothing_are_told(home: Path, small: Callable[..., Any], held: int, told: bool) -> None:
    add(home, [f"c{number // held}" for number in range(10 * held)])
    changes = {"method": {"name": "fedkmeans"}, "data": {"name": "sites", "limit": None}, "model": {"clusters": 2}}
    events = new_run(small(**changes, partition="auto")).events()
    messages = [event.message for event in events if event.kind == "samples_left_out"]
    assert bool(messages) == told
    assert all("half of the clients hold 3 samples or fewer, and method.min_points=2" in text for text in messages)


def test_more_clusters_than_half_the_samples_are_refused(home: Path, small: Callable[..., Any]) -> None:
    add(home, ["a"] * 20 + ["b"] * 20)
    changes = {"method": {"name": "fedkmeans"}, "data": {"name": "sites", "limit": None}}
    with pytest.raises(
        SettingsError, match=r"model.clusters is 21, and the clients have 40 .* set model.clusters to 20"
    ):
        new_run(small(**changes, partition="auto", model={"clusters": 21}))
    assert new_run(small(**changes, partition="auto", model={"clusters": 20})).settings().model.clusters == 20
