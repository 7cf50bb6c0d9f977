"""A report shows clusters side by side that may be one kind at two groups of clients, and says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker import Worker
from shoal.review.pages.cluster_sheets import draw_cluster_sheets
from shoal.review.pages.report import write_report
from shoal.review.results.clusters import cluster_facts, keep_clusters
from tests.added_sets import add_set
from tests.runs import straight

SITES = ("east", "north", "south", "west")


def clustered(small: Callable[..., Any], kind: str, encoder: str | None = None) -> RunFolder:
    worker = Worker()
    settings = small(
        data={"name": kind, "limit": None},
        partition={"kind": "by_column", "column": "client", "clients": 0},
        model={"clusters": 4, "encoder": encoder},
        method={"name": "fedkmeans", "sites": "ignore", "standardise": False},
        rounds=10,
    )
    run = straight(settings, worker.handle)
    assert keep_clusters(run, worker.handle)
    return run


def test_columns_of_a_kind_in_two_offsets(home: Path, small: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    site, kind = rng.integers(0, 4, 400), rng.integers(0, 3, 400)
    x = 6 * np.eye(3, 5)[kind] + rng.normal(scale=0.4, size=(400, 5))
    x[:, 0] += 3.5 * (site >= 2)
    x[kind == 2, 4] += rng.choice([-1, 1], (kind == 2).sum())
    table = pd.DataFrame(x, columns=list("abcde")).assign(client=np.array(SITES)[site])
    table.to_csv(home / "rows.csv", index=False)
    add_set(home / "rows.csv", "rows", places.store())
    run = clustered(small, "rows")
    facts = cluster_facts(run)
    assert facts is not None
    assert facts.comparison is not None
    assert facts.verdict is not None
    assert len(facts.comparison.twins) == 1
    assert facts.verdict.word == "doubtful"
    page = write_report(run).read_text()
    first, second = facts.comparison.twins[0]
    assert f"Clusters {first} and {second} may be one kind" in page
    assert f"<td>{first} and {second}</td><td>a</td>" in page
    assert "method.sites=centre" in page


@pytest.mark.long
def test_images_of_a_kind_in_two_lights(home: Path, small: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    for number, site in enumerate(SITES):
        (home / "photos" / site).mkdir(parents=True)
        for place in range(60):
            pixels = rng.normal(40, 4, (8, 8))
            row = 3 * (place % 3)
            pixels[row : row + 2] += 120
            pixels[:, 6:] += 90 * (number >= 2)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(home / "photos" / site / f"{place}.png")
    add_set(home / "photos", "photos", places.store())
    run = clustered(small, "photos", "pixels")
    facts = cluster_facts(run)
    assert facts is not None
    assert facts.comparison is not None
    (pair,) = facts.comparison.twins
    draw_cluster_sheets(run)
    page = write_report(run).read_text()
    assert [int(number) for number in re.findall('alt="cluster-([0-9]+)', page)[:2]] == list(pair)
    assert "method.representation=light" in page
