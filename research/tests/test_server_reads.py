"""What a server reads: the tables follow from the kept figures, and noise hides rows only if there is enough."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.engine.store.opened_run import OpenedRun
from shoal.lifecycle.starting import new_run
from shoal_research.server_reads import networks, noise
from shoal_research.server_reads.below_noise import played_below_noise
from shoal_research.server_reads.from_weights import Sender, network_rows
from shoal_research.server_reads.measure import PAGE, add_set, page_with_table

POINTS = {"name": "gaussian", "limit": None, "options": {"samples": 60, "clusters": 3}}


def test_the_tables_are_those_of_the_figures() -> None:
    page = PAGE.read_text()
    assert page_with_table(page) == page, "run python -m shoal_research.server_reads.measure"
    assert noise.page_with_tables(page, json.loads(noise.FILE.read_text())) == page, "run the same of .noise"
    assert networks.page_with_table(page) == page, "run the same of .networks"


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "unit", "scale", "summed"),
    [
        ({"name": "fedkmeans"}, "row", 0.001, False),
        ({"name": "fedkmeans"}, "row", 0.001, True),
        ({"name": "fedgmm"}, "row", 0.001, False),
        ({"name": "fedkmeans", "landmarks": 20}, "row", 0.001, False),
        ({"name": "fedkmeans"}, "row", 0.3, False),
        ({"name": "fedkmeans"}, "client", 0.05, True),
    ],
)
def test_rows_are_read_below_little_noise_alone(
    home: Path, small: Callable[..., Any], settings: dict[str, Any], unit: str, scale: float, summed: bool
) -> None:
    privacy = {"clip": 1.0, "noise": scale, "unit": unit}
    run = new_run(small(method=settings, data=POINTS, rounds=20, privacy=privacy))
    view, _ = played_below_noise(OpenedRun(run), summed=summed)
    assert (view.near > view.guessed + 0.1) == (scale == 0.001)


@pytest.mark.long
def test_weights_tell_the_rows_of_their_client_alone(home: Path) -> None:
    add_set()
    opened = networks.opened_run({"method": {"name": "fedsimclr"}}, 2, 0)
    one, other, *_ = networks.first_exchanges(opened)
    read = network_rows(opened.method, one, typical := networks.typical_deviation(opened))
    rows, others = (each.client.train.raw() for each in (one, other))
    assert [networks.shares_near(each.numpy(), read, typical)[0] for each in (rows, others)] == [1, 0]
    answer = Sender.of(opened.method, one).answer(rows)  # as the attack by matching takes the steps
    assert all(torch.allclose(answer[name], one.left.tensors[name], atol=1e-6) for name in answer)
